"""A real daemon on this machine as if it had NVIDIA's driver, and NUMA nodes that a test makes.

It runs on this machine's own `/`, but for `/proc/driver`, `/sys/devices/system` and `/run`, which
are mounted over in a mount namespace of the daemon's own; NVML is a real shared library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from affinityd.topology.model import Topology
from tests.support.daemons import Daemon, running
from tests.support.machines.sysfs_tree import write_tree
from tests.support.nvml.shared_object import environment

DRIVER = "550.54.15"
MOUNTS = (
    'mount --bind "$0/driver" /proc/driver && '
    'mount --bind "$0/machine/sys/devices/system" /sys/devices/system && '
    'mount --bind "$0/run" /run && exec "$@"'
)


@contextmanager
def running_on(
    machine: Topology,
    folder: Path,
    nvml: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    listen: str = "none",
    namespaces: Sequence[str] = (),
    before: Sequence[str] = (),
) -> Iterator[Daemon]:
    """Run the daemon in a folder; `nvml`: the facts of the tests' NVML.

    `namespaces`: options of unshare(1) for more of them; `before`: the command that runs it there.
    """
    with running(
        folder,
        *arguments,
        env={**(env or {}), **environment(nvml, folder)},
        listen=listen,
        before=[*entering(machine, folder, *namespaces), *before],
    ) as daemon:
        yield daemon


def entering(machine: Topology, folder: Path, *namespaces: str) -> list[str]:
    """Write the machine and its driver, and return the command that runs another on it.

    Its /run is FOLDER/run, which may be a link to another daemon's.
    """
    (folder / "run/affinityd").mkdir(parents=True, exist_ok=True)
    (folder / "driver/nvidia").mkdir(parents=True)
    (folder / "driver/nvidia/version").write_text(f"NVRM version: {DRIVER}\n")
    write_tree(machine, folder / "machine")
    return ["unshare", "--mount", *namespaces, "sh", "-c", MOUNTS, os.fspath(folder)]
