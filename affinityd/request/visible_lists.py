"""Visible-device lists, read as the drivers read them.

CUDA_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES: one list. ROCm: ROCR_VISIBLE_DEVICES filters and
HIP_VISIBLE_DEVICES indexes what is left, written `ROCR_VISIBLE_DEVICES=…;HIP_VISIBLE_DEVICES=…`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from affinityd.request.devices import ComputeDevice, VisibleDevices

UUID_KINDS = ("GPU-", "MIG-")
ROCM_ORDER = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

ULONG_MAX = 2**64 - 1
#: More digits than ULONG_MAX has: a number cut down to so many is still above it.
ENOUGH_DIGITS = 21

_STRTOUL = re.compile(r"\s*([+-]?)([0-9]+)", re.ASCII)


def read_visible(value: str | None, given: VisibleDevices) -> VisibleDevices:
    """Return what a variable's value leaves visible; None: unset, so all that were given.

    Indices count in `by_index`, UUIDs name any that is `nameable`.
    """
    seen = given
    for part in _lists(value):
        devices = _read_list(part, seen.by_index, seen.nameable)
        by_name = seen.by_name or part.startswith(UUID_KINDS)
        seen = VisibleDevices(dict(enumerate(devices)), devices, by_name)
    return replace(seen, nameable=given.nameable)


def _lists(value: str | None) -> Iterator[str]:
    """Yield the lists that are applied one after the other."""
    if value is None:
        return
    assigned = dict(part.strip().partition("=")[::2] for part in value.split(";"))
    if assigned.keys() <= set(ROCM_ORDER):
        yield from (assigned[name] for name in ROCM_ORDER if name in assigned)
    else:
        yield value


def _read_list(
    value: str, numbered: Mapping[int, ComputeDevice], nameable: Sequence[ComputeDevice]
) -> tuple[ComputeDevice, ...]:
    entries = value.split(",")
    kind = next((kind for kind in UUID_KINDS if value.startswith(kind)), None)
    if kind is not None:
        return tuple(_named(entries, kind, nameable))
    return tuple(numbered[index] for index in _indices(entries, numbered))


def _indices(entries: Sequence[str], present: Collection[int]) -> list[int]:
    """Return a list's indices: it ends at the first that is unreadable, negative or not here."""
    numbers = list(takewhile(lambda number: number >= 0, map(_strtoul, entries)))
    if len(set(numbers)) < len(numbers):
        return []
    return list(takewhile(lambda number: number in present, numbers))


def _strtoul(entry: str) -> int:
    """Read the number that an entry begins with; negative where it begins with none."""
    match = _STRTOUL.match(entry)
    if match is None:
        return -1
    sign, digits = match[1], match[2].lstrip("0") or "0"
    number = min(int(digits[:ENOUGH_DIGITS]), ULONG_MAX)
    return -number if sign == "-" else number


def _named(
    entries: Sequence[str], kind: str, nameable: Sequence[ComputeDevice]
) -> list[ComputeDevice]:
    """Return the devices that UUIDs or unique prefixes name; blanks are part of an entry."""
    names = list(takewhile(lambda entry: entry.startswith(kind), entries))
    found: list[ComputeDevice] = []
    for name in names:
        matches = [device for device in nameable if (device.uuid or "").startswith(name)]
        if len(matches) != 1:
            break
        found += matches
    repeated = len(set(names)) < len(names) or len({device.uuid for device in found}) < len(found)
    return [] if repeated else found
