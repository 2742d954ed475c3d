# shellcheck shell=sh
# $1: the folder seen as /run/affinityd; $2: the settings; $3: the devices, the only ones in /dev;
# $4: the program that is /bin/sh; $5: lines of sh to run first; then a command, as a user or as root.
mount() { command mount -n "$@"; }
mount -t tmpfs -o mode=755 tmpfs /mnt
if [ "$1" ]; then mkdir /mnt/affinityd && mount --bind "$1" /mnt/affinityd; fi
if [ -d "$1/jobs" ]; then
    mkdir /mnt/affinityd-jobs && mount --bind "$1/jobs" /mnt/affinityd-jobs
fi
mount --move /mnt /run
mount -t tmpfs -o mode=755 tmpfs /etc
[ -z "$2" ] || printf '%s\n' "$2" >/etc/affinityd.conf
mount -t tmpfs -o mode=755 tmpfs /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/urandom c 1 9
mkdir /dev/dri /dev/accel
for device in $3; do mknod -m 666 "/dev/$device" c 240 0; done
[ -z "$4" ] || mount --bind "/bin/$4" /bin/sh
eval "$5"
shift 5
"$@"
