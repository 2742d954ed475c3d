"""The type of each GPU of a node: the right `Type=`.

slurmctld's configuration has the types. The type of each GPU follows from the GPUs'
names as in Slurm's AutoDetect: a type is a part of the name, in any case, with _ for blanks.

Source: Slurm's src/plugins/gres/gpu/gres_gpu.c (_normalize_sys_gres_types).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from affinityd.errors import InvalidRequestError
from affinityd.slurm.devices import Key, device_file
from affinityd.slurm.expected import ExpectedNode, TypeCounts
from affinityd.text import quote
from affinityd.topology.model import Gpu

#: The types of such GPUs, a100_3g.20gb, are those of the instances.
SLICES = "MIG instances are GPUs to Slurm, which AutoDetect=nvml in gres.conf finds"

Present = Mapping[str, str | None]  #: device file → type; None: its line has none


@dataclass(frozen=True)
class GpuTypes:
    """The types of a node's GPUs."""

    of: Mapping[Key, str | None]  #: None: no type. A GPU that is left out is undecided
    why: str | None = None  #: why GPUs are left out

    def runs(self, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        """Return the types along the GPUs, neighbors' once; () where one is undecided."""
        kinds = [self.of.get(gpu.key) for gpu in gpus]
        return tuple(kind for kind, _ in groupby(kinds) if kind) if all(kinds) else ()


def types(
    gpus: Sequence[Gpu],
    expected: ExpectedNode | None,
    present: Present,
    said: Sequence[str] = (),
) -> GpuTypes:
    """Return the types of slurmctld's configuration, else the given ones, else slurmd's.

    `said`: one type for all GPUs, or one for each in their order. Raises InvalidRequestError for a
    number of types that is neither, and for a type that slurmctld was not configured with.
    """
    if said:
        return _said(gpus, expected, said)
    lines = {gpu.key: kind for gpu in gpus if (kind := present.get(device_file(gpu) or ""))}
    if expected is None:
        kinds = {*present.values()}
        if len(kinds) > 1:
            return GpuTypes(lines, "slurmd has several types, and none for it")
        return _all(gpus, next(iter(kinds), None))
    if any(gpu.mig and not _possible(gpu, expected.types) for gpu in gpus) and expected.types:
        return GpuTypes({}, SLICES)
    if len(expected.counts) < 2:  # noqa: PLR2004
        return _all(gpus, next(iter(expected.counts), None))
    found = lines if _agree(lines, gpus, expected) else _by_name(gpus, expected.counts)
    return GpuTypes(found, f"{expected} has several types, and no GPU's name tells which it is")


def _all(gpus: Sequence[Gpu], kind: str | None) -> GpuTypes:
    return GpuTypes({gpu.key: kind for gpu in gpus})


def _said(gpus: Sequence[Gpu], expected: ExpectedNode | None, said: Sequence[str]) -> GpuTypes:
    if len(said) not in {1, len(gpus)}:
        raise InvalidRequestError(
            f"--type names {len(said)} types, and there are {len(gpus)} GPUs; name one for all, or "
            "one for each"
        )
    strange = [kind for kind in said if expected and kind not in expected.types]
    if strange:
        raise InvalidRequestError(
            f"--type {quote(strange[0])} is not in {expected}, and slurmctld drains a node with "
            "other types; change that first, or leave --type out"
        )
    kinds = said if len(said) > 1 else [*said] * len(gpus)
    return GpuTypes({gpu.key: kind for gpu, kind in zip(gpus, kinds, strict=True)})


def _agree(lines: Mapping[Key, str], gpus: Sequence[Gpu], expected: ExpectedNode) -> bool:
    """Return whether the types of the present lines are those of Gres=, and fit the GPUs' names.

    A type that is a part of no GPU's name may be any GPU's.
    """
    named = {kind: [gpu.key for gpu in gpus if _possible(gpu, [kind])] for kind in expected.types}
    is_whole = Counter(lines.values()) == expected.counts
    return is_whole and all(key in named[kind] or not named[kind] for key, kind in lines.items())


def _by_name(gpus: Sequence[Gpu], counts: TypeCounts) -> Mapping[Key, str]:
    """Return the types that are parts of the GPUs' names: the longest that has a GPU left.

    Where each type has its number, GPUs beyond them have the longest.
    """
    left = Counter(counts)
    kinds = {gpu.key: _possible(gpu, [kind for kind in counts if kind]) for gpu in gpus}
    found: dict[Key, str] = {}
    for gpu in sorted(gpus, key=_slurms_order):
        kind = next((kind for kind in kinds[gpu.key] if left[kind] > 0), None)
        if kind is not None:
            left[kind] -= 1
            found[gpu.key] = kind
    more = {} if any(left.values()) else {key: names[0] for key, names in kinds.items() if names}
    return {**more, **found}


def _slurms_order(gpu: Gpu) -> tuple[int, str, int]:
    """Return the key by which Slurm sorts GPUs before it gives types: longest names first."""
    name = gpu.model or ""
    return -len(name), name, gpu.index if gpu.minor is None else gpu.minor


def _possible(gpu: Gpu, kinds: Collection[str]) -> list[str]:
    """Return the types that are parts of a GPU's name, the longest first."""
    name = (gpu.model or "").replace(" ", "_").lower()  # as AutoDetect: nvidia_a100-sxm4-40gb
    return sorted((kind for kind in kinds if kind.lower() in name), key=lambda it: (-len(it), it))
