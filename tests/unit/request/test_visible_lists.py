"""Visible-device lists, read as the drivers read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.request.devices import ComputeDevice, VisibleDevices
from affinityd.request.visible_devices import read_visible
from affinityd.topology.model import Gpu
from tests.support.tables import rows


def named(index: int, uuid: str | None) -> ComputeDevice:
    return ComputeDevice(Gpu(index, "nvidia", "0000:00:00.0", None, uuid=uuid))


#: 0 and 1 have the beginning of their UUIDs in common; 3 has none.
GPUS = (named(0, "GPU-aa01"), named(1, "GPU-aa02"), named(2, "GPU-bb03"), named(3, None))
INSTANCES = (ComputeDevice(GPUS[0].gpu, "MIG-cc04"), ComputeDevice(GPUS[0].gpu, "MIG-cc05"))
EVERYTHING = (*GPUS, *INSTANCES)
GIVEN = VisibleDevices(dict(enumerate(GPUS)), EVERYTHING, by_name=False)


def seen(value: str | None) -> list[int]:
    """Return the devices that a value leaves, by their place in EVERYTHING."""
    devices = read_visible(value, GIVEN).by_index.values()
    return [EVERYTHING.index(device) for device in devices]


@pytest.mark.parametrize(
    ("value", "expected"),
    rows("""
empty: none                         |             |
the list's order counts             | 2,0         | 2 0
what follows a number is ignored    | 2 ,0 1      | 2 0
a sign, zeros and a tail            | 1gpu2,+2,03 | 1 2 3
a negative index ends the list      | 0,-1,1      | 0
nothing ends the list               | 0,,1        | 0
two signs end the list              | 0,+-1       | 0
a digit of another script ends it   | 0,٢         | 0
a UUID among indices ends the list  | 0,GPU-bb    | 0
a repeated index: none              | 0,1,0       |
repeated out of range: none         | 0,9,9       |
repeated after the end is not seen  | 0,-1,0      | 0
below it they are two numbers       | 0,10000000000000000000,10000000000000000001 | 0
UUIDs and unique prefixes           | GPU-aa02,GPU-bb | 1 2
an ambiguous prefix ends the list   | GPU-bb,GPU-aa,GPU-aa01 | 2
an unknown one ends it there        | GPU-bb,GPU-xx,GPU-aa01 | 2
an index among UUIDs ends the list  | GPU-bb,0    | 2
blanks are part of a UUID           | GPU-bb, GPU-aa01 | 2
a repeated UUID: none               | GPU-bb,GPU-bb |
repeated, though unknown: none      | GPU-bb,GPU-xx,GPU-xx |
two names of one device: none       | GPU-bb,GPU-bb03 |
MIG instances are named alike       | MIG-cc04,MIG-cc05 | 4 5
an instance among GPUs              | GPU-bb,MIG-cc04 | 2
ROCR alone                          | ROCR_VISIBLE_DEVICES=2,0 | 2 0
with an assignment for its value    | ROCR_VISIBLE_DEVICES=1=x | 1
HIP indexes ROCR's                  | ROCR_VISIBLE_DEVICES=3,1,0;HIP_VISIBLE_DEVICES=2,0 | 0 3
in either order, with a blank       | HIP_VISIBLE_DEVICES=2,0; ROCR_VISIBLE_DEVICES=3,1,0 | 0 3
HIP names nothing that ROCR left out | ROCR_VISIBLE_DEVICES=0,1;HIP_VISIBLE_DEVICES=GPU-bb |
nor counts beyond it                | ROCR_VISIBLE_DEVICES=0,1;HIP_VISIBLE_DEVICES=2 |
ROCR empty: none                    | ROCR_VISIBLE_DEVICES=;HIP_VISIBLE_DEVICES=0 |
HIP empty: none                     | ROCR_VISIBLE_DEVICES=0;HIP_VISIBLE_DEVICES= |
a semicolon ends a number           | 2;3         | 2
"""),
)
def test_a_list_is_read_as_by_the_driver(value: str, expected: str) -> None:
    assert seen(value) == list(map(int, expected.split()))


def test_blanks_before_indices_are_skipped_and_their_size_is_that_of_a_long() -> None:
    assert (seen(None), seen(" 2, \t0"), seen("0,\u00a01")) == ([0, 1, 2, 3], [2, 0], [0])
    assert seen(" GPU-bb") == []  # so it is a list of indices
    above = "0," + "9" * 5000 + ",1" + "0" * 5000  # above a long all are one number
    assert (seen(above), seen("0," + "0" * 5000 + "1")) == ([], [0, 1])


def test_a_numbering_by_name_is_told_from_one_by_index() -> None:
    by_name = ("GPU-bb", "MIG-cc04", "ROCR_VISIBLE_DEVICES=GPU-bb;HIP_VISIBLE_DEVICES=0")
    assert all(read_visible(it, GIVEN).by_name for it in by_name)
    assert not any(read_visible(it, GIVEN).by_name for it in (None, "0"))


def test_an_index_that_a_lost_gpu_has_left_ends_the_list() -> None:
    gap = VisibleDevices({0: GPUS[0], 2: GPUS[2]}, EVERYTHING, by_name=False)
    assert list(read_visible("2,0", gap).by_index.values()) == [GPUS[2], GPUS[0]]
    assert list(read_visible("0,1,2", gap).by_index.values()) == [GPUS[0]]


@given(st.text())
def test_no_text_is_too_odd_to_read(value: str) -> None:
    assert len(set(seen(value))) == len(seen(value)) <= len(EVERYTHING)
