"""Jobs in the virtual machine, for a daemon to keep in place: trainings, and pods.

NVIDIA's library says from facts who uses which GPU; processes, cgroups and memory are real.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from affinityd.linux.processes import thread_ids
from tests.e2e.vm.driver import tell
from tests.e2e.vm.enforced import TRAININGS, Training
from tests.e2e.vm.holders import SLURM
from tests.e2e.vm.inside import nested
from tests.e2e.vm.mending import children, filled, thread_masks
from tests.e2e.vm.stand_ins import program, running

FAR_MEMORY = ("taskset", "-c", "8-11")
WORKERS = 2  #: of each rank


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
    """Run the trainings; give who is who."""
    with ExitStack() as stack:
        for job in ("job_7", "job_8", "job_9"):  # what Slurm has beside each step's tasks
            keeper = nested(f"{SLURM}/{job}/step_0/slurm", None)
            stack.enter_context(running(program("slurmstepd"), group=keeper))
        told, tell = os.pipe()
        ranks = [_rank(_group(it), tell) for it in TRAININGS.values()]
        for _ in range(len(ranks) * (1 + WORKERS)):
            os.read(told, 1)
        jobs = _who_is_who(ranks)
        try:
            yield jobs
        finally:
            for pid in jobs.pids.values():
                os.kill(pid, signal.SIGKILL)


def _rank(group: Path, tell: int) -> int:
    """Run a rank in a cgroup: a fork of this process, with a thread and workers; give its pid."""
    pid = os.fork()
    if pid == 0:
        (group / "cgroup.procs").write_text("0")  # whoever writes it
        for _ in range(WORKERS):
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
def pod(name: str, gpu: int, path: str) -> Iterator[Running]:
    """Run a pod's process that has filled memory far away."""
    with filled(*FAR_MEMORY) as pid:
        (nested(path, "8-11,28-31") / "cgroup.procs").write_text(pid)
        yield Running({name: int(pid)}, {int(pid): [gpu]})


def say(*those: Running) -> None:
    """Have NVML say which process uses which GPUs."""
    tell({pid: gpus for it in those for pid, gpus in it.gpus.items()})


def _who_is_who(ranks: Sequence[int]) -> Running:
    """Return that, with a thread pinned on purpose where one is to be."""
    pids = dict(zip(TRAININGS, ranks, strict=True))
    workers = {
        f"{name}'s worker {at}": worker
        for name, pid in pids.items()
        for at, worker in enumerate(children(pid))
    }
    for name, it in TRAININGS.items():
        if it.on_purpose is not None:
            _, thread = sorted(thread_ids(pids[name]))
            os.sched_setaffinity(thread, {it.on_purpose})
    return Running({**pids, **workers}, {pids[name]: it.gpus for name, it in TRAININGS.items()})


def _group(training: Training) -> Path:
    """Make the cgroups of a rank: the cpuset is its job's, as Slurm has it."""
    nested(training.job, training.cpuset)
    return nested(f"{training.job}/step_0/user/task_{training.task}", None)
