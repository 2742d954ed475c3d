"""Real cpusets for tests: cgroups of this machine's v1 hierarchy, some named as by schedulers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HIERARCHY = Path("/sys/fs/cgroup/cpuset")
CONTAINER = "c0de" * 16

needs_cpuset = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(HIERARCHY, os.W_OK),
    reason="it takes root, and a cgroup v1 cpuset that can be written",
)


def pod_parts(uid: str) -> tuple[str, ...]:
    return (f"test-{os.getpid()}", "kubepods", "burstable", f"pod{uid}", CONTAINER)


def step_parts(job: int) -> tuple[str, ...]:
    return (f"slurm_test-{os.getpid()}", "uid_0", f"job_{job}", "step_0")


@contextmanager
def cgroup(*parts: str, cpus: str | None = None) -> Iterator[Path]:
    """Make a cgroup with these CPUs, or with all; its processes must end before the block ends."""
    made = [HIERARCHY.joinpath(*parts[: number + 1]) for number in range(len(parts))]
    ours = [folder for folder in made if not folder.exists()]
    for folder in ours:
        folder.mkdir()
        for file in ("cpuset.mems", "cpuset.cpus"):
            (folder / file).write_text((HIERARCHY / file).read_text())
    if cpus is not None:
        (made[-1] / "cpuset.cpus").write_text(cpus)
    try:
        yield made[-1]
    finally:
        for folder in reversed(ours):
            folder.rmdir()


@contextmanager
def cpuset() -> Iterator[Path]:
    with cgroup(f"test-{os.getpid()}") as folder:
        yield folder
