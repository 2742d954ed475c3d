"""The jobs that run in the virtual machine, and where its GPUs' device files are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.e2e.vm.hardware import GPU_NODES

#: Of /dev/nvidiaN, which is not the GPU's index, nor on its node.
MINORS = tuple(reversed(range(len(GPU_NODES))))

NODE, UNIQUE = "node", "unique-contiguous"


@dataclass(frozen=True)
class Job:
    """A step that is a job of its own."""

    words: str  #: srun's options
    modes: tuple[str, ...] = (NODE, UNIQUE)  #: AFFINITYD_MODE: it runs once in each
    cpus: str = "none"  #: AFFINITYD_CPUS: near ones alone, however few; "": Slurm says it
    asked: int = 0  #: CPUs that each task keeps, more than are near

    @property
    def tasks(self) -> int:
        """How many there are, by -n."""
        return int(self.words.partition(" ")[0].removeprefix("-n"))

    def env(self, mode: str) -> Mapping[str, str]:
        """Return the environment of the job in a mode."""
        return {"AFFINITYD_MODE": mode} | ({"AFFINITYD_CPUS": self.cpus} if self.cpus else {})


#: A NUMA node has two cores, and two GPUs: hence so many CPUs for so few tasks.
JOBS = {
    "tasks that deal out GPUs of two packages": Job("-n2 --gres=gpu:2 -c16"),
    "tasks that deal out GPUs, some without a near CPU": Job("-n4 --gres=gpu:4 -c7", (UNIQUE,)),
    "too few CPUs for a choice": Job("-n2 --gres=gpu:2", (NODE,)),
    "a GPU for each task": Job("-n4 --gpus-per-task=1 -c4"),
    "a GPU for two tasks": Job("-n4 --gres=gpu:2 --gpu-bind=single:2 -c7"),
    "all GPUs for all": Job("-n2 --gres=gpu:2 --gpu-bind=none -c8", (UNIQUE,)),
    "a map": Job("-n2 --gres=gpu:2 --gpu-bind=map_gpu:1,0 -c8 --cpu-bind=cores"),
    "a map of one GPU": Job("-n2 --gres=gpu:2 --gpu-bind=map_gpu:0,0 -c12", (UNIQUE,)),
    "a lone task": Job("-n1 --gres=gpu:2 -c16"),
    "all that its job has": Job("-n2 --gres=gpu:2 -c8", cpus="", asked=8),
    "a part of what its job has": Job("-n1 --gres=gpu:1 -c16", cpus="6", asked=6),
}
