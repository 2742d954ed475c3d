"""The job, pod or container that a process is part of."""

from __future__ import annotations

from dataclasses import dataclass

SLURM, KUBERNETES = "slurm", "kubernetes"


@dataclass(frozen=True)
class Job:
    """The job or pod of a process, by its cgroup's path."""

    scheduler: str  #: SLURM or KUBERNETES
    id: str  #: Slurm's job number, or the pod's uid with its dashes

    @property
    def names(self) -> tuple[str, str, str]:
        """The namespace, pod and container, where kubelet names them; else empty ones."""
        return "", "", ""


@dataclass(frozen=True)
class PodContainer(Job):
    """A container of a pod, as kubelet names it; it equals no Job."""

    namespace: str
    pod: str
    container: str

    @property
    def names(self) -> tuple[str, str, str]:
        """The namespace, pod and container."""
        return self.namespace, self.pod, self.container


@dataclass(frozen=True)
class Membership:
    """The job of a process, and its part of it; a container may be of no job."""

    job: Job | None = None
    step: str | None = None  #: Slurm's: "0", "batch", "extern", "interactive"
    container: str | None = None  #: the runtime's id of it
    outside: str | None = None  #: of the container in which Slurm itself runs

    @property
    def owner(self) -> str | None:
        """Its job, else its container, as people read it: `slurm 7`, `container cd34cd34cd34`."""
        if self.job is not None:
            return f"{self.job.scheduler} {self.job.id}"
        return f"container {self.container[:12]}" if self.container else None
