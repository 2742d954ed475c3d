#!/bin/sh
# runc of the rig. runc leaves the old root by pivot_root(2). In a chroot that call exchanges another mount
# than the namespace's root, and a later `runc exec`, by `kubectl exec`, would enter the machine's own root.
# Therefore a container is created in a mount namespace whose root is the chroot's.
case " $* " in
*' create '*)
    # For nightly/test_large_node.py: note a container's cpuset, and cut it to this machine's CPUs.
    if [ -e /rig/online ]; then
        spec=$(printf '%s\n' "$*" | sed 's/.* --bundle \([^ ]*\).*/\1/')/config.json
        sed -n 's/.*"cpus":"\([^"]*\)".*/\1/p' "$spec" >>/rig/spec-cpus
        sed -i "s/\"cpus\":\"[^\"]*\"/\"cpus\":\"$(cat /rig/online)\"/" "$spec"
    fi
    # shellcheck disable=SC2016 # the inner shell expands them
    exec unshare --mount --propagation slave nsenter --mount=/proc/self/ns/mnt sh -c '
        mkdir -p "$0/rig/old" && cd "$0" && pivot_root . rig/old && umount -l rig/old && exec /usr/bin/runc "$@"
    ' "$(cat /rig/root)" "$@"
    ;;
esac
exec /usr/bin/runc "$@"
