"""Cgroups as schedulers make them, in this machine's v1 hierarchy: real cpusets of jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cpusets import HIERARCHY

CONTAINER = "c0de" * 16


def pod_parts(uid: str) -> tuple[str, ...]:
    """Return the folders of a pod's container."""
    return (f"test-{os.getpid()}", "kubepods", "burstable", f"pod{uid}", CONTAINER)


def step_parts(job: int) -> tuple[str, ...]:
    """Return the folders of a step of Slurm's."""
    return (f"slurm_test-{os.getpid()}", "uid_0", f"job_{job}", "step_0")


@contextmanager
def cgroup(*parts: str, cpus: str) -> Iterator[Path]:
    """Make the cgroup; who puts processes into it ends them before."""
    made = [HIERARCHY.joinpath(*parts[: number + 1]) for number in range(len(parts))]
    mems = (HIERARCHY / "cpuset.mems").read_text()
    ours = [folder for folder in made if not folder.exists()]
    for folder in ours:
        folder.mkdir()
        (folder / "cpuset.mems").write_text(mems)
        is_last = folder == made[-1]
        (folder / "cpuset.cpus").write_text(
            cpus if is_last else (HIERARCHY / "cpuset.cpus").read_text()
        )
    try:
        yield made[-1]
    finally:
        for folder in reversed(ours):
            folder.rmdir()
