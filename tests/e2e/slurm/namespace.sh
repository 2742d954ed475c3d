# shellcheck shell=sh
# Gives slurmd a /dev of its own; then shows SOURCE at TARGET for each line of the file `binds`.
# Targets that are made in /etc and /run are in layers that go with the namespace.
# $1: the node's folder; $2: the major of its GPUs' device files; then the command.
set -e
cd "$1"
major=$2
shift 2
mkdir -p dev
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty ptmx fd stdin stdout stderr; do
    cp -a "/dev/$name" dev
done
for folder in pts shm; do
    mkdir "dev/$folder"
    mount --rbind "/dev/$folder" "dev/$folder"
done
while read -r minor; do
    mknod -m 666 "dev/nvidia$minor" c "$major" "$minor"
done <minors
mount --move dev /dev
mkdir -p layers
mount -t tmpfs tmpfs layers
for folder in etc run; do
    mkdir -p "layers/$folder" "layers/work-$folder"
    layers=upperdir=layers/$folder,workdir=layers/work-$folder
    mount -t overlay -o "lowerdir=/$folder,$layers" overlay "/$folder"
done
while read -r source target; do
    if [ -d "$source" ]; then mkdir -p "$target"; else [ -e "$target" ] || : >"$target"; fi
    mount --rbind "$source" "$target"
done <binds
exec "$@"
