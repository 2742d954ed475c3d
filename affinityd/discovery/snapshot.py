"""A snapshot: the files that discovery reads, and NVML's answers, to replay a node anywhere.

It contains only the files, and of long files only the lines, that discovery asks for: no serial
numbers, no hardware addresses, no facts of processes.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from affinityd.discovery import NVML_FILE, discover
from affinityd.discovery.nvml import NvmlReport
from affinityd.discovery.tree import Keep, Tree
from affinityd.errors import TreeError
from affinityd.json_codec import dumps
from affinityd.linux.files import write_whole

#: Suffix of the output's name → tarfile's mode.
SUFFIXES: dict[str, Literal["w:xz", "w:gz", "w:"]] = {
    ".tar.xz": "w:xz",
    ".tar.gz": "w:gz",
    ".tar": "w:",
}


class RecordingTree(Tree):
    """Reads from a tree, and records the files that were read and found."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree.root, tree.name, live=tree.live)
        self.members: dict[str, tuple[bytes, str]] = {}  #: path → kind; text or link target

    def read(self, path: str, *beginnings: str) -> str | None:
        """See `Tree.read`."""
        text = super().read(path, *beginnings)
        if text is not None:
            self.members[path] = (tarfile.REGTYPE, f"{text}\n")
        return text

    def list(self, path: str, keep: Keep | None = None) -> tuple[str, ...]:
        """See `Tree.list`; a listed name is archived as a folder, unless it is read as a file."""
        names = super().list(path, keep)
        for name in names:
            self.members.setdefault(f"{path}/{name}", (tarfile.DIRTYPE, ""))
        return names

    def link(self, path: str) -> str | None:
        """See `Tree.link`."""
        target = super().link(path)
        if target is not None:
            self.members[path] = (tarfile.SYMTYPE, target)
        return target


def write_snapshot(tree: Tree, nvml: NvmlReport | None, output: Path) -> None:
    """Write an archive from which, once unpacked, discovery makes the same topology.

    The archive appears only when complete. Raises TreeError if the tree holds no machine or the
    archive's name has no known suffix, OSError if the archive cannot be written.
    """
    modes = [mode for suffix, mode in SUFFIXES.items() if output.name.endswith(suffix)]
    if not modes:
        raise TreeError(f"output {str(output)!r} should end in one of {', '.join(SUFFIXES)}")
    recorder = RecordingTree(tree)
    discover(recorder, nvml)
    if nvml is not None:
        recorder.members[NVML_FILE] = (tarfile.REGTYPE, f"{dumps(nvml)}\n")
    links = {}
    for path, (kind, target) in recorder.members.items():
        if kind == tarfile.SYMTYPE:
            links[path] = target
    members = {place_of(path, links): member for path, member in recorder.members.items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=modes[0]) as archive:
        for name, (kind, content) in sorted(members.items()):
            # Without owner and time: only facts of the machine are archived.
            member = tarfile.TarInfo(name)
            member.type = kind
            member.mode = 0o755
            if kind == tarfile.SYMTYPE:
                member.linkname = content
                archive.addfile(member)
            else:
                data = content.encode()
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    write_whole(output, buffer.getvalue(), mode=None)


def place_of(path: str, links: Mapping[str, str]) -> str:
    """Return a path with its recorded links followed: tar follows none."""
    parts = path.split("/")
    for end in range(1, len(parts)):
        folder = "/".join(parts[:end])
        if folder in links:
            target = posixpath.join(posixpath.dirname(folder), links[folder])
            return place_of(posixpath.normpath("/".join([target, *parts[end:]])), links)
    return path
