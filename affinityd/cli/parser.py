"""The parts of a command line that all commands share."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Container, Iterable, Mapping
from typing import NoReturn

from affinityd import config, machines
from affinityd.cli.console import flag
from affinityd.config import removed, settings
from affinityd.errors import InvalidRequestError
from affinityd.request.parameters import PARAMETERS
from affinityd.text import one_line, quote


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, and which takes no abbreviations."""

    def __init__(self, **options: object) -> None:
        """Take ArgumentParser's options."""
        super().__init__(**{"allow_abbrev": False, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line."""
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0]
        choice = message.partition("invalid choice: ")[2].partition(" ")[0].strip("'")
        word = unknown.partition("=")[0] or choice
        if word:
            refusal = removed.refusal(f"{self.prog.removeprefix('affinityd ')} {word}")
            if refusal:
                self.exit(2, f"{refusal}\n")
        similar = difflib.get_close_matches(unknown[:64], self._option_string_actions, n=1)
        hint = f"see {self.prog} --help"
        if similar:
            hint = f"did you mean {similar[0]}?"
        line = one_line(f"{self.prog}: {message}; {hint}")
        self.exit(2, f"{line}\n")


def add_format(parser: argparse.ArgumentParser, plain: str, json: str = "a JSON document") -> None:
    """Add --format with `plain` or json, and --json. The last of them that is given counts."""
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


def duration(text: str) -> float:
    """Parse seconds, or minutes with an `m`. Raises ArgumentTypeError."""
    factor = 60.0 if text.endswith("m") else 1.0
    number = text[:-1] if text.endswith(("s", "m")) else text
    try:
        seconds = float(number) * factor
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:  # noqa: PLR2004 - from ten ticks of the kernel to an hour
        raise argparse.ArgumentTypeError(
            f"{quote(text)} is not a time from 0.1s to 60m, like 10s or 2m"
        )
    return seconds


def add_settings(parser: Parser, names: Iterable[str], shown: Container[str] = ()) -> None:
    """Add flags for settings, which variables and lines of the settings file may also set.

    The help shows the settings in `shown`, or all settings if that is empty.
    """
    group = parser.add_argument_group(
        "settings", f"also AFFINITYD_* variables and lines of {config.DEFAULT_PATH}"
    )
    for name in names:
        setting = settings.SETTINGS[name]
        text = setting.help.format(machines=", ".join((*machines.NAMES, machines.BUSY)))
        if shown and name not in shown:
            text = argparse.SUPPRESS
        group.add_argument(flag(name), metavar=setting.metavar, help=text)


def sockets(arguments: argparse.Namespace) -> list[str]:
    """Return the sockets at which to ask a daemon: --socket, else the usual ones."""
    variables = config.variables()
    if arguments.socket is not None:
        variables[f"{config.PREFIX}SOCKET"] = arguments.socket
    return config.sockets(variables)


def load_settings(arguments: argparse.Namespace) -> settings.Settings:
    """Return the settings; only flags set those in DAEMON_ONLY. Raises InvalidRequestError."""
    flags = vars(arguments)
    ignored = settings.DAEMON_ONLY - flags.keys()
    names = [name for name in settings.SETTING_NAMES if name not in ignored]
    return settings.load(flags, names=names)


#: Plan parameters that many commands take; the other parameters are each command's own.
PLAN_OPTIONS = tuple(
    name for name in PARAMETERS if name not in {"format", "observe", "choose", "gpus_per_rank"}
)
#: Options that choose GPUs.
DEVICE_OPTIONS = ("gpus", "rank", "ranks", "job", "visible", "granted")


def add_plan_options(parser: Parser, title: str, names: Iterable[str]) -> None:
    """Add parameters of a plan; the help shows those that people type, docs/api.md shows all."""
    group = parser.add_argument_group(title, "docs/api.md has more of them")
    typed = {"gpus", "mode", "cpuset", "visible"}
    for name in names:
        parameter = PARAMETERS[name]
        text = argparse.SUPPRESS
        if name in typed:
            text = parameter.help
        if name == "mode":
            text = f"{text}: {', '.join(parameter.schema['enum'])} (default: node)"
        if parameter.schema["type"] == "boolean":  # without a value the option means true
            group.add_argument(flag(name), nargs="?", const="true", action="append", help=text)
        else:
            group.add_argument(flag(name), metavar=name.upper(), action="append", help=text)


def plan_options(
    arguments: argparse.Namespace, names: Iterable[str] = PLAN_OPTIONS
) -> dict[str, str]:
    """Return the parameters of a plan among the arguments, by the API's names.

    Raises InvalidRequestError for a parameter that is given twice.
    """
    chosen = {}
    for name in names:
        texts = getattr(arguments, name, None) or []
        if len(texts) > 1:
            raise InvalidRequestError(f"{name} is given twice; give it once")
        if texts:
            chosen[name] = texts[0]
    return chosen


def device_options(chosen: Mapping[str, str]) -> str:
    """Return the options for those parameters that choose GPUs, quoted for a shell."""
    options = ""
    for name in DEVICE_OPTIONS:
        if name in chosen:
            options += f"{flag(name)} {shlex.quote(chosen[name])} "
    return options
