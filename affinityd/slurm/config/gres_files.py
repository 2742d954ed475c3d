"""gres.conf and slurm.conf as files, with the files that they include."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from affinityd.config.file import MAX_FILE
from affinityd.errors import InvalidRequestError
from affinityd.slurm.config.gres_parser import Fault, Include, Line, parse

GRES_CONF = "gres.conf"
SLURM_CONF = "slurm.conf"

#: Where both lie, below the machine's root: in Slurm's own folder, Debian's old one, that of
#: configless Slurm.
FOLDERS = ("etc/slurm", "etc/slurm-llnl", "run/slurm/conf")

#: What splits a file's text into lines; the second argument is the file's name.
Parse = Callable[[str, str], Iterable[Line | Include | Fault]]

MAX_DEPTH = 8  #: of files that include one another
MAX_LINES = 20_000  #: of all files together, which have no more than MAX_FILE characters


def default(root: Path, name: str = GRES_CONF, beside: Path | None = None) -> Path:
    """Return where a machine's file of that name is.

    `beside`: a slurm.conf that was named, whose folder comes before the others. Raises
    InvalidRequestError, which says where the file is not.
    """
    places = [root / folder / name for folder in FOLDERS]
    if beside is not None:
        places.insert(0, beside.parent / name)
    try:
        found = next((place for place in places if place.is_file()), None)
    except OSError as error:
        raise InvalidRequestError(f"{error.filename} cannot be read: {error.strerror}") from None
    if found is None:
        flag = f"--{name.replace('.', '-')}"
        raise InvalidRequestError(
            f"there is no {', no '.join(map(str, places))}; name the file with {flag}"
        )
    return found


def read(path: Path, parse: Parse = parse) -> Iterator[Line | Fault]:
    """Yield the lines of a file, those of included ones where they are named.

    Raises InvalidRequestError for a file that cannot be read, or is no regular one, or too long.
    """
    yield from _Files(path.parent, parse).read(path, ())


@dataclass
class _Files:
    """The file and all that it includes, which are bounded together."""

    folder: Path  #: of slurm.conf: an included file is named from there, wherever it is included
    parse: Parse
    characters: int = 0
    lines: int = 0

    def read(self, path: Path, above: tuple[os.stat_result, ...]) -> Iterator[Line | Fault]:
        """Yield the lines of one. `above`: the files that include it, the outermost first."""
        try:
            file = path.stat()
            text = self._text(path, file, above)
        except OSError as error:
            raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from None
        for line in self.parse(text, str(path)):
            if isinstance(line, Include):
                yield from self._included(line, (*above, file))
            else:
                yield line

    def _included(self, line: Include, above: tuple[os.stat_result, ...]) -> Iterator[Line | Fault]:
        try:
            yield from self.read(self.folder / line.path, above)
        except InvalidRequestError as error:
            if self.characters > MAX_FILE or self.lines > MAX_LINES:
                raise  # or each Include= that follows would be told
            yield Fault(line.place, f"Include: {error}")

    def _text(self, path: Path, file: os.stat_result, above: tuple[os.stat_result, ...]) -> str:
        self.characters += file.st_size
        _refuse(
            path,
            {
                "is no regular file": not stat.S_ISREG(file.st_mode),
                "includes itself": any(os.path.samestat(file, it) for it in above),
                f"is included more than {MAX_DEPTH} files deep": len(above) > MAX_DEPTH,
                f"and the files before it have more than {MAX_FILE} characters": (
                    self.characters > MAX_FILE
                ),
            },
        )
        with path.open(encoding="utf-8", errors="surrogateescape") as opened:
            text = opened.read(file.st_size)  # no more: a file of /proc may wait for its end
        self.lines += text.count("\n") + 1
        _refuse(
            path,
            {
                "has a NUL in it": "\0" in text,
                f"and the files before it have more than {MAX_LINES} lines": self.lines > MAX_LINES,
            },
        )
        return text


def _refuse(path: Path, faults: Mapping[str, bool]) -> None:
    """Raise InvalidRequestError for the first fault that a file has."""
    for fault, is_so in faults.items():
        if is_so:
            raise InvalidRequestError(f"{path} {fault}")
