"""Visible-device lists, read as the drivers read them."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from affinityd.request.devices import ComputeDevice, VisibleDevices
from affinityd.request.visible_devices import read_visible
from affinityd.topology.model import Gpu


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
    [
        pytest.param(None, [0, 1, 2, 3], id="unset: all"),
        pytest.param("", [], id="empty: none"),
        pytest.param("2,0", [2, 0], id="the list's order counts"),
        pytest.param(" 2, \t0", [2, 0], id="blanks before an index are skipped"),
        pytest.param("2 ,0 1", [2, 0], id="what follows a number is ignored"),
        pytest.param(
            "1gpu2,+2,03", [1, 2, 3], id="a sign, zeros and a tail are read as by strtoul"
        ),
        pytest.param("0x2", [0], id="no hexadecimal"),
        pytest.param("-0,1", [0, 1], id="minus nothing is no negative"),
        pytest.param("0,-1,1", [0], id="a negative index ends the list"),
        pytest.param("0,NoDevFiles,1", [0], id="a word ends the list"),
        pytest.param("0,,1", [0], id="nothing ends the list"),
        pytest.param("0,+,1", [0], id="a sign alone ends the list"),
        pytest.param("0,+-1", [0], id="two signs end the list"),
        pytest.param("0,٢", [0], id="a digit of another script ends the list"),
        pytest.param("0,\u00a01", [0], id="a blank of another script ends the list"),
        pytest.param("0,GPU-bb", [0], id="a UUID among indices ends the list"),
        pytest.param("0,4,1", [0], id="an index out of range ends the list"),
        pytest.param("0,1,0", [], id="a repeated index: none"),
        pytest.param("1,01", [], id="repeated in another spelling: none"),
        pytest.param("0,9,9", [], id="repeated out of range: none"),
        pytest.param("0,-1,0", [0], id="repeated after the end is not seen"),
        pytest.param("0,99999999999999999999", [0], id="above what a long holds is out of range"),
        pytest.param(
            "0," + "9" * 5000 + ",1" + "0" * 5000, [], id="all above it are one number, so repeated"
        ),
        pytest.param(
            "0,10000000000000000000,10000000000000000001", [0], id="below it they are two numbers"
        ),
        pytest.param("0," + "0" * 5000 + "1", [0, 1], id="5000 zeros are no size"),
        pytest.param("GPU-aa02,GPU-bb", [1, 2], id="UUIDs and unique prefixes"),
        pytest.param("GPU-aa", [], id="an ambiguous prefix ends the list"),
        pytest.param("GPU-bb,GPU-aa,GPU-aa01", [2], id="an ambiguous one ends it there"),
        pytest.param("GPU-bb,GPU-xx,GPU-aa01", [2], id="an unknown one ends it there"),
        pytest.param("GPU-bb,0", [2], id="an index among UUIDs ends the list"),
        pytest.param("GPU-bb, GPU-aa01", [2], id="blanks are part of a UUID"),
        pytest.param("GPU-bb ,GPU-aa01", [], id="blanks behind it, too"),
        pytest.param(" GPU-bb", [], id="a blank before makes it a list of indices"),
        pytest.param("gpu-bb03", [], id="case counts"),
        pytest.param("GPU-BB03", [], id="case counts in the digits, too"),
        pytest.param("GPU-bb,GPU-bb", [], id="a repeated UUID: none"),
        pytest.param("GPU-bb,GPU-xx,GPU-xx", [], id="repeated, though unknown: none"),
        pytest.param("GPU-bb,GPU-bb03", [], id="two names of one device: none"),
        pytest.param("GPU-bb,GPU-xx,GPU-bb03", [2], id="two names, one after the end: the first"),
        pytest.param("GPU-bb,0,GPU-bb", [2], id="repeated after another kind is not seen"),
        pytest.param("MIG-cc04,MIG-cc05", [4, 5], id="MIG instances are named alike"),
        pytest.param("MIG-cc", [], id="so are ambiguous ones"),
        pytest.param("MIG-cc04,GPU-bb", [4], id="a GPU among instances is another kind"),
        pytest.param("GPU-bb,MIG-cc04", [2], id="an instance among GPUs is another kind"),
        pytest.param("GPU-", [], id="a prefix of all is ambiguous"),
        pytest.param("ROCR_VISIBLE_DEVICES=2,0", [2, 0], id="ROCR alone"),
        pytest.param("HIP_VISIBLE_DEVICES=2,0", [2, 0], id="HIP alone"),
        pytest.param(
            "ROCR_VISIBLE_DEVICES=3,1,0;HIP_VISIBLE_DEVICES=2,0", [0, 3], id="HIP indexes ROCR's"
        ),
        pytest.param(
            "HIP_VISIBLE_DEVICES=2,0;ROCR_VISIBLE_DEVICES=3,1,0", [0, 3], id="in either order"
        ),
        pytest.param(
            "ROCR_VISIBLE_DEVICES=3,1,0; HIP_VISIBLE_DEVICES=2,0", [0, 3], id="a blank between"
        ),
        pytest.param(
            "ROCR_VISIBLE_DEVICES=GPU-bb,GPU-aa01;HIP_VISIBLE_DEVICES=1", [0], id="ROCR by UUID"
        ),
        pytest.param(
            "ROCR_VISIBLE_DEVICES=0,1;HIP_VISIBLE_DEVICES=GPU-bb",
            [],
            id="HIP cannot name what ROCR left out",
        ),
        pytest.param(
            "ROCR_VISIBLE_DEVICES=0,1;HIP_VISIBLE_DEVICES=2", [], id="nor count beyond it"
        ),
        pytest.param("ROCR_VISIBLE_DEVICES=;HIP_VISIBLE_DEVICES=0", [], id="ROCR empty: none"),
        pytest.param("ROCR_VISIBLE_DEVICES=0;HIP_VISIBLE_DEVICES=", [], id="HIP empty: none"),
        pytest.param("2;3", [2], id="a semicolon ends a number as anything does"),
        pytest.param("OTHER=0", [], id="another variable is a word"),
    ],
)
def test_a_list_is_read_as_by_the_driver(value: str | None, expected: list[int]) -> None:
    assert seen(value) == expected


@pytest.mark.parametrize(
    ("value", "by_name"),
    [
        (None, False),
        ("0", False),
        ("GPU-bb", True),
        ("MIG-cc04", True),
        ("ROCR_VISIBLE_DEVICES=GPU-bb;HIP_VISIBLE_DEVICES=0", True),
    ],
)
def test_a_numbering_by_name_is_told_from_one_by_index(value: str | None, by_name: bool) -> None:
    assert read_visible(value, GIVEN).by_name == by_name


def test_an_index_that_a_lost_gpu_has_left_ends_the_list() -> None:
    gap = VisibleDevices({0: GPUS[0], 2: GPUS[2]}, EVERYTHING, by_name=False)
    assert list(read_visible("2,0", gap).by_index.values()) == [GPUS[2], GPUS[0]]
    assert list(read_visible("0,1,2", gap).by_index.values()) == [GPUS[0]]


def by_hand(value: str) -> list[int]:
    """Read a list as the rules are told: entry by entry, character by character."""
    kind = value[:4]
    return named_by_hand(value, kind) if kind in {"GPU-", "MIG-"} else counted_by_hand(value)


def counted_by_hand(value: str) -> list[int]:
    numbers: list[int] = []
    for entry in value.split(","):
        rest = entry.lstrip(" \t\n\v\f\r")
        sign = rest[:1] if rest[:1] in {"+", "-"} else ""
        digits = ""
        for char in rest[len(sign) :]:
            if char not in string.digits:
                break
            digits += char
        if not digits or (sign == "-" and int(digits) > 0):
            break
        if int(digits) in numbers:
            return []
        numbers.append(int(digits))
    found = []
    for number in numbers:
        if number >= len(GPUS):
            break
        found.append(number)
    return found


def named_by_hand(value: str, kind: str) -> list[int]:
    names: list[str] = []
    for entry in value.split(","):
        if entry[:4] != kind:
            break
        if entry in names:
            return []
        names.append(entry)
    found: list[int] = []
    for name in names:
        matches = [
            place
            for place, device in enumerate(EVERYTHING)
            if (device.uuid or "")[: len(name)] == name
        ]
        if len(matches) != 1:
            break
        if matches[0] in found:
            return []
        found += matches
    return found


entries = (
    st.integers(-2, 6).map(str)
    | st.from_regex(r"\A[ \t]?[+-]?[0-9]{0,2}[a-z ]?\Z")
    | st.sampled_from(["GPU-aa01", "GPU-aa", "GPU-bb", "GPU-bb03", "MIG-cc04", "GPU-", "GPU-bb "])
    | st.text("GPUMI-0123 abc+", max_size=5)
)


@given(st.lists(entries, min_size=1, max_size=6).map(",".join))
@example("0,1,GPU-bb")
def test_any_list_is_read_as_the_rules_are_told(value: str) -> None:
    assert seen(value) == by_hand(value)


@given(st.text())
def test_no_text_is_too_odd_to_read(value: str) -> None:
    assert len(set(seen(value))) == len(seen(value)) <= len(EVERYTHING)
