"""Jobs in the virtual machine, for a daemon to keep in place: a training, and pods.

NVIDIA's library says from facts who uses which GPU; processes, cgroups and memory are real.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.e2e.vm.driver import tell
from tests.e2e.vm.enforced import FAMILY, JOB, RANKS, WIDE
from tests.e2e.vm.inside import nested
from tests.e2e.vm.mending import children, filled, thread_masks
from tests.e2e.vm.stand_ins import program, running

FAR_MEMORY = ("taskset", "-c", "8-11")


@dataclass(frozen=True)
class Running:
    """What runs, and the GPUs that each of it uses."""

    pids: Mapping[str, int]  #: by name: those that use GPUs, and their workers
    gpus: Mapping[int, Sequence[int]]  #: by pid

    def masks(self) -> dict[str, list[str]]:
        """Return the masks of the threads of each."""
        return {name: thread_masks(pid) for name, pid in self.pids.items()}

    def fits(self, cpulists: Mapping[str, str]) -> bool:
        """Whether those that are named run there, with all of their threads."""
        return all({*thread_masks(self.pids[it])} == {there} for it, there in cpulists.items())


@contextmanager
def trained() -> Iterator[Running]:
    """Run a job of Slurm's, whose cpuset is the limit of all of its tasks; give who is who."""
    nested(JOB, WIDE)
    with running(program("slurmstepd"), group=nested(f"{JOB}/step_0/slurm", None)):
        told, tell = os.pipe()
        groups = (nested(f"{JOB}/step_0/user/task_{rank}", None) for rank in range(RANKS))
        ranks = [_rank(group, tell) for group in groups]
        for _ in range(RANKS * len(FAMILY)):
            os.read(told, 1)
        pids = {
            f"rank {rank}{whose}": its
            for rank, pid in enumerate(ranks)
            for whose, its in zip(FAMILY, (pid, *children(pid)), strict=True)
        }
        try:
            yield Running(pids, {pid: [gpu] for gpu, pid in enumerate(ranks)})
        finally:
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)


def _rank(group: Path, tell: int) -> int:
    """Run a rank in a cgroup: a fork of this process, with a thread and workers; give its pid."""
    pid = os.fork()
    if pid == 0:
        (group / "cgroup.procs").write_text("0")  # whoever writes it
        for _ in FAMILY[1:]:
            if os.fork() == 0:
                _idle(tell)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        _idle(tell)
    return pid


def _idle(tell: int) -> NoReturn:
    os.write(tell, b".")
    while True:
        signal.pause()


@contextmanager
def pod(gpu: int, path: str) -> Iterator[Running]:
    """Run a pod's process that has filled memory far away."""
    with filled(*FAR_MEMORY) as pid:
        (nested(path, "8-11,28-31") / "cgroup.procs").write_text(pid)
        yield Running({"pod": int(pid)}, {int(pid): [gpu]})


def say(*those: Running) -> None:
    """Have NVML say which process uses which GPUs."""
    tell({pid: gpus for it in those for pid, gpus in it.gpus.items()})
