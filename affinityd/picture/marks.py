"""The marks on a machine: reserved and disallowed CPUs, and the ranks of a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from affinityd.cpuset import CpuSet, format_list
from affinityd.request.reply import Reply
from affinityd.text import count

COLORS = 8  #: in picture.css: .r0 to .r7
LETTERS = 6  #: below a core


def color(rank: int) -> str:
    """Return the CSS class of a rank: with one more rank a GPU, its ranks differ."""
    return f"r{(rank + rank // COLORS) % COLORS}"


@dataclass(frozen=True)
class Marks:
    """The marks; by default there are none."""

    reserved: CpuSet = frozenset()
    allowed: CpuSet | None = None  #: by the plan's request; None: all
    ranks: Mapping[int, Collection[int]] = field(default_factory=dict)  #: CPU → ranks, ascending
    legend: tuple[tuple[int, str], ...] = ()  #: ranks, and a line for each

    def of_cpu(self, cpu: int) -> str:
        """Return the CSS classes of a CPU."""
        ranks = self.ranks.get(cpu)
        words = ["cpu"]
        if cpu in self.reserved:
            words.append("reserved")
        elif self.allowed is not None and cpu not in self.allowed:
            words.append("disallowed")
        return " ".join([*words, *([color(min(ranks))] if ranks else [])])

    def of_core(self, cpus: Collection[int]) -> str:
        """Return the ranks of a core, as short as its width: r0, r0-1; empty: none."""
        ranks = {rank for cpu in cpus for rank in self.ranks.get(cpu, ())}
        text = f"r{format_list(ranks)}" if ranks else ""
        return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def marks_of(reply: Reply, reserved: CpuSet) -> Marks:
    """Return the marks of a plan."""
    ranks: dict[int, list[int]] = {}
    for rank in reply.ranks:
        for cpu in rank.cpus:
            ranks.setdefault(cpu, []).append(rank.rank)
    lines = (
        f"rank {it.rank}: GPU {it.gpu.index}, {it.locality}, {count(it.physical_cores, 'core')}, "
        f"CPUs {format_list(it.cpus)}"
        for it in reply.ranks
    )
    legend = tuple(zip((it.rank for it in reply.ranks), lines, strict=True))
    return Marks(reserved, reply.allowed, ranks, legend)
