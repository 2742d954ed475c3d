"""Writes affinityd(1) and the completion of shells as they lie below /usr/share.

scripts/manual runs it, with the packages of manual.txt.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from affinityd import __version__, machines
from affinityd.cli import COMMANDS, parser_of
from affinityd.doctor.checks import CHECKS
from affinityd.request.parameters import PARAMETERS

COMPLETIONS = {
    "bash": "bash-completion/completions/affinityd",
    "zsh": "zsh/site-functions/_affinityd",
    "fish": "fish/vendor_completions.d/affinityd.fish",
}
#: Placeholders of values that are paths.
PATHS = {"DIR", "FILE", "FOLDER", "PATH", "SOCKET"}
#: The words that may be an option's value, if its placeholder does not list them.
WORDS = {"--machine": machines.NAMES, "CHECK": tuple(CHECKS)}


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser of all commands; it is for their description alone."""
    parser = argparse.ArgumentParser(
        "affinityd",
        description="Run each GPU's process on the CPUs near it, and check that it stays there.",
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, about in COMMANDS.items():
        own = parser_of(name)
        commands.add_parser(
            name,
            help=about,
            description=own.description,
            epilog=own.epilog,
            usage=own.usage,
            formatter_class=own.formatter_class,
            parents=[own],
            add_help=False,
        )
        name_values(own)
    return parser


def name_values(parser: argparse.ArgumentParser) -> None:
    """Add what completes the values of a parser's options."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for subparser in action.choices.values():
                name_values(subparser)
            continue
        placeholder = action.metavar if isinstance(action.metavar, str) else ""
        name = action.option_strings[-1] if action.option_strings else placeholder
        listed = placeholder.split("|")
        parameter = PARAMETERS.get(name.removeprefix("--").replace("-", "_"))
        if name in WORDS:
            action.choices = WORDS[name]
        elif parameter is not None and "enum" in parameter.schema:
            action.choices = parameter.schema["enum"]
        elif len(listed) > 1 and placeholder.islower():
            action.choices = listed
        elif not PATHS.isdisjoint(listed):
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def main(folder: Path) -> None:
    """Write every file below the folder."""
    parser = whole_parser()
    title = {"project_name": "affinityd", "version": __version__, "manual_title": "User Commands"}
    about = {"description": "the CPUs and memory near each GPU rank"}
    files = {"man/man1/affinityd.1": str(Manpage(parser, _data={**title, **about}))}
    for shell, name in COMPLETIONS.items():
        files[name] = shtab.complete(parser, shell)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
