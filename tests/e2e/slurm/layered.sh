# shellcheck shell=sh
# A root over that of a release, with this machine's processes, devices, cgroups and tests.
# $1: a folder for its layers; $2: the release's root; $3: the checkout.
set -e
cd "$1"
mkdir root over
mount -t tmpfs -o mode=755 tmpfs over
mkdir over/upper over/work
mount -t overlay -o "lowerdir=$2,upperdir=over/upper,workdir=over/work" overlay root
cp /etc/hosts root/etc/hosts
for folder in /proc /sys /dev /tmp "$3"; do
    mkdir -p "root$folder"
    mount --rbind "$folder" "root$folder"
done
cd root
mount --move . / # after a chroot alone no user's task could make a user namespace
exec chroot . sh -c 'echo; exec sleep infinity'
