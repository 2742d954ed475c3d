"""A captured machine in a tar archive, read once into memory.

An archive may be untrusted: how much is unpacked is limited, nothing is written to disk, and a
link that leads out of the machine leads nowhere.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from posixpath import normpath
from typing import Any

from affinityd.discovery.tree import MARK, SEARCH_DEPTH, Tree, the_machine, tree_name
from affinityd.errors import TreeError
from affinityd.linux.files import read

#: Limits of a capture, unpacked; every file of a machine of 2,000 CPUs takes half of each.
MAX_UNPACKED = 256 * 1024 * 1024
MAX_MEMBERS = 200_000
MAX_MEMBER_NAME = 512  #: letters
MAX_DEPTH = 40  #: folders of a member's name
MAX_LINKS = 40  #: as many as Linux follows (path_resolution(7))
PATH_MAX = 4096  #: of the kernel, for a link's target
NOWHERE = "/"  #: a path that no file has

#: How a file begins → how it is unpacked.
_OPENERS: dict[bytes, Callable[[str, str], Any]] = {
    b"\xfd7zXZ": lzma.open,
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
}

#: The exceptions of the modules that read a damaged archive.
_DAMAGED = (
    *(tarfile.TarError, lzma.LZMAError, zlib.error),
    *(EOFError, OSError, ValueError, OverflowError, RecursionError),
)


class ArchiveTree(Tree):
    """A machine's files in an archive, read once into memory."""

    def __init__(self, path: str) -> None:
        """Read the archive: tar, plain or compressed with xz, gzip or bzip2. Raises TreeError."""
        super().__init__(tree_name(path))
        try:
            with tarfile.open(fileobj=io.BytesIO(_unpacked(path)), mode="r:") as archive:
                members = dict(_members(archive))
        except _DAMAGED as error:
            raise TreeError(f"archive {path!r} cannot be read: {error}") from None
        marked = (f"/{name}/".partition(f"/{MARK}/") for name in members)
        prefixes = (f"{before}/"[1:] for before, mark, _ in marked if mark)
        prefix = the_machine(path, (one for one in prefixes if one.count("/") <= SEARCH_DEPTH))
        #: Name → content of a file, target of a link, None for a folder.
        self._members = {
            name.removeprefix(prefix): content
            for name, content in members.items()
            if name.startswith(prefix)
        }
        self._links = {
            name: target for name, target in self._members.items() if isinstance(target, str)
        }
        self._folders: dict[str, set[str]] = {}  # the names in each folder
        for name in self._members:
            folder = name
            while folder:
                folder, _, child = folder.rpartition("/")
                self._folders.setdefault(folder, set()).add(child)

    def link(self, path: str) -> str | None:
        """See `Tree.link`."""
        return self._links.get(resolved(path, self._links, last=False))

    def _content(self, path: str) -> bytes | None:
        content = self._members.get(resolved(path, self._links))
        return content if isinstance(content, bytes) else None

    def _names(self, folder: str) -> Iterable[str]:
        return self._folders.get(resolved(folder, self._links), ())


def _unpacked(path: str) -> bytes:
    """Return the archive without its compression, which must not make it too large."""
    magic = read(path, 5)
    unpack = next((unpack for begin, unpack in _OPENERS.items() if magic.startswith(begin)), open)
    with unpack(path, "rb") as content:
        data: bytes = content.read(MAX_UNPACKED + 1)
    if len(data) > MAX_UNPACKED:
        raise TreeError(f"archive {path!r} is larger than {MAX_UNPACKED} bytes unpacked")
    return data


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes | str | None]]:
    for number, member in enumerate(archive):
        if number == MAX_MEMBERS:
            raise tarfile.ReadError(f"it has more than {MAX_MEMBERS} entries")
        if member.size < 0:  # before Python 3.11.14 tarfile goes back by it, and on for ever
            raise tarfile.ReadError(f"a member of {member.size} bytes")
        name = normpath(member.name).lstrip("/")
        if len(name) > MAX_MEMBER_NAME or name.count("/") > MAX_DEPTH:
            continue
        if name.split("/")[0] in ("", ".", ".."):
            continue
        if member.isfile() and not member.issparse():  # holes cost nothing to send, but memory here
            file = archive.extractfile(member)
            yield name, file.read() if file else b""
        elif member.issym() and len(member.linkname) < PATH_MAX:
            yield name, member.linkname
        elif member.isdir():
            yield name, None


def resolved(path: str, links: Mapping[str, str], *, last: bool = True) -> str:
    """Return a path with every link in it followed; NOWHERE if it leads outside or in a circle.

    `last`: whether a link at the path's very end is followed too.
    """
    ahead = path.split("/")[::-1]
    done = [""]
    followed = 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            if len(done) == 1:
                return NOWHERE
            done.pop()
        elif part not in ("", "."):
            done.append(part)
            target = links.get("/".join(done[1:])) if ahead or last else None
            if target is not None:
                followed += 1
                if followed > MAX_LINKS or target.startswith("/"):
                    return NOWHERE
                done.pop()
                ahead += target.split("/")[::-1]
    return "/".join(done[1:])
