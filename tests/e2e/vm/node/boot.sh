#!/bin/sh
# boot.sh ROOT: systemd, in the root of another Debian. `unshare --mount --pid --fork` runs this.
set -eu
mount --bind "$1" "$1"
cd "$1"
mkdir -p tmp guest
for place in proc:proc sysfs:sys devtmpfs:dev tmpfs:run tmpfs:tmp tmpfs:var/lib cgroup2:sys/fs/cgroup; do
    mount -t "${place%:*}" "${place%:*}" "${place#*:}"
done
mount --bind / guest # the programs of the other Debian, for a pod
mount --move . /
exec chroot . sh -c 'mount --make-rshared / && exec /lib/systemd/systemd --unit=basic.target'
