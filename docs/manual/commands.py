"""The commands with their options, as the parsers have them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from affinityd import machines
from affinityd.cli import COMMANDS, parser_of
from affinityd.doctor.checks import CHECKS

#: Placeholders of values that are paths.
PATHS = {"ARCHIVE", "DIR", "FILE", "FOLDER", "PATH", "SOCKET"}
#: The words that may stand for a value, where its placeholder does not list them.
WORDS = {"--machine": machines.NAMES, "CHECK": tuple(CHECKS)}


@dataclass(frozen=True)
class Option:
    """An option, or an argument, which has no names."""

    names: tuple[str, ...]
    value: str  #: its placeholder; empty: it takes none
    may_be_absent: bool  #: the value of the option, or the argument
    words: tuple[str, ...]  #: that may stand for the value
    help: str
    is_required: bool

    @property
    def usage(self) -> str:
        """How it stands in the line of usage; empty: it does not."""
        if not self.names:
            return f"[{self.value}]" if self.may_be_absent else self.value
        return f"{self.names[-1]} {self.value}" if self.is_required else ""

    @property
    def is_path(self) -> bool:
        """Whether the value may be a path."""
        return not PATHS.isdisjoint(self.value.split("|"))

    @property
    def is_pid(self) -> bool:
        """Whether the value is a process."""
        return self.value == "PID"


@dataclass(frozen=True)
class Group:
    """Options below one title."""

    title: str
    about: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Command:
    """A command, or one of its subcommands: `slurm check`."""

    name: str
    usage: str
    about: str
    groups: tuple[Group, ...]
    subcommands: tuple[str, ...]
    epilog: str

    @property
    def options(self) -> list[Option]:
        """All that begins with a dash."""
        return [it for group in self.groups for it in group.options if it.names]

    @property
    def arguments(self) -> list[Option]:
        """All that does not."""
        return [it for group in self.groups for it in group.options if not it.names]

    @property
    def words(self) -> list[str]:
        """All words that may follow the command."""
        names = [name for option in self.options for name in option.names]
        values = [word for argument in self.arguments for word in argument.words]
        return [*self.subcommands, *names, *values]


def all_commands() -> list[Command]:
    """Return all commands, each before its subcommands."""
    return [each for name in COMMANDS for each in _commands(name, parser_of(name))]


# ruff: noqa: SLF001 - argparse has no other way to list its parts
def _commands(name: str, parser: argparse.ArgumentParser) -> Iterator[Command]:
    subparsers: dict[str, argparse.ArgumentParser] = {}
    groups = []
    for group in parser._action_groups:
        options = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                subparsers.update(action.choices)
            else:
                options.append(_option(action))
        if options:
            groups.append(Group(group.title or "", group.description or "", tuple(options)))
    arguments = [it.usage for group in groups for it in group.options if it.usage]
    if subparsers:
        arguments.append("COMMAND")
    yield Command(
        name,
        parser.usage or " ".join(["affinityd", name, "[OPTION …]", *arguments]),
        parser.description or "",
        tuple(groups),
        tuple(subparsers),
        parser.epilog or "",
    )
    for word, subparser in subparsers.items():
        yield from _commands(f"{name} {word}", subparser)


def _option(action: argparse.Action) -> Option:
    metavar = action.metavar if isinstance(action.metavar, str) else None
    words = tuple(map(str, action.choices or ()))
    value = "" if action.nargs == 0 else metavar or "|".join(words) or action.dest.upper()
    if not words:
        words = tuple(it for it in value.replace(",", "|").split("|") if it.islower())
    names = tuple(action.option_strings)
    words = WORDS.get(names[-1] if names else value, words)
    return Option(
        names, value, action.nargs in {"?", "*"}, words, action.help or "", action.required
    )
