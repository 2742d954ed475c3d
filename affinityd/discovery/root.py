"""The root that a machine is read from: `/`, a captured folder, or an archive of one."""

# ruff: noqa: PTH112, PTH116 - pathlib costs more to import than a machine to read

from __future__ import annotations

import os
import stat

from affinityd.discovery.tree import MARK, SEARCH_DEPTH, FolderTree, Tree, the_machine, tree_name
from affinityd.errors import TreeError


def open_tree(root: str, node_name: str | None = None) -> Tree:
    """Open `/`, a captured folder, or an archive of one.

    `node_name` is what the machine in `/` is called, where that is not what uname(2) says: in a
    container that is the container's. A captured machine has its own name, and may lie up to three
    folders below, as in captures that wrap it in its name. Raises TreeError where there is no
    machine, or more than one.
    """
    try:
        kind = os.stat(root).st_mode
    except OSError as error:
        raise TreeError(f"root {root!r} cannot be opened: {error.strerror}") from None
    if stat.S_ISREG(kind):
        # Imported here: the live machine needs no tarfile.
        from affinityd.discovery.archive import ArchiveTree  # noqa: PLC0415

        return ArchiveTree(root)
    path = os.path.realpath(root)
    if path == "/":
        return FolderTree("/", node_name or os.uname().nodename, live=True)
    machine = the_machine(root, _machines_below(path, SEARCH_DEPTH))
    return FolderTree(machine + "/", tree_name(path))


def _machines_below(folder: str, depth: int) -> list[str]:
    if os.path.isdir(f"{folder}/{MARK}"):
        return [folder]
    if depth == 0:
        return []
    try:
        with os.scandir(folder) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [machine for path in below for machine in _machines_below(path, depth - 1)]
