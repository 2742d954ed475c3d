"""CPU lists and masks, as the kernel and taskset write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.cpuset import MAX_CPUS, format_list, format_mask, parse_list, parse_mask

cpu_sets = st.frozensets(st.integers(0, 300)) | st.frozensets(st.integers(0, MAX_CPUS - 1))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        pytest.param("", [], id="nothing is no CPU"),
        pytest.param(" \n", [], id="blanks are no CPU"),
        pytest.param("0", [0], id="one number is one CPU"),
        pytest.param("0-3,8,10-11", [0, 1, 2, 3, 8, 10, 11], id="ranges and numbers mix"),
        pytest.param("5-5", [5], id="a range may be one CPU long"),
        pytest.param("8,1,3", [1, 3, 8], id="order does not matter"),
        pytest.param("0-3,2-4", [0, 1, 2, 3, 4], id="ranges may overlap"),
        pytest.param("0-8:4", [0, 4, 8], id="a stride takes every so many"),
        pytest.param("1-10:5", [1, 6], id="a stride counts from its first CPU"),
        pytest.param("0-9:2/4", [0, 1, 4, 5, 8, 9], id="a group takes the first ones of so many"),
        pytest.param("0-9:8/9", [*range(8), 9], id="a group may be nearly all of them"),
        pytest.param("0-65535:65535", [0, 65535], id="a stride may be as long as can be"),
        pytest.param(" 0-1, 4 \n", [0, 1, 4], id="blanks around parts are skipped"),
        pytest.param("0-1\n\0", [0, 1], id="a NUL at the end is skipped, as some kernels leave it"),
        pytest.param("007", [7], id="leading zeros are no octal"),
        pytest.param("65535", [65535], id="the largest CPU number is read"),
    ],
)
def test_a_cpulist_is_read(text: str, cpus: list[int]) -> None:
    assert parse_list(text) == frozenset(cpus)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        pytest.param("x", "'x'", id="a word"),
        pytest.param("1,,2", "''", id="an empty part"),
        pytest.param("1,", "''", id="a comma at the end"),
        pytest.param("-1", "'-1'", id="a negative number"),
        pytest.param("1-", "'1-'", id="a range without an end"),
        pytest.param("3-1", "'3-1'", id="a range that runs backwards"),
        pytest.param("1-2-3", "'1-2-3'", id="a range of three"),
        pytest.param("0-8:0", "'0-8:0'", id="a stride of nothing"),
        pytest.param("0-8:", "'0-8:'", id="a stride without a number"),
        pytest.param("0-8:3/2", "'0-8:3/2'", id="more than the group holds"),
        pytest.param("0-8:0/2", "'0-8:0/2'", id="nothing of each group"),
        pytest.param("0x3", "'0x3'", id="a mask"),
        pytest.param("+1", "'+1'", id="a sign"),
        pytest.param("1_0", "'1_0'", id="an underscore"),
        pytest.param("٣", "'٣'", id="a digit of another script"),
        pytest.param("²", "'²'", id="a superscript"),
        pytest.param("0 1", "'0 1'", id="a blank within a part"),
        pytest.param("0\n1", r"'0\n1'", id="a newline within a part"),
        pytest.param("0\0,1", r"'0\x00'", id="a NUL that is not at the end"),
        pytest.param("65536", "'65536'", id="a CPU number above the largest"),
        pytest.param("0-4294967295", "'0-4294967295'", id="a range above the largest"),
        pytest.param("9" * 5000, "'" + "9" * 60 + "…'", id="a number of 5000 digits"),
        pytest.param("0-65535,0", "65536", id="more CPUs than there can be"),
    ],
)
def test_a_malformed_cpulist_is_refused_with_one_line_that_quotes_it(
    text: str, quoted: str
) -> None:
    with pytest.raises(ValueError, match=r"\A.{1,200}\Z") as caught:
        parse_list(text)
    assert quoted in str(caught.value)


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        pytest.param([], "", id="no CPU is nothing"),
        pytest.param([3], "3", id="one CPU is a number"),
        pytest.param([0, 1], "0-1", id="two neighbours are a range"),
        pytest.param([11, 0, 1, 2, 3, 8, 10], "0-3,8,10-11", id="runs are ranges, in order"),
        pytest.param([4, 4, 5], "4-5", id="a CPU that is named twice is named once"),
    ],
)
def test_a_cpulist_is_written_as_short_as_can_be(cpus: list[int], text: str) -> None:
    assert format_list(cpus) == text


@given(cpu_sets)
def test_reading_undoes_writing_of_a_cpulist(cpus: frozenset[int]) -> None:
    assert parse_list(format_list(cpus)) == cpus


@given(cpu_sets)
def test_reading_undoes_writing_of_a_mask(cpus: frozenset[int]) -> None:
    assert parse_mask(format_mask(cpus)) == cpus


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 9), st.integers(1, 9))
def test_a_group_is_the_first_ones_of_every_so_many(
    first: int, length: int, used: int, group: int
) -> None:
    used, group = sorted((used, group))
    expected = {
        first + offset for offset in range(length + 1) if offset - offset // group * group < used
    }
    assert parse_list(f"{first}-{first + length}:{used}/{group}") == expected


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        pytest.param("0", [], id="zero is no CPU"),
        pytest.param("0x11", [0, 4], id="taskset's prefix may be there"),
        pytest.param("FF", range(8), id="digits are of any case"),
        pytest.param("ff,00000000\n", range(32, 40), id="the kernel's words are read"),
        pytest.param("00000001,00000000,00000002\n\0", [1, 64], id="a NUL at the end is skipped"),
    ],
)
def test_a_mask_is_read(text: str, cpus: list[int]) -> None:
    assert parse_mask(text) == frozenset(cpus)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        pytest.param("", "''", id="nothing"),
        pytest.param("0x", "'0x'", id="a prefix alone"),
        pytest.param("0-3", "'0-3'", id="a cpulist"),
        pytest.param("fg", "'fg'", id="a letter too far"),
        pytest.param("-1", "'-1'", id="a sign"),
        pytest.param("f_f", "'f_f'", id="an underscore"),
        pytest.param("٣", "'٣'", id="a digit of another script"),
        pytest.param("x" * 5000, "x" * 60 + "…", id="5000 letters"),
        pytest.param("f" * 20000, "20000", id="more CPUs than there can be"),
    ],
)
def test_a_malformed_mask_is_refused_with_one_line_that_quotes_it(text: str, quoted: str) -> None:
    with pytest.raises(ValueError, match=r"\A.{1,200}\Z") as caught:
        parse_mask(text)
    assert quoted in str(caught.value)


def test_the_kernel_s_own_list_and_mask_are_read_alike() -> None:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert parse_mask(fields["Cpus_allowed"]) == parse_list(fields["Cpus_allowed_list"])
    assert parse_list(fields["Cpus_allowed_list"]) == os.sched_getaffinity(0)
    assert format_list(os.sched_getaffinity(0)) == fields["Cpus_allowed_list"].strip()
