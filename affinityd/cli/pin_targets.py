"""The targets of `affinityd pin`: a process and its descendants, less threads pinned on purpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from affinityd.cpuset import CpuSet
from affinityd.linux.pinning import CHANGE, LEFT_ALONE, Rule, Target
from affinityd.linux.processes import Stat, descendants, mask_of, stat_of

#: The CPUs of a descendant with its own place, as a launcher's ranks; None: its parent's.
OwnCpus = Callable[[Stat], CpuSet | None]


class PinTargets:
    """A process and, with `own_cpus`, its descendants: the CPUs of each, and its rule.

    A thread is pinned on purpose if its mask differs from the process's main thread's
    before. A descendant is, with all of its threads, if its main thread was confined to other CPUs
    than the process was. With `force` no thread is left alone.
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
        self._targets: dict[int, Target] = {}  # as they were when first seen

    def __call__(self) -> Iterator[Target]:
        """Yield the processes that are there now, parents before children."""
        root, now = self._process, stat_of(self._process.number)
        if now is None or now.start != root.start:  # another process has its number by now
            return
        yield self._target(root)
        if self._own_cpus is not None:
            yield from map(self._target, descendants(root.number))

    def _target(self, process: Stat) -> Target:
        known = self._targets.get(process.number)
        if known is None or known.start != process.start:
            cpus, rule = self._asked(process), self._rule(mask_of(process.number))
            known = Target(process.number, process.start, cpus, rule)
            self._targets[process.number] = known
        return known

    def _asked(self, process: Stat) -> CpuSet:
        """Return the CPUs of a process: its own place's, else its parent's."""
        if process.number == self._process.number or self._own_cpus is None:
            return self._cpus
        parent = self._targets.get(process.parent)
        return self._own_cpus(process) or (self._cpus if parent is None else parent.cpus)

    def _rule(self, main: CpuSet | None) -> Rule:
        """Return the rule for a process, by the mask of its main thread when first seen."""
        # One that may run on all CPUs of the first process was not confined.
        is_wide = main is not None and main >= self._before

        def rule(mask: CpuSet, given: Collection[CpuSet]) -> str:
            usual = (self._before, *given)
            is_confined = main not in usual and not is_wide
            is_on_purpose = is_confined or (mask != main and mask not in usual)
            return LEFT_ALONE if is_on_purpose and not self._force else CHANGE

        return rule
