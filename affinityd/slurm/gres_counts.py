"""Does slurmd have as many GPUs as Gres= says, and Gres= as many as the node has? Pure.

Source: Slurm's src/interfaces/gres.c (_merge_gres2, _node_config_validate); each fault was seen
with Slurm 22.05, 24.11 and 26.05.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from affinityd.slurm.config.expected import ExpectedNode, written
from affinityd.slurm.config.gpu_types import GpuTypes
from affinityd.slurm.config.slurmd import SlurmdGres
from affinityd.text import count
from affinityd.topology.model import Topology

DRAINED = "slurmctld drains the node (INVALID_REG)"


@dataclass(frozen=True)
class GresCounts:
    """What slurmd has, what slurmctld expects, and the node's GPUs."""

    gres: SlurmdGres
    expected: ExpectedNode | None  #: None: it is not known
    topology: Topology
    types: GpuTypes

    def findings(self) -> Iterator[str]:
        """Yield what is wrong about the node's line in slurm.conf, or is where both differ."""
        expected = self.expected
        if expected is None:
            return
        if expected.counts:
            yield from self._too_few(expected)
            yield from self._too_many(expected)
            yield from self._order(expected)
        elif self.topology.gpus:
            right = written({self._only_type(): len(self.topology.gpus)})
            yield f"Gres= has no gpu: Slurm gives no job the node's GPUs; write Gres={right}"
        cores = len(self.topology.cores)
        has_cores = any(entry.cores is not None for entry in self.gres.entries)
        if has_cores and expected.cores not in {None, cores}:
            yield (
                f"slurmctld counts {count(expected.cores or 0, 'core')}, and the node has {cores}: "
                "Cores= means others there; `slurmd -C` prints the right line"
            )

    def _only_type(self) -> str | None:
        kinds = set(self.types.of.values())
        return kinds.pop() if len(kinds) == 1 else None

    def _too_few(self, expected: ExpectedNode) -> Iterator[str]:
        """Yield the types of which slurmd has fewer GPUs than Gres=."""
        found = self._registered()
        for kind, right in expected.counts.items():
            if found[kind] < right:
                yield (
                    f"Gres={expected.gres} has {_gpus(right, kind)}, and slurmd {found[kind]}: "
                    f"{DRAINED}; write lines for all, or {_change(expected, kind, found[kind])}"
                )

    def _registered(self) -> Counter[str | None]:
        """Return how many GPUs of each type slurmd has; a MIG instance is one."""
        numbers: Counter[str | None] = Counter()
        for entry in self.gres.entries:
            if entry.name == "gpu":
                numbers[entry.kind] += 1 if entry.is_slice else len(entry.files)
        return numbers

    def _too_many(self, expected: ExpectedNode) -> Iterator[str]:
        """Yield the types of which the node has more GPUs than Gres=."""
        gpus = self.topology.gpus
        if any(gpu.mig or gpu.key not in self.types.of for gpu in gpus):
            return
        for kind, there in Counter(self.types.of[gpu.key] for gpu in gpus).items():
            right = expected.counts.get(kind, 0)
            if there > right:
                yield (
                    f"Gres={expected.gres} has {_gpus(right, kind)}, and the node {there}: Slurm "
                    f"gives no job the other {there - right}; {_change(expected, kind, there)}"
                )

    def _order(self, expected: ExpectedNode) -> Iterator[str]:
        """Yield that Slurm's numbers, which go type by type, are not those of the bus."""
        runs = self.types.runs(self.topology.gpus)
        if runs != expected.types and len(runs) == len(set(runs)) > 1:
            right = written(
                {kind: expected.counts[kind] for kind in runs if kind in expected.counts}
            )
            yield (
                f"Gres={expected.gres}: Slurm numbers GPUs type by type in this order, and not as "
                f"they are on the bus; write Gres={right}"
            )


def _gpus(number: int, kind: str | None) -> str:
    return f"{count(number, 'GPU')}{f' of type {kind}' if kind else ''}"


def _change(expected: ExpectedNode, kind: str | None, number: int) -> str:
    """Return how Gres= would have another number of a type."""
    counts = {**expected.counts, kind: number}
    gres = written({kind: number for kind, number in counts.items() if number})
    return f"write Gres={gres}" if gres else "leave gpu out of Gres="
