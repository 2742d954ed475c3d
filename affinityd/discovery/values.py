"""Values of kernel files: numbers, CPUs, named fields, numbered folders.

Missing and malformed are the same to a reader: None. So is the kernel's -1.
"""

from __future__ import annotations

from collections.abc import Mapping

from affinityd.cpuset import CpuSet, parse_list, parse_mask
from affinityd.discovery.tree import Tree
from affinityd.text import whole_number

#: The largest number that the kernel writes: 64 bits.
_MAX_NUMBER = 2**64 - 1


def number(text: str | None) -> int | None:
    """Read a decimal number, 0 or larger."""
    return whole_number(text, _MAX_NUMBER)


def read_number(tree: Tree, path: str) -> int | None:
    """Read a file that holds one decimal number, 0 or larger."""
    return number(tree.read(path))


def read_cpus(tree: Tree, list_path: str, mask_path: str | None = None) -> CpuSet | None:
    """Read a file with a cpulist; where there is none, as on old kernels, its hexadecimal twin."""
    for path, parse in ((list_path, parse_list), (mask_path, parse_mask)):
        text = tree.read(path) if path else None
        if text is not None:
            try:
                return parse(text)
            except ValueError:
                continue
    return None


def read_fields(tree: Tree, path: str, *names: str) -> Mapping[str, str]:
    """Read the named lines of a file of `name value` or `name: value` lines."""
    lines = (tree.read(path, *names) or "").split("\n")
    found = ((name, line.removeprefix(name)) for line in lines for name in names)
    return {name: rest.strip(": \t") for name, rest in found if rest.startswith((":", " ", "\t"))}


def numbered(tree: Tree, folder: str, prefix: str) -> tuple[int, ...]:
    """Return the numbers N for which a folder has an entry `prefixN`, ascending."""

    def keep(name: str) -> bool:
        return name.startswith(prefix) and number(name.removeprefix(prefix)) is not None

    return tuple(sorted(int(name.removeprefix(prefix)) for name in tree.list(folder, keep)))
