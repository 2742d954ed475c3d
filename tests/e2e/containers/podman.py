"""podman and runc with a storage of the tests' own: they do not see this machine's containers.

The storage is kept in the user's cache, so that a second run builds only what changed.
"""

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.support.tiny import Ended, ran

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "affinityd-containers"
#: The folder of podman's files that do not outlive a reboot.
RUN = Path("/run", f"affinityd-{hashlib.sha256(os.fsencode(CACHE)).hexdigest()[:8]}")

SETTLED = 120.0  #: seconds that podman may take for anything but a build

#: Other managers of cgroups, and other logs of events, need systemd. All storages share locks of
#: the type "shm". Root without CAP_SYS_RESOURCE cannot raise a hard limit to podman's defaults.
CONTAINERS_CONF = f"""\
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=16384:16384"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
runtime = "runc"
tmp_dir = "{RUN}/libpod"
"""

STORAGE_CONF = f"""\
[storage]
driver = "overlay"
graphroot = "{CACHE}/storage"
runroot = "{RUN}/storage"
"""


@cache
def environment() -> Mapping[str, str]:
    CACHE.mkdir(parents=True, exist_ok=True)
    files = {"CONTAINERS_CONF": CONTAINERS_CONF, "CONTAINERS_STORAGE_CONF": STORAGE_CONF}
    paths = {name: CACHE / f"{name.lower()}.toml" for name in files}
    with locked():
        for name, text in files.items():
            if not paths[name].exists() or paths[name].read_text() != text:
                paths[name].write_text(text)
    ours = {key: value for key, value in os.environ.items() if "AFFINITYD" not in key}
    return {**ours, **{name: os.fspath(path) for name, path in paths.items()}}


@contextmanager
def locked() -> Iterator[None]:
    """Make other processes that build images wait."""
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def podman(*words: str | os.PathLike[str]) -> str:
    ended = attempt(*words)
    assert ended.status == 0, f"podman {words}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def attempt(*words: str | os.PathLike[str]) -> Ended:
    options = {"env": environment(), "stdin": subprocess.DEVNULL, "timeout": SETTLED}
    return ran("podman", *words, **options)
