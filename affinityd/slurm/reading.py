"""gres.conf as a file, with the files that it includes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from affinityd.errors import InvalidRequestError
from affinityd.slurm.gresconf import Fault, Include, Line, parse

#: Where it lies, below the machine's root: Slurm's own place, Debian's old one, configless Slurm's.
PLACES = ("etc/slurm/gres.conf", "etc/slurm-llnl/gres.conf", "run/slurm/conf/gres.conf")

MAX_DEPTH = 8  #: of files that include one another


def default(root: Path) -> Path:
    """Return where a machine's file is. Raises InvalidRequestError, which says where it is not."""
    places = [root / place for place in PLACES]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InvalidRequestError(
            f"there is no {', no '.join(map(str, places))}; name the file with --gres-conf"
        )
    return found


def read(path: Path) -> Iterator[Line | Fault]:
    """Yield the lines of a file, those of included ones where they are named.

    Raises InvalidRequestError for a file that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from None
    yield from _with_included(text, path, path.parent, MAX_DEPTH)


def _with_included(text: str, path: Path, folder: Path, depth: int) -> Iterator[Line | Fault]:
    for line in parse(text, str(path)):
        if isinstance(line, Include):
            yield from _included(line, folder, depth)
        else:
            yield line


def _included(line: Include, folder: Path, depth: int) -> Iterator[Line | Fault]:
    """Read a file that is named from the folder of slurm.conf, wherever it is included."""
    included = folder / line.path
    if depth == 0:
        yield Fault(line.place, f"{included} is included more than {MAX_DEPTH} files deep")
        return
    try:
        text = included.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        yield Fault(line.place, f"Include {included}: {error.strerror}")
        return
    yield from _with_included(text, included, folder, depth - 1)
