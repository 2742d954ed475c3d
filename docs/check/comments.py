"""The comments of the package, the scripts, the chart and the units."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from docs.check.pages import ROOT

COMMENT = re.compile(r"(?:^|\s)(?:#:?|/\*)\s(.*)")
COMMENTED = (
    *("affinityd/**/*.py", "affinityd/kubernetes/files/*.sh", "slurm/*.sh", "slurm/*.conf"),
    *(
        "scripts/*",
        "deploy/**/*.y*ml",
        "deploy/**/*.tpl",
        "deploy/systemd/**/*",
        "deploy/grafana/*.py",
        "Dockerfile",
    ),
)


def comments() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each line of a comment."""
    for path in sorted(path for pattern in COMMENTED for path in ROOT.glob(pattern)):
        if path.is_file():
            for number, text in _of_python(path) if path.suffix == ".py" else _of_lines(path):
                yield f"{path.relative_to(ROOT)}:{number}", text


def _of_python(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")


def _of_lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := COMMENT.search(line):
            yield number, found[1]
