"""The result of `affinityd slurm check`, as lines or as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from affinityd.slurm.check import GresFinding
from affinityd.text import count


@dataclass(frozen=True)
class CheckReport:
    """The errors of a node's GPUs in Slurm and of its jobs, and the checks not possible."""

    node: str
    gpus: int
    faults: tuple[str, ...]  #: why slurmd does not take gres.conf
    findings: tuple[GresFinding, ...]
    far_jobs: tuple[str, ...]  #: errors of jobs
    jobs: int  #: how many with GPUs were judged
    notes: tuple[str, ...]
    is_judged: bool = True  #: each GPU that slurmd has was

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.faults or self.findings or self.far_jobs)

    @property
    def exit_code(self) -> int:
        """0: nothing is wrong, 1: something is, 2: slurmd does not take gres.conf."""
        return 2 if self.faults else int(not self.is_clean)

    def lines(self) -> Iterator[str]:
        """Yield a line for each finding, and the sum."""
        yield from (f"slurmd: {fault}" for fault in self.faults)
        yield from map(str, self.findings)
        yield from self.far_jobs
        yield from (f"note: {note}" for note in self.notes)
        yield self._sum()

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "node": self.node,
            "fits": self.is_clean and self.is_judged,
            "faults": list(self.faults),
            "findings": [asdict(finding) for finding in self.findings],
            "jobs": {"judged": self.jobs, "findings": list(self.far_jobs)},
            "notes": list(self.notes),
        }

    def _sum(self) -> str:
        if self.is_clean:
            if not self.is_judged:
                return "nothing wrong was found, but not every GPU could be judged"
            near = f"; {count(self.jobs, 'running job')} near the GPUs" if self.jobs else ""
            return f"gres.conf fits this node{near}"
        amounts = (
            (len(self.faults), "error", " of slurmd"),
            (len(self.findings), "finding", ""),
            (len(self.far_jobs), "finding", " about jobs"),
        )
        parts = (f"{count(amount, noun)}{of}" for amount, noun, of in amounts if amount)
        return ", ".join([count(self.gpus, "GPU"), *parts])
