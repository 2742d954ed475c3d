"""A machine as an SVG file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from affinityd.cli.parser import Parser
from affinityd.errors import OutputError

if TYPE_CHECKING:
    from affinityd.picture import Marks
    from affinityd.topology.model import Topology


def add_svg(parser: Parser) -> None:
    """Add --svg."""
    parser.add_argument("--svg", metavar="FILE", type=_file, help="also draw a picture, as SVG")


def _file(text: str) -> Path:
    """Return the path. Raises ArgumentTypeError for "-": stdout has the text already."""
    if text == "-":
        raise argparse.ArgumentTypeError(
            "'-' is no file, and stdout has the text; name a file like plan.svg"
        )
    return Path(text)


def write_svg(
    arguments: argparse.Namespace, topology: Topology, marks: Callable[[], Marks]
) -> None:
    """Write the picture where --svg says, with its marks. Raises OutputError."""
    path: Path | None = arguments.svg
    if path is None:
        return
    from affinityd.picture import draw  # noqa: PLC0415 - few ask for a picture

    try:
        path.write_text(draw(topology, marks()), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
