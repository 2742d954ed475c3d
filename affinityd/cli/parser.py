"""What all commands share of their command lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import NoReturn

from affinityd import machines
from affinityd.config import file, settings
from affinityd.text import one_line

HELP = {
    "root": ("DIR|ARCHIVE", "the machine's files: a captured folder or archive (default: /)"),
    "machine": ("NAME", f"a shipped machine instead: {', '.join(machines.NAMES)}"),
    "node_name": ("NAME", "what this machine is called (default: its host name)"),
    "socket": ("PATH", "the unix socket (default, as root: /run/affinityd/affinityd.sock)"),
    "listen": ("HOST:PORT|none", "the TCP address (default: 127.0.0.1:9465)"),
    "listen_plan": ("HOST:PORT|none", "a TCP address that answers GET /plan alone (default: none)"),
    "reserved_cpus": ("LIST", "CPUs that are never given to a rank, like 0,64"),
    "scan_interval": (
        "SECONDS|off",
        "how often the GPUs' processes are looked at (default: 15)",
    ),
    "job_series": ("N", "how many jobs have metrics of their own (default: 0)"),
    "admin_group": ("NAME|GID", "who sees every user's processes, as root does (default: nobody)"),
    "enforce": (
        "off|observe|pin",
        "pin GPU jobs that run far from their GPUs, or only say what that would do (default: off)",
    ),
    "enforce_policy": (
        "FILE",
        "which jobs, and how (default: /etc/affinityd-policy.toml, if it is there)",
    ),
    "migrate_memory": (
        "on|off",
        "move the memory of what is pinned near its GPU, too (default: off)",
    ),
    "log_format": ("text|json", "how log lines are written (default: text)"),
}

ALONE = {"migrate_memory": "on"}  #: what flags mean that may stand without a value


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, and which guesses no abbreviations."""

    def __init__(self, **options: object) -> None:
        """Take what ArgumentParser takes."""
        super().__init__(**{"allow_abbrev": False, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line."""
        line = one_line(f"{self.prog}: {message}; see {self.prog} --help")
        self.exit(2, f"{line}\n")


def add_format(parser: argparse.ArgumentParser, plain: str, json: str = "a JSON document") -> None:
    """Add --format, `plain` or json, and --json, which says the latter. The last of them counts."""
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
        metavar, text = HELP[name]
        group.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=metavar,
            nargs="?" if name in ALONE else None,
            const=ALONE.get(name),
            help=text,
        )


def load_settings(arguments: argparse.Namespace) -> settings.Settings:
    """Return the settings that flags, variables and file say. Raises InvalidRequestError.

    Those of the daemon alone count for the command that has their flags.
    """
    flags = vars(arguments)
    others = settings.DAEMON_ONLY - flags.keys()
    return settings.load(flags, names=[name for name in settings.NAMES if name not in others])
