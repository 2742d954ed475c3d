"""Slurm as the releases of Debian have it: this machine's own, or one in a root of its own.

A root is made once, by mmdebstrap, and kept in the user's cache, named after its recipe. Nothing
writes to it: each cluster has layers of its own over it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.support.paths import REPOSITORY

NSENTER = "/usr/bin/nsenter"  #: wherever a user's PATH leads

HOST = "22.05"  #: in Debian 12, on which the tests run
SUITES = {"24.11": "trixie", "26.05": "forky"}
NIGHTLY = (HOST, "24.11")  #: what is not tried for every change

PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "munge", "curl", "mount", "procps"),
    *("busybox-static", "python3-minimal", "libpython3-stdlib"),
)
UNREAD = ("doc", "info", "locale", "man")  #: folders of /usr/share

#: A root over that of a release, with this machine's processes, devices, cgroups and tests.
LAYERED = """\
set -e
cd "$0"
mkdir root over
mount -t tmpfs -o mode=755 tmpfs over
mkdir over/upper over/work
mount -t overlay -o "lowerdir=$1,upperdir=over/upper,workdir=over/work" overlay root
cp /etc/hosts root/etc/hosts
for folder in /proc /sys /dev /tmp "$2"; do
    mkdir -p "root$folder"
    mount --rbind "$folder" "root$folder"
done
cd root
pivot_root . mnt # after a chroot no user's task could make a user namespace
umount -l mnt
echo
exec sleep infinity
"""


@contextmanager
def entered(release: str, folder: Path) -> Iterator[Sequence[str]]:
    """Yield the words before a command that have it run where a release is; `folder`: for layers.

    They are options of nsenter in the end: root can add --setuid and --setgid.
    """
    if release == HOST:
        yield (NSENTER,)
        return
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", LAYERED]
    places = (folder, root_of(release), REPOSITORY)
    with subprocess.Popen([*command, *places], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"\n", f"no root of Slurm {release}"
            yield (NSENTER, f"--target={holder.pid}", "--mount", "--wdns=/")
        finally:
            holder.kill()


@cache
def root_of(release: str) -> Path:
    """Return the root of a release, made by the first who asks, while others wait."""
    suite = SUITES[release]
    options = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNREAD]
    options += ["--aptopt=Acquire::Check-Valid-Until false"]  # a mirror may be behind
    recipe = ["mmdebstrap", "--quiet", "--variant=essential", *options]
    recipe += [f"--include={','.join(PACKAGES)}", suite]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "affinityd-slurm"
    folder = cache / f"{suite}-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:8]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _make(folder, recipe, release)
    return folder


def _make(folder: Path, recipe: list[str], release: str) -> None:
    half = folder.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    done = subprocess.run(
        [*recipe, half, *_mirrors()], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{shlex.join(recipe)}: {done.stderr}"
    version = subprocess.check_output(["chroot", half, "slurmd", "-V"], text=True)
    assert f" {release}." in version, f"{recipe[-1]} has {version}: change SUITES"
    half.rename(folder)  # whole or not at all


def _mirrors() -> list[str]:
    """Return where this machine's apt has Debian from; mmdebstrap knows one, too."""
    asks = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Label: Debian"]
    return subprocess.check_output(asks, text=True).split()[:1]
