"""The files of a machine: of the running machine, or of a captured machine in a folder.

The root of the file system is an argument, so that any node can be replayed anywhere. Paths are
relative to that root: `sys/devices/system/cpu/online`. A reader gets None for missing values, for
malformed ones, and for the kernel's -1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from affinityd.cpuset import PADDING, CpuSet, parse_list, parse_mask
from affinityd.linux.files import FAILING, read
from affinityd.text import MAX_COUNTER, whole_number

T = TypeVar("T")
Keep = Callable[[str], bool]

MARK = "sys/devices/system/cpu"  #: folder that tells a machine's root from other folders


class Tree:
    """The files of a machine, for discovery. No method raises: unreadable files are missing."""

    def __init__(self, root: str, name: str, *, live: bool = False) -> None:
        """Take the machine in `root`, which ends in a slash and is no symbolic link."""
        self.root = root
        self.name = name  #: host name of the machine, or the name of the folder
        self.live = live  #: whether this is the live machine
        #: Path → why that existing file could not be read; each discovery clears this.
        self.broken: dict[str, OSError] = {}

    def read(self, path: str, *beginnings: str) -> str | None:
        """Return a file's text without the blanks and NULs around it; None if there is no text.

        With `beginnings`, return only the lines that begin with one of them.
        """
        data = self.read_bytes(path)
        try:
            text = None if data is None else data.decode()
        except UnicodeDecodeError:
            return None
        if text and beginnings:
            text = "\n".join(line for line in text.split("\n") if line.startswith(beginnings))
        return None if text is None else text.strip(PADDING)

    def read_bytes(self, path: str) -> bytes | None:
        """Return a file's bytes, such as a device's `config`; None if there is no file."""
        # Files of the kernel are far smaller than this limit.
        return self._ask(path, lambda file: read(file, 1024 * 1024))

    def list(self, path: str, keep: Keep | None = None) -> tuple[str, ...]:
        """Return the wanted names in a folder, sorted; () if there is no folder."""
        return tuple(sorted(filter(keep, self._ask(path, os.listdir) or ())))

    def link(self, path: str) -> str | None:
        """Return where a symbolic link points; None if it is no link."""
        return self._ask(path, os.readlink)

    def _ask(self, path: str, ask: Callable[[str], T]) -> T | None:
        file = self.root + path
        # A captured machine may come from anywhere: its links must not leave its folder.
        if not self.live and not os.path.realpath(file).startswith(self.root):
            return None
        try:
            return ask(file)
        except OSError as error:  # a folder, a removed device, an attribute that refuses
            if error.errno in FAILING:
                self.broken[path] = error
            return None


def number(text: str | None) -> int | None:
    """Read a decimal number, 0 or larger."""
    return whole_number(text, MAX_COUNTER)


def read_number(tree: Tree, path: str) -> int | None:
    """Read a file that holds one decimal number, 0 or larger."""
    return number(tree.read(path))


def read_cpus(tree: Tree, list_path: str, mask_path: str | None = None) -> CpuSet | None:
    """Read a file with a cpulist; old kernels have only the file with a hexadecimal mask."""
    for path, parse in ((list_path, parse_list), (mask_path, parse_mask)):
        text = tree.read(path) if path else None
        if text is not None:
            try:
                return parse(text)
            except ValueError:
                continue
    return None


def read_fields(tree: Tree, path: str, *names: str) -> Mapping[str, str]:
    """Read the named lines of a file with lines `name value` or `name: value`."""
    fields = {}
    for line in (tree.read(path, *names) or "").split("\n"):
        for name in names:
            rest = line.removeprefix(name)
            if rest.startswith((":", " ", "\t")):
                fields[name] = rest.strip(": \t")
    return fields


def numbered(tree: Tree, folder: str, prefix: str) -> tuple[int, ...]:
    """Return the numbers N for which a folder has an entry `prefixN`, ascending."""

    def keep(name: str) -> bool:
        return name.startswith(prefix) and number(name.removeprefix(prefix)) is not None

    return tuple(sorted(int(name.removeprefix(prefix)) for name in tree.list(folder, keep)))
