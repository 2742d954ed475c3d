"""Do the lines of a gres.conf agree with what slurmctld was configured with? Pure.

Source: Slurm's src/interfaces/gres.c (_merge_gres2, _node_config_validate, _foreach_gres_conf);
each fault was seen with Slurm 22.05, 24.11 and 26.05.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from affinityd.slurm.config.expected import Expected, written
from affinityd.slurm.config.gpu_types import Types, by_name, slurms_name
from affinityd.slurm.config.node_config import Configured, GpuLine
from affinityd.text import count, quote
from affinityd.topology.model import Gpu, Topology

DRAINED = "slurmctld drains the node (INVALID_REG)"

Said = Iterator[tuple[GpuLine, str]]


@dataclass(frozen=True)
class Agreement:
    """A node's lines, and what slurmctld expects of them."""

    configured: Configured
    expected: Expected | None  #: None: it is not known
    topology: Topology
    gpus: Mapping[str, Gpu]  #: device file → GPU
    types: Types

    def of_lines(self) -> Said:
        """Yield what is wrong about a line."""
        for line in self.configured.gpus:
            if line.name != "gpu":
                yield line, f"Name={quote(line.name)} is not gpu: {DRAINED}; write Name=gpu"
        if self.expected is None or self.expected.is_mixed:
            yield from self._untyped_among_typed()
        elif self.expected.types:
            yield from self._typed(self.expected)
        elif self.expected.counts:
            yield from self._needlessly_typed(self.expected)

    def of_node(self) -> Iterator[str]:
        """Yield what is wrong about the node's line in slurm.conf, or is where both differ."""
        expected = self.expected
        if expected is None:
            return
        if expected.lacks_gpus:
            yield "GresTypes= has no gpu: Slurm has no GPUs on any node; write GresTypes=gpu"
        if expected.is_mixed:
            yield f"Gres={expected.gres}: slurmd ends where some GPUs have a type and others none"
        elif not expected.counts and self.configured.gpus:
            right = written(Counter(line.kind for line in self.configured.gpus for _ in line.files))
            yield f"Gres= has no gpu: Slurm gives no job the node's GPUs; write Gres={right}"
        else:
            yield from self._amounts(expected)
            yield from self._order(expected)
        cores = len(self.topology.cores)
        has_cores = any(line.cores is not None for line in self.configured.gpus)
        if has_cores and expected.cores not in {None, cores}:
            yield (
                f"slurmctld counts {count(expected.cores or 0, 'core')}, and the node has {cores}: "
                "Cores= means others there; `slurmd -C` prints the right line"
            )

    def _untyped_among_typed(self) -> Said:
        lines = self.configured.gpus
        if any(line.kind for line in lines):
            for line in lines:
                if line.kind is None:
                    yield line, "the line has no Type=, and others have: slurmd ends at that"

    def _typed(self, expected: Expected) -> Said:
        for line in self.configured.gpus:
            right = self._right(line)
            remedy = f"Type={right}" if right else f"the Type= of {' or '.join(expected.types)}"
            if line.kind is None:
                yield line, f"the line has no Type=, and {expected}: {DRAINED}; add {remedy}"
            elif line.kind not in expected.types:
                fault = f"Type={line.kind} is not in {expected}: {DRAINED}"
                yield line, f"{fault}; right is {remedy}"
            elif right not in {None, line.kind}:
                names = ", ".join(sorted({gpu.model or "?" for gpu in self._of(line)}))
                yield line, f"Type={line.kind}, and its GPU is {quote(names)}; right is {remedy}"

    def _needlessly_typed(self, expected: Expected) -> Said:
        for line in self.configured.gpus:
            if line.kind is not None:
                right = written({line.kind: sum(expected.counts.values())})
                fault = f"Type={line.kind} does not count, as {expected} has none"
                remedy = f"leave it out, or write Gres={right} there"
                yield line, f"{fault}: no job can ask for it; {remedy}"

    def _of(self, line: GpuLine) -> list[Gpu]:
        return [self.gpus[file] for file in line.files if file in self.gpus]

    def _right(self, line: GpuLine) -> str | None:
        """Return the type of a line's GPUs; None where it is undecided, or they have several."""
        kinds = {self.types.of.get(gpu.key) for gpu in self._of(line)}
        return kinds.pop() if len(kinds) == 1 and not line.is_slice else None

    def _amounts(self, expected: Expected) -> Iterator[str]:
        """Yield the types of which there are too few or too many, whatever the lines call them."""
        numbers = self._numbers(expected)
        if numbers is None:
            return
        for kind, right in expected.counts.items():
            found = numbers[kind]
            gpus = f"{count(right, 'GPU')}{f' of type {kind}' if kind else ''}"
            fault = f"Gres={expected.gres} has {gpus}, and {self._teller} {found}"
            if found < right:
                yield f"{fault}: {DRAINED}; {self._add(kind)}, or {_change(expected, kind, found)}"
            elif found > right:
                ignored = f"Slurm gives no job the last {found - right}"
                yield f"{fault}: {ignored}; {_change(expected, kind, found)}"

    @property
    def _teller(self) -> str:
        return "AutoDetect" if self.configured.detector else "gres.conf"

    def _add(self, kind: str | None) -> str:
        """Return how Slurm would be told of more GPUs of a type."""
        if kind is None or not self.configured.detector:
            return "add lines for the others"
        names = dict.fromkeys(map(slurms_name, self.topology.gpus))
        return f"call them by a part of their names, {', '.join(names)}"

    def _numbers(self, expected: Expected) -> Counter[str | None] | None:
        """Return how many GPUs of each type Slurm is told of; None where that is not known."""
        if self.configured.detector:
            return None if self.configured.gpus else self._detected(expected)
        numbers: Counter[str | None] = Counter()
        for line in self.configured.gpus:
            kind = line.kind if line.kind in expected.types else self._right(line)
            if expected.types and kind is None:
                return None
            numbers[kind if expected.types else None] += 1 if line.is_slice else len(line.files)
        return numbers

    def _detected(self, expected: Expected) -> Counter[str | None] | None:
        """Return how many GPUs of each type NVIDIA's plugins find; MIG instances are several."""
        gpus = self.topology.gpus
        if not all(gpu.vendor == "nvidia" and gpu.model and not gpu.mig for gpu in gpus):
            return None
        kinds = by_name(gpus, expected.counts) if expected.types else dict.fromkeys(gpus)
        return Counter(kinds.values())

    def _order(self, expected: Expected) -> Iterator[str]:
        """Yield that Slurm's numbers, which go type by type, are not those of the bus."""
        runs = self.types.runs(self.topology.gpus)
        is_fit = self.configured.detector or runs == expected.types
        if not is_fit and len(runs) == len(set(runs)) > 1:
            right = written(
                {kind: expected.counts[kind] for kind in runs if kind in expected.counts}
            )
            yield (
                f"Gres={expected.gres}: Slurm numbers GPUs type by type in this order, and not as "
                f"they are on the bus; write Gres={right}"
            )


def _change(expected: Expected, kind: str | None, number: int) -> str:
    """Return how Gres= would have another number of a type."""
    counts = {**expected.counts, kind: number}
    gres = written({kind: number for kind, number in counts.items() if number})
    return f"write Gres={gres}" if gres else "leave gpu out of Gres="
