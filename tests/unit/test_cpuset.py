"""CPU lists and masks, as the kernel and taskset write them."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.cpuset import MAX_CPUS, CpuSet, format_list, format_mask, parse_list, parse_mask

cpu_sets = st.frozensets(st.integers(0, 300)) | st.frozensets(st.integers(0, MAX_CPUS - 1))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        *(("", []), (" \n", []), ("5-5", [5]), ("0-3,2-4", range(5)), ("007", [7])),
        *(("10-11,8,0-1", [0, 1, 8, 10, 11]), (" 0-1, 4 \n", [0, 1, 4]), ("8191", [8191])),
        *(("1-10:5", [1, 6]), ("0-8191:8191", [0, 8191]), ("0-9:8/9", [*range(8), 9])),
        ("0-1\n\0", [0, 1]),  # as some kernels leave it
    ],
)
def test_a_cpulist_is_read(text: str, cpus: Iterable[int]) -> None:
    assert parse_list(text) == frozenset(cpus)


def test_a_mask_is_read() -> None:
    assert parse_mask("0") == frozenset()
    assert (parse_mask("0x11"), parse_mask("FF")) == (frozenset({0, 4}), frozenset(range(8)))
    assert parse_mask("00000001,00000000,00000002\n\0") == {1, 64}


#: Texts, and the part of each that is quoted; None: the whole text.
NO_LISTS: dict[str, str | None] = {
    **dict.fromkeys(("x", "-1", "1-", "3-1", "1-2-3", "0x3", "+1", "1_0", "٣", "²", "0 1", "0\n1")),
    **dict.fromkeys(("0-8:0", "0-8:", "0-8:3/2", "0-8:0/2", "8192", "0-4294967295")),
}
NO_LISTS |= {"1,,2": "''", "1,": "''", "0\0,1": r"'0\x00'", "9" * 5000: f"'{'9' * 60}…'"}
NO_LISTS |= {"0-8191,0": "8192"}
NO_MASKS: dict[str, str | None] = dict.fromkeys(("", "0x", "0-3", "fg", "-1", "f_f", "٣"))
NO_MASKS |= {"x" * 5000: f"{'x' * 60}…", "f" * 20000: "20000"}


@pytest.mark.parametrize(
    ("read", "text", "quoted"),
    [
        *((parse_list, text, quoted) for text, quoted in NO_LISTS.items()),
        *((parse_mask, text, quoted) for text, quoted in NO_MASKS.items()),
    ],
    ids=lambda it: ascii(it)[:20] if isinstance(it, str) else "",
)
def test_a_malformed_list_or_mask_is_quoted_in_one_line(
    read: Callable[[str], CpuSet], text: str, quoted: str | None
) -> None:
    with pytest.raises(ValueError, match=r"\A.{1,200}\Z") as caught:
        read(text)
    assert (quoted or repr(text)) in str(caught.value)


def test_a_cpulist_is_written_as_short_as_possible() -> None:
    assert format_list([11, 0, 1, 2, 3, 8, 10, 10]) == "0-3,8,10-11"
    assert format_list([]) == ""


@given(cpu_sets)
def test_a_written_list_or_mask_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_list(format_list(cpus)) == cpus
    assert parse_mask(format_mask(cpus)) == cpus


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 9), st.integers(1, 9))
def test_a_stride_with_a_group_takes_the_first_of_each_group(
    first: int, length: int, used: int, group: int
) -> None:
    used, group = sorted((used, group))
    expected = {first + offset for offset in range(length + 1) if offset % group < used}
    assert parse_list(f"{first}-{first + length}:{used}/{group}") == expected


def test_the_kernel_s_own_list_and_mask_are_read_alike() -> None:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    own = os.sched_getaffinity(0)
    assert parse_mask(fields["Cpus_allowed"]) == parse_list(fields["Cpus_allowed_list"]) == own
    assert format_list(own) == fields["Cpus_allowed_list"].strip()
