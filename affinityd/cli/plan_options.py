"""The parameters of a plan as options of a command."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable

from affinityd.cli.console import flag
from affinityd.cli.parser import Parser
from affinityd.errors import InvalidRequestError
from affinityd.request.parameters import PARAMETERS

#: The format of an answer is each command's own, and the options of a client are those of `exec`.
NAMES = tuple(name for name in PARAMETERS if name not in {"format", "observe"})
#: Options that choose GPUs.
DEVICES = ("gpus", "rank", "ranks", "job", "visible", "granted", "nvidia_visible")


def add_options(parser: Parser, title: str, names: Iterable[str], mode: str = "node") -> None:
    """Add parameters of a plan; `mode` is the default one, for the help."""
    group = parser.add_argument_group(title)
    for name in names:
        add_option(group, name, mode)


def add_option(group: argparse._ActionsContainer, name: str, mode: str = "node") -> None:
    """Add a parameter of a plan; a flag without a value means true."""
    parameter = PARAMETERS[name]
    text = f"{parameter.help} (default: {mode})" if name == "mode" else parameter.help
    if parameter.schema["type"] == "boolean":
        group.add_argument(flag(name), nargs="?", const="true", action="append", help=text)
    else:
        metavar = "|".join(parameter.schema.get("enum", ())) or name.upper()
        group.add_argument(flag(name), metavar=metavar, action="append", help=text)


def given(arguments: argparse.Namespace, names: Iterable[str] = NAMES) -> dict[str, str]:
    """Return the parameters that were given: options, by the API's names.

    Raises InvalidRequestError for one that is given twice.
    """
    texts = {name: said for name in names if (said := getattr(arguments, name, None))}
    for name, said in texts.items():
        if len(said) > 1:
            raise InvalidRequestError(f"{name} is given twice; give it once")
    return {name: said[0] for name, said in texts.items()}


def devices(arguments: argparse.Namespace) -> str:
    """Return the options that choose GPUs, quoted for a shell."""
    said = given(arguments)
    return "".join(f"{flag(name)} {shlex.quote(said[name])} " for name in DEVICES if name in said)
