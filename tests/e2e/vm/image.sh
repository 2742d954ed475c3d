#!/bin/sh
# image.sh FOLDER PYTHON REQUIREMENT...
# Makes FOLDER/vmlinuz and FOLDER/root.cpio: the kernel of Debian 12, and its root as an initial
# ramdisk, with tools for comparisons, and with the Python packages of the arguments.
# PYTHON: an interpreter on this machine that has pip. The packages are only unpacked, which takes
# seconds; nothing here is installed on this machine.
set -eu
folder=$1 python=$2
shift 2
export folder python requirements="$*"

# shellcheck disable=SC2016 # the hook, which is given the new root, expands them
packages_and_indices='
    set -eu
    cd "$1"
    "$python" -m pip install -qq --target usr/lib/python3/dist-packages \
        --python-version 3.11 --only-binary=:all: $requirements
    chroot . depmod "$(ls lib/modules)"
    chroot . python3 -m compileall -q -j0 /usr/lib/python3 /usr/lib/python3.11'

mmdebstrap --quiet --variant=extract --format=tar \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --include=linux-image-amd64,kmod,mount,iproute2,dash,coreutils \
    --include=python3-minimal,libpython3-stdlib,libstdc++6,util-linux,numactl \
    --include=curl,sed,grep,mawk,findutils \
    --dpkgopt='path-exclude=/usr/share/*' \
    --dpkgopt='path-exclude=/lib/udev/*' \
    --dpkgopt='path-exclude=/lib/modules/*/kernel/*' \
    --dpkgopt='path-include=/lib/modules/*/kernel/fs/overlayfs/*' \
    --dpkgopt='path-include=/lib/modules/*/kernel/drivers/block/brd.ko' \
    --dpkgopt='path-include=/lib/modules/*/kernel/drivers/net/ethernet/intel/e1000/*' \
    --extract-hook="$packages_and_indices" \
    bookworm "$folder/root.tar"

bsdtar --format newc -cf "$folder/root.cpio" --exclude './boot/*' "@$folder/root.tar"
tar -xOf "$folder/root.tar" --wildcards './boot/vmlinuz-*' >"$folder/vmlinuz"
rm "$folder/root.tar"
