"""What `affinityd slurm check` found, as lines for a person or as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from affinityd.slurm.check import Finding
from affinityd.slurm.config.gres_parser import Fault
from affinityd.text import count


@dataclass(frozen=True)
class Report:
    """What is wrong about a node's gres.conf and its jobs, and what could not be judged."""

    node: str
    gpus: int
    malformed: tuple[Fault, ...]
    findings: tuple[Finding, ...]
    far_jobs: tuple[str, ...]  #: what is wrong about jobs
    jobs: int  #: how many with GPUs were judged
    notes: tuple[str, ...]
    is_judged: bool = True  #: each line of a GPU was

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.malformed or self.findings or self.far_jobs)

    @property
    def exit_code(self) -> int:
        """0: nothing is wrong, 1: something is, 2: not every line could be read."""
        return 2 if self.malformed else int(not self.is_clean)

    def lines(self) -> Iterator[str]:
        """Yield a line for each finding, and the sum."""
        yield from (f"{fault.place}: {fault.text}" for fault in self.malformed)
        for finding in self.findings:
            yield finding.text if finding.place is None else f"{finding.place}: {finding.text}"
        yield from self.far_jobs
        yield from (f"note: {note}" for note in self.notes)
        yield self._sum()

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "node": self.node,
            "fits": self.is_clean and self.is_judged,
            "malformed": [{"place": it.place, "text": it.text} for it in self.malformed],
            "findings": [{"place": it.place, "text": it.text} for it in self.findings],
            "jobs": {"judged": self.jobs, "findings": list(self.far_jobs)},
            "notes": list(self.notes),
        }

    def _sum(self) -> str:
        if self.is_clean:
            if not self.is_judged:
                return "nothing wrong was found, but not every line could be judged"
            near = f"; {count(self.jobs, 'running job')} near the GPUs" if self.jobs else ""
            return f"gres.conf fits this node{near}"
        wrong = {it.place for it in self.findings if it.place is not None}
        amounts = {
            "line{} malformed": len(self.malformed),
            "line{} wrong": len(wrong),
            "GPU{} without a line": sum(it.place is None for it in self.findings),
            "finding{} about jobs": len(self.far_jobs),
        }
        parts = (
            f"{amount} {words.format('' if amount == 1 else 's')}"
            for words, amount in amounts.items()
            if amount
        )
        return ", ".join([count(self.gpus, "GPU"), *parts])
