"""Mounts that only the tests see, if root runs them.

On a node on which affinityd runs, tests would find affinityd's folder and settings, also if their
machine has none; on a node with GPUs, processes would have the node's device files and not those of
the tests' machines. If the checkout or Python is below a folder that other users cannot enter, such
as root's home, commands of the tests would not start as other users. All of these are mounted over
in a mount namespace of the tests; the machine stays as it is.
"""

import ctypes
import os
import re
import stat
import sys
from pathlib import Path

from tests.support.paths import REPOSITORY

RUN, CONFIG = Path("/run/affinityd"), Path("/etc/affinityd.conf")
DEV = Path("/dev")
PTMX = "ptmx"  #: must be beside the pseudoterminals; see the kernel's fs/devpts/inode.c
GPUS, NONE = re.compile("nvidia.*|dri|kfd"), re.compile("")

# Constants of <sched.h> and <sys/mount.h>.
CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE = 0x20000, 4096, 16384, 1 << 19
MS_RDONLY, MS_REMOUNT = 1, 32

_LIBC = ctypes.CDLL(None, use_errno=True)


def hide_the_machines_own() -> None:
    """Hide a site's folder, settings and GPUs; let other users enter checkout and Python.

    Does nothing if there is nothing to hide, or without the privilege to mount.
    """
    running = RUN.is_dir() and any(RUN.iterdir())
    above = {*REPOSITORY.parents, *Path(sys.base_prefix).parents}
    closed = [folder for folder in sorted(above) if not _all_may_enter(folder)]
    has_gpus = any(GPUS.fullmatch(entry.name) for entry in DEV.iterdir())
    if os.geteuid() or not (running or CONFIG.exists() or closed or has_gpus):
        return
    folder = Path.cwd()
    if _LIBC.unshare(CLONE_NEWNS):
        return
    _mount("none", Path("/"), None, MS_REC | MS_SLAVE)
    if running:
        _mount("tmpfs", RUN, "tmpfs")
    if CONFIG.exists():
        _mount("/dev/null", CONFIG, None, MS_BIND)
    if has_gpus:
        _mount_anew(DEV, without=GPUS)
        # NVIDIA's driver would make its files again.
        _mount("none", DEV, None, MS_REMOUNT | MS_RDONLY)
    for path in closed:
        _mount_anew(path)
    os.chdir(folder)  # through the new mounts


def _all_may_enter(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def _mount_anew(folder: Path, without: re.Pattern[str] = NONE) -> None:
    """Cover a folder by one that all users may enter, with the same entries except `without`."""
    below = os.open(folder, os.O_PATH)  # leads to the entries that will be covered
    _mount("tmpfs", folder, "tmpfs", data="mode=755")
    for entry in Path(f"/proc/self/fd/{below}").iterdir():
        if without.fullmatch(entry.name):
            continue
        place = folder / entry.name
        if entry.is_symlink() or entry.name == PTMX:
            place.symlink_to(f"pts/{PTMX}" if entry.name == PTMX else entry.readlink())
            continue
        place.mkdir() if entry.is_dir() else place.touch()
        _mount(os.fspath(entry), place, None, MS_BIND | MS_REC)
    os.close(below)


def _mount(source: str, target: Path, kind: str | None, flags: int = 0, data: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind and kind.encode())
    if _LIBC.mount(*words, flags, data.encode()):
        raise OSError(ctypes.get_errno(), f"mount {source}", os.fspath(target))
