"""Writes the manual as it lies in /usr/share: python -m docs.manual FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.manual import completion, pages
from docs.manual.commands import all_commands


def main(folder: Path) -> None:
    """Write every file below the folder."""
    commands = all_commands()
    files = {
        "man/man1/affinityd.1": pages.of_commands(commands),
        "man/man5/affinityd.conf.5": pages.of_settings(),
        "bash-completion/completions/affinityd": completion.bash(commands),
        "zsh/site-functions/_affinityd": completion.zsh(commands),
        "fish/vendor_completions.d/affinityd.fish": completion.fish(commands),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if len(sys.argv) != 2:  # noqa: PLR2004
    sys.exit("usage: python -m docs.manual FOLDER")
main(Path(sys.argv[1]))
