"""The parts of a command line that all commands share."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import NoReturn

from affinityd import machines
from affinityd.cli.console import flag
from affinityd.config import file, settings
from affinityd.text import one_line


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with errors of one line, and without abbreviations."""

    def __init__(self, **options: object) -> None:
        """Take ArgumentParser's options."""
        super().__init__(**{"allow_abbrev": False, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line."""
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0]
        near = difflib.get_close_matches(unknown[:64], self._option_string_actions, n=1)
        meant = f"; did you mean {near[0]}?" if near else f"; see {self.prog} --help"
        line = one_line(f"{self.prog}: {message}{meant}")
        self.exit(2, f"{line}\n")


def add_format(parser: argparse.ArgumentParser, plain: str, json: str = "a JSON document") -> None:
    """Add --format, `plain` or json, and --json for the latter. The last of them counts."""
    parser.add_argument(
        "--format", choices=(plain, "json"), default=plain, help=f"{plain} (default), or {json}"
    )
    parser.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="the same as --format json",
    )


def add_settings(parser: Parser, names: Iterable[str]) -> None:
    """Add flags for settings, each of which is also a variable and a line of the file."""
    group = parser.add_argument_group(
        "settings", f"also AFFINITYD_* variables and lines of {file.DEFAULT_PATH}"
    )
    for name in names:
        setting = settings.SETTINGS[name]
        group.add_argument(
            flag(name),
            metavar=setting.metavar,
            help=setting.help.format(machines=", ".join(machines.NAMES)),
        )


def load_settings(arguments: argparse.Namespace) -> settings.Settings:
    """Return the settings of flags, variables and file. Raises InvalidRequestError.

    Settings of the daemon count only for the command that has their flags.
    """
    flags = vars(arguments)
    others = settings.DAEMON_ONLY - flags.keys()
    return settings.load(flags, names=[name for name in settings.NAMES if name not in others])
