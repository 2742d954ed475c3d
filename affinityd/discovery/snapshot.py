"""A snapshot: the files that discovery reads, and NVML's answers, to replay a node anywhere.

No file enters it but those that discovery asks for, and of files of many lines only the lines that
it asks for: no serial numbers, no hardware addresses, nothing of processes.
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

#: How an output's name ends → tarfile's mode.
SUFFIXES: dict[str, Literal["w:xz", "w:gz", "w:"]] = {
    ".tar.xz": "w:xz",
    ".tar.gz": "w:gz",
    ".tar": "w:",
}

#: The kinds of members, and their permissions.
_PERMISSIONS = {tarfile.DIRTYPE: 0o755, tarfile.REGTYPE: 0o644, tarfile.SYMTYPE: 0o777}


class RecordingTree(Tree):
    """Reads from a tree, and records the files that were read and found."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree.root, tree.name, live=tree.live)
        #: Kind of member → path → content, or a link's target.
        self.members: dict[bytes, dict[str, str]] = {kind: {} for kind in _PERMISSIONS}

    def read(self, path: str, *beginnings: str) -> str | None:
        """See `Tree.read`."""
        text = super().read(path, *beginnings)
        if text is not None:
            self.members[tarfile.REGTYPE][path] = f"{text}\n"
        return text

    def list(self, path: str, keep: Keep | None = None) -> tuple[str, ...]:
        """See `Tree.list`."""
        names = super().list(path, keep)
        self.members[tarfile.DIRTYPE].update((f"{path}/{name}", "") for name in names)
        return names

    def link(self, path: str) -> str | None:
        """See `Tree.link`."""
        target = super().link(path)
        if target is not None:
            self.members[tarfile.SYMTYPE][path] = target
        return target


def write_snapshot(tree: Tree, nvml: NvmlReport | None, output: Path) -> None:
    """Write an archive from which discovery makes the same topology, once it is unpacked.

    It appears only when complete. Raises TreeError if the tree holds no machine or the output's
    name has no known suffix, OSError if it cannot be written.
    """
    modes = [mode for suffix, mode in SUFFIXES.items() if output.name.endswith(suffix)]
    if not modes:
        raise TreeError(f"output {str(output)!r} should end in one of {', '.join(SUFFIXES)}")
    recorder = RecordingTree(tree)
    discover(recorder, nvml)
    if nvml is not None:
        recorder.members[tarfile.REGTYPE][NVML_FILE] = f"{dumps(nvml)}\n"
    # A listed name may be a file or a link: the later kind counts.
    links = recorder.members[tarfile.SYMTYPE]
    members = {}
    for kind, contents in recorder.members.items():
        for path, content in contents.items():
            members[place_of(path, links)] = (kind, content)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=modes[0]) as archive:
        for name, (kind, content) in sorted(members.items()):
            # Without owner and time, so that only the machine's files are in it.
            member = tarfile.TarInfo(name)
            member.type = kind
            member.mode = _PERMISSIONS[kind]
            is_link = kind == tarfile.SYMTYPE
            data = b"" if is_link else content.encode()
            member.size = len(data)
            member.linkname = content if is_link else ""
            archive.addfile(member, io.BytesIO(data))
    write_whole(output, buffer.getvalue(), mode=None)


def place_of(path: str, links: Mapping[str, str]) -> str:
    """Return a path with the recorded links on the way to it followed: tar follows none."""
    parts = path.split("/")
    for end in range(1, len(parts)):
        folder = "/".join(parts[:end])
        if folder in links:
            target = posixpath.join(posixpath.dirname(folder), links[folder])
            return place_of(posixpath.normpath("/".join([target, *parts[end:]])), links)
    return path
