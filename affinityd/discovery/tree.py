"""The files of a machine: the running one's, a captured folder's, or an archive's.

The root of the file system is an argument, so that any node can be replayed anywhere. Paths are
relative to it: `sys/devices/system/cpu/online`. Missing and malformed values are the same to a
reader: None. So is the kernel's -1.
"""

# ruff: noqa: PTH119 - pathlib costs more to import than a machine to read

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from affinityd.cpuset import PADDING, CpuSet, parse_list, parse_mask
from affinityd.errors import TreeError
from affinityd.linux.files import FAILING, read
from affinityd.text import MAX_COUNTER, whole_number

T = TypeVar("T")
Keep = Callable[[str], bool]

MARK = "sys/devices/system/cpu"  #: distinguishes a machine's root from a folder around one
SEARCH_DEPTH = 3  #: how many folders below a root a captured machine may be
ARCHIVE_SUFFIXES = (".tar.xz", ".tar.gz", ".tar.bz2", ".txz", ".tgz", ".tar")
MAX_FILE = 1024 * 1024  #: bytes that are read of a file; the kernel writes far fewer into one


class Tree:
    """The files of a machine, for discovery. No method raises: unreadable files are missing."""

    def __init__(self, name: str, *, live: bool = False) -> None:
        self.name = name  #: the machine's: its host name, or that of the folder or archive
        self.live = live  #: whether this is the live machine
        #: Path → the error of an existing file that could not be read, until it is cleared.
        self.broken: dict[str, OSError] = {}

    def read(self, path: str, *beginnings: str) -> str | None:
        """Return a file's text without the blanks and NULs around it; None if there is none.

        With `beginnings`, only the lines that begin with one of them.
        """
        data = self._content(path)
        try:
            text = None if data is None else data.decode()
        except UnicodeDecodeError:
            return None
        if text and beginnings:
            text = "\n".join(line for line in text.split("\n") if line.startswith(beginnings))
        return None if text is None else text.strip(PADDING)

    def read_bytes(self, path: str) -> bytes | None:
        """Return a file as it is, such as a device's `config`; None if there is none."""
        return self._content(path)

    def list(self, path: str, keep: Keep | None = None) -> tuple[str, ...]:
        """Return the wanted names in a folder, sorted; () if there is no folder."""
        return tuple(sorted(filter(keep, self._names(path))))

    def link(self, path: str) -> str | None:
        """Return where a symbolic link points; None if it is none."""
        raise NotImplementedError

    def _content(self, path: str) -> bytes | None:
        raise NotImplementedError

    def _names(self, folder: str) -> Iterable[str]:
        raise NotImplementedError


class FolderTree(Tree):
    """A machine's files in a folder, or the running machine's in `/`."""

    def __init__(self, root: str, name: str, *, live: bool = False) -> None:
        """Take the machine in `root`, which ends in a slash."""
        super().__init__(name, live=live)
        self.root = root

    def link(self, path: str) -> str | None:
        """See `Tree.link`."""
        return self._asked(path, os.readlink)

    def _content(self, path: str) -> bytes | None:
        return self._asked(path, lambda file: read(file, MAX_FILE))

    def _names(self, folder: str) -> Iterable[str]:
        return self._asked(folder, os.listdir) or ()

    def _asked(self, path: str, ask: Callable[[str], T]) -> T | None:
        try:
            return ask(self.root + path)
        except OSError as error:  # a folder, a removed device, an attribute that refuses
            if error.errno in FAILING:
                self.broken[path] = error
            return None


def tree_name(path: str) -> str:
    """Return the name of a captured folder or archive: its machine's name."""
    name = os.path.basename(path)
    suffix = next((suffix for suffix in ARCHIVE_SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(suffix)


def the_machine(root: str, candidates: Iterable[str]) -> str:
    """Return the only path before a `MARK` below a root, not counting machines in a machine.

    Raises TreeError where there is not just one.
    """
    folders = {*candidates}
    machines = sorted(
        folder for folder in folders if not any(map(folder.startswith, folders - {folder}))
    )
    if not machines:
        raise TreeError(
            f"root {root!r} holds no machine: {MARK} is neither in it"
            f" nor in a folder up to {SEARCH_DEPTH} below"
        )
    if len(machines) > 1:
        names = ", ".join(machine.rstrip("/") for machine in machines)
        raise TreeError(f"root {root!r} holds several machines; name one: {names}")
    return machines[0]


def number(text: str | None) -> int | None:
    """Read a decimal number, 0 or larger."""
    return whole_number(text, MAX_COUNTER)


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
