"""A /dev without devices, for scripts that look there for GPUs."""

#: Of a mount namespace; a line of sh each.
BARE_DEV = """\
mount -t tmpfs tmpfs /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/urandom c 1 9
"""
