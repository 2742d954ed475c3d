"""The command line: one file for each command, imported when the command runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from types import ModuleType
from typing import TYPE_CHECKING

from affinityd.cli.console import give_up_stdout, say
from affinityd.errors import AffinityError
from affinityd.text import quote

if TYPE_CHECKING:
    from affinityd.cli.parser import Parser

COMMANDS = {
    "serve": "run the daemon: plans, audits, metrics",
    "plan": "print a cpulist for each rank, without a daemon",
    "exec": "run a command on the CPUs near its GPU",
    "init": "write the files that pin a pod's programs, in an init container",
    "pin": "pin a running process near its GPU, thread by thread",
    "verify": "check whether a process runs near its GPU",
    "why": "measure how long a process waits for CPUs, and why",
    "audit": "show the processes of each GPU, and which run far from it",
    "doctor": "check this node for settings that keep ranks from near CPUs",
    "topology": "show the node as a tree: packages, NUMA nodes, GPUs, NICs",
    "slurm": "print this node's lines of gres.conf, or compare slurmd's with them",
    "snapshot": "archive this node's files; unpacked elsewhere, --root reads them",
    "version": "print the version",
}


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code: 0: done; 1: it cannot be done; 2: bad usage.

    Raises SystemExit for bad usage that argparse finds.
    """
    if argv and argv[0].startswith("-") and "--" in argv:
        argv = ["exec", *argv]  # `affinityd -- CMD` means exec: a missing word must not fail a job
    if argv and argv[0] == "help":
        argv = [*argv[1:2], "--help"]
    name = _command(argv[0] if argv else "")
    try:
        command = _import(name)
        if hasattr(command, "main"):
            return int(command.main(argv[1:]))
        return int(command.run(parser_of(name).parse_args(argv[1:])))
    except AffinityError as error:
        say(f"affinityd {name}: {error}")
        return int(getattr(command, "TROUBLE", error.exit_code))
    except ModuleNotFoundError as error:
        if name == "exec" or (error.name or "").startswith("affinityd"):
            raise  # a part of affinityd itself is missing, not an extra
        say(
            f"affinityd {name}: {error.name} is not installed; install the package "
            "affinityd-daemon, or affinityd's extra daemon (docs/install.md)"
        )
        return 1


def parser_of(name: str) -> Parser:
    """Return the parser of a command; exec's own parser has the same options."""
    from affinityd.cli.parser import Parser  # noqa: PLC0415 - exec starts without argparse

    command = _import(name)
    about = COMMANDS[name]
    parser = Parser(
        prog=f"affinityd {name}",
        description=f"{about[0].upper()}{about[1:]}.",
        epilog="exit status: 0: done; 1: it cannot be done; 2: the command line is wrong",
    )
    command.add_arguments(parser)
    return parser


def _import(name: str) -> ModuleType:
    """Import a command. Raises ImportError if one of its files cannot be read."""
    try:
        return import_module(f"affinityd.cli.commands.{name}")
    except OSError as error:  # `entry` would take an OSError for an error of stdout
        raise ImportError(f"{name} cannot be imported: {error}") from error


def entry() -> None:
    """Run as a program."""
    if sys.argv[1:2] == ["serve"]:
        from affinityd import daemon  # noqa: PLC0415 - only the daemon needs it

        daemon.hold_signals()  # signals wait until their handlers are set
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a character shows a ?
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = main(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, like head(1), has ended
        give_up_stdout()
        code = 0
    except OSError as error:
        say(f"affinityd: the answer could not be written: {error.strerror}")
        give_up_stdout()
        code = 1
    except KeyboardInterrupt:
        code = 130  # 128 + SIGINT, as in a shell
    sys.exit(code)


def _command(word: str) -> str:
    """Return the name of the command. Raises SystemExit for --help and for an unknown command."""
    if word in {"-V", "--version"}:
        return "version"
    if word in COMMANDS:
        return word
    if word in {"-h", "--help"}:
        print(
            "usage: affinityd COMMAND [OPTION …]\n\n"
            "Runs each GPU's process on the CPUs near that GPU, and checks that it stays there.\n\n"
            "commands:"
        )
        for command, about in COMMANDS.items():
            print(f"  {command:<10}{about}")
        print("\naffinityd COMMAND --help shows the options of a command.")
        raise SystemExit(0)
    from affinityd.config.removed import refusal  # noqa: PLC0415 - few type a wrong word
    from affinityd.request.parameters import suggestion  # noqa: PLC0415 - as few

    if not word:
        line = f"a command is missing; there are {', '.join(COMMANDS)}"
    else:
        line = f"{quote(word)} is no command; {suggestion(word, [*COMMANDS, '--help'])}"
    say(refusal(word) or f"affinityd: {line}")
    raise SystemExit(2)
