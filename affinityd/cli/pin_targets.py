"""What `affinityd pin` pins: a process and its descendants, but for threads pinned on purpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from affinityd.cpuset import CpuSet
from affinityd.linux.pinning import CHANGE, LEFT_ALONE, Rule, Target
from affinityd.linux.processes import descendants, mask_of, stat_of
from affinityd.linux.procstat import Stat

#: The CPUs of a descendant that has a place of its own, as a launcher's ranks; None: its parent's.
OwnCpus = Callable[[Stat], CpuSet | None]


class PinTargets:
    """A process and, with `own_cpus`, its descendants: what is asked for each, and by which rule.

    A thread is pinned on purpose if its mask differs from what the process's main thread had
    before. A descendant is, with all of its threads, if its main thread was confined to other CPUs
    than the process was. By `force` nothing is left alone.
    """

    def __init__(
        self, process: Stat, cpus: CpuSet, own_cpus: OwnCpus | None = None, *, force: bool = False
    ) -> None:
        """Read the mask that the process has before it is pinned."""
        self._process = process
        self._cpus = cpus
        self._own_cpus = own_cpus
        self._force = force
        self._before = mask_of(process.number) or frozenset()
        self._main_masks: dict[int, CpuSet | None] = {}  # each process's, when first seen

    def __call__(self) -> Iterator[Target]:
        """Yield the processes that are there now, parents before children."""
        root, now = self._process, stat_of(self._process.number)
        if now is None or now.start != root.start:  # another process has its number by now
            return
        yield Target(root.number, root.start, self._cpus, self._rule(root.number))
        if self._own_cpus is None:
            return
        asked = {root.number: self._cpus}
        for child in descendants(root.number):
            pid = child.number
            asked[pid] = self._own_cpus(child) or asked.get(child.parent, self._cpus)
            yield Target(pid, child.start, asked[pid], self._rule(pid))

    def _rule(self, pid: int) -> Rule:
        main = self._main_masks.setdefault(pid, mask_of(pid))
        # One that may run wherever the process might was not confined, whatever it has besides.
        is_wide = main is not None and main >= self._before

        def rule(mask: CpuSet, given: Collection[CpuSet]) -> str:
            usual = (self._before, *given)
            is_confined = main not in usual and not is_wide
            is_on_purpose = is_confined or (mask != main and mask not in usual)
            return LEFT_ALONE if is_on_purpose and not self._force else CHANGE

        return rule
