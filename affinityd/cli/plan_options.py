"""The parameters of a plan as options of a command."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection

from affinityd.cli.parser import Parser
from affinityd.errors import InvalidRequestError
from affinityd.request.parameters import PARAMETERS, Parameter

#: How an answer is written is a command's own business, and what a client keeps is that of `exec`.
NAMES = tuple(name for name in PARAMETERS if name not in {"format", "observe"})
DEVICES = ("gpus", "rank", "ranks", "job", "visible", "granted", "nvidia_visible")


def add_plan_options(parser: Parser, mode: str = "node", *, without: Collection[str] = ()) -> None:
    """Add every parameter of a plan but its format; `mode` is the default one, for the help."""
    group = parser.add_argument_group("the plan")
    for name in NAMES:
        if name not in without:
            _add(group, PARAMETERS[name], mode)


def add_device_options(parser: Parser) -> None:
    """Add the parameters that say which GPUs are meant."""
    group = parser.add_argument_group("the GPUs")
    for name in DEVICES:
        _add(group, PARAMETERS[name], "")


def _add(group: argparse._ArgumentGroup, parameter: Parameter, mode: str) -> None:
    flag = f"--{parameter.name.replace('_', '-')}"
    choices = parameter.schema.get("enum")
    if parameter.schema["type"] == "boolean":  # a flag alone means true
        group.add_argument(flag, nargs="?", const="true", action="append", help=parameter.help)
    else:
        shown = "|".join(choices) if choices else parameter.name.upper()
        default = f" (default: {mode})" if parameter.name == "mode" else ""
        text = f"{parameter.help}{default}"
        group.add_argument(flag, metavar=shown, action="append", help=text)


def given(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the parameters that were given: options, by the API's names.

    Raises InvalidRequestError for one that is given twice.
    """
    texts = {name: getattr(arguments, name, None) or [] for name in NAMES}
    for name, said in texts.items():
        if len(said) > 1:
            raise InvalidRequestError(f"{name} is given twice; give it once")
    return {name: said[0] for name, said in texts.items() if said}


def devices(arguments: argparse.Namespace) -> str:
    """Return the options that say which GPUs are meant, as a shell takes them again."""
    said = given(arguments)
    words = (
        f"--{name.replace('_', '-')} {shlex.quote(said[name])} " for name in DEVICES if name in said
    )
    return "".join(words)
