"""Checks the number of GPUs: slurmd's against Gres=, and that against the node. Pure.

Source: Slurm's src/interfaces/gres.c (_merge_gres2, _node_config_validate); each fault was seen
with Slurm 22.05, 24.11 and 26.05.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from affinityd.slurm.expected import ExpectedNode, written
from affinityd.slurm.gres_conf import GresConf
from affinityd.slurm.slurmd import SlurmdGres
from affinityd.text import count

DRAINED = "slurmctld drains the node (INVALID_REG)"


def miscounts(expected: ExpectedNode, gres: SlurmdGres, right: GresConf) -> Iterator[str]:
    """Yield the errors of the node's line in slurm.conf, and how it differs from gres.conf."""
    gpus = right.topology.gpus
    if expected.counts:
        yield from _too_few(expected, gres)
        yield from _too_many(expected, right)
        yield from _order(expected, right)
    elif gpus:
        kinds = set(right.types.of.values())
        of_all = written({kinds.pop() if len(kinds) == 1 else None: len(gpus)})
        yield f"Gres= has no gpu: Slurm gives no job the node's GPUs; write Gres={of_all}"
    cores = len(right.topology.cores)
    has_cores = any(entry.cores is not None for entry in gres.entries)
    if has_cores and expected.cores not in {None, cores}:
        yield (
            f"slurmctld counts {count(expected.cores or 0, 'core')}, and the node has {cores}: "
            "it takes Cores= for other cores; write the node's line as `slurmd -C` prints it"
        )


def _too_few(expected: ExpectedNode, gres: SlurmdGres) -> Iterator[str]:
    """Yield the types of which slurmd has fewer GPUs than Gres=; a MIG instance is one."""
    found: Counter[str | None] = Counter()
    for entry in gres.entries:
        if entry.name == "gpu":
            found[entry.kind] += 1 if entry.is_slice else len(entry.files)
    for kind, wanted in expected.counts.items():
        if found[kind] < wanted:
            yield (
                f"Gres={expected.gres} has {_gpus(wanted, kind)}, and slurmd {found[kind]}: "
                f"{DRAINED}; write lines for all, or {_change(expected, kind, found[kind])}"
            )


def _too_many(expected: ExpectedNode, right: GresConf) -> Iterator[str]:
    """Yield the types of which the node has more GPUs than Gres=."""
    gpus, kinds = right.topology.gpus, right.types.of
    if any(gpu.mig or gpu.key not in kinds for gpu in gpus):
        return
    for kind, there in Counter(kinds[gpu.key] for gpu in gpus).items():
        wanted = expected.counts.get(kind, 0)
        if there > wanted:
            yield (
                f"Gres={expected.gres} has {_gpus(wanted, kind)}, and the node {there}: Slurm "
                f"gives no job the other {there - wanted}; {_change(expected, kind, there)}"
            )


def _order(expected: ExpectedNode, right: GresConf) -> Iterator[str]:
    """Yield an error if Slurm's numbers, type by type, are not those of the bus."""
    runs = right.types.runs(right.topology.gpus)
    if runs != expected.types and len(runs) == len(set(runs)) > 1:
        gres = written({kind: expected.counts[kind] for kind in runs if kind in expected.counts})
        yield (
            f"Gres={expected.gres}: Slurm numbers GPUs in the order of these types, which is not "
            f"their order on the bus; write Gres={gres}"
        )


def _gpus(number: int, kind: str | None) -> str:
    return f"{count(number, 'GPU')}{f' of type {kind}' if kind else ''}"


def _change(expected: ExpectedNode, kind: str | None, number: int) -> str:
    """Return how Gres= would have another number of a type."""
    counts = {**expected.counts, kind: number}
    gres = written({kind: number for kind, number in counts.items() if number})
    return f"write Gres={gres}" if gres else "leave gpu out of Gres="
