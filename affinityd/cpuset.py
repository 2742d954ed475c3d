"""CPU lists and masks as Linux writes them.

Sources: cpuset(7) "Formats", taskset(1), kernel `lib/bitmap-str.c` (bitmap_parselist, %*pbl, %*pb).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from affinityd.text import node_name, quote

CpuSet = frozenset[int]

#: The largest NR_CPUS of any kernel: the limit keeps `0-4294967295` from becoming a set.
MAX_CPUS = 8192

#: Characters around a value in a kernel file; some kernels leave a NUL in it.
PADDING = "\0 \t\n"

EXAMPLE = "write it like 0-3,8,10-11"


def parse_list(text: str) -> CpuSet:
    """Read a cpulist: numbers, ranges, and strides (`0-30:2`, or the kernel's `0-30:1/2`).

    Blanks and the NULs that some kernels leave at the end are skipped; an empty text is the empty
    set. Raises ValueError with one line that quotes the part that could not be read.
    """
    text = text.strip(PADDING)
    if not text:
        return frozenset()
    cpus: list[int] = []
    for part in text.split(","):
        cpus += _parse_part(part.strip())
        if len(cpus) > MAX_CPUS:  # `0-8191,0-8191,…` must not take a minute
            raise ValueError(f"the list names more than {MAX_CPUS} CPUs; name each once")
    return frozenset(cpus)


def format_list(cpus: Iterable[int]) -> str:
    """Write the shortest cpulist: the inverse of `parse_list`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)


def parse_mask(text: str) -> CpuSet:
    """Read a hexadecimal mask: `ff`, `0xff`, or the kernel's words `00000000,000000ff`.

    Raises ValueError with one line that quotes the mask.
    """
    digits = text.strip(PADDING).replace(",", "").lower().removeprefix("0x")
    if not digits or any(digit not in "0123456789abcdef" for digit in digits):
        raise ValueError(
            f"mask {quote(text.strip(PADDING))} is not hexadecimal; write it like ff or 0xff"
        )
    if len(digits) * 4 > MAX_CPUS:
        raise ValueError(f"a mask of {len(digits)} digits names CPUs above {MAX_CPUS - 1}")
    bits = bin(int(digits, 16))[:1:-1]
    return frozenset(cpu for cpu, bit in enumerate(bits) if bit == "1")


def format_mask(cpus: Iterable[int]) -> str:
    """Write a mask as `taskset` reads it: `0xff`."""
    return hex(sum(1 << cpu for cpu in set(cpus)))


def _parse_part(part: str) -> Iterator[int]:
    """Read `5`, `5-9`, `5-9:2` (every second) or `5-9:1/2` (the first one of every two)."""
    span, has_stride, stride = part.partition(":")
    begin, is_range, end = span.partition("-")
    first = _number(begin, part)
    last = _number(end, part) if is_range else first
    take, step = _stride(stride, part) if has_stride else (1, 1)
    if last < first or not 1 <= take <= step:
        raise ValueError(f"{quote(part)} is not a range of CPUs; {EXAMPLE}")
    if take == step:
        yield from range(first, last + 1)
        return
    for start in range(first, last + 1, step):
        yield from range(start, min(start + take, last + 1))


def _stride(stride: str, part: str) -> tuple[int, int]:
    used, is_group, group = stride.partition("/")
    if not is_group:
        return 1, _number(used, part)
    return _number(used, part), _number(group, part)


def _number(text: str, part: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{quote(part)} is not a CPU number or range; {EXAMPLE}")
    if len(text) > len(str(MAX_CPUS)) or int(text) >= MAX_CPUS:
        raise ValueError(f"CPU number in {quote(part)} is too large; the largest is {MAX_CPUS - 1}")
    return int(text)


def several(noun: str, numbers: Iterable[int]) -> str:
    """Return `node 3`, or `nodes 3-5`."""
    distinct = set(numbers)
    if len(distinct) != 1:
        noun = f"{noun}s"
    return f"{noun} {format_list(distinct)}"


def named_nodes(numbers: Collection[int | None]) -> str:
    """Return `node 3`, or `nodes 3-5`; None stands for the CPUs that no node lists."""
    numbered = [number for number in numbers if number is not None]
    parts = []
    if numbered:
        parts.append(several("node", numbered))
    if None in numbers:
        parts.append(node_name(None))
    return " and ".join(parts)
