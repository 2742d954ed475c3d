"""`affinityd fleet`: which jobs were placed far from their GPUs, by which cause, and GPU-hours."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from affinityd.cli.console import say
from affinityd.cli.parser import Parser, add_format
from affinityd.cli.render.fleet import lines
from affinityd.errors import InvalidRequestError
from affinityd.fleet.prometheus import Prometheus
from affinityd.fleet.queries import DAEMONS, KEYS, Queries
from affinityd.fleet.report import report
from affinityd.json_codec import dumps
from affinityd.text import one_line, quote

TROUBLE = 2  #: exit code of every error: 1 is an answer
SINCE = "7d"
UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
SHORTEST, LONGEST = UNITS["m"], 366 * UNITS["d"]
MOST_ROWS = 20

#: A field of a request, RFC 9110: its name, and its value in visible characters.
HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*)")

WITHOUT_RULES = (
    "these are the daemons' own series, as the rules have recorded less; with rules/affinityd.yaml "
    "loaded (docs/monitoring.md), Prometheus reads fewer samples"
)


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        required=True,
        help="of a Prometheus that scrapes the daemons, or of a server with its API",
    )
    parser.add_argument(
        "--header-file",
        metavar="FILE",
        help="HTTP headers to send, one a line: Authorization: Bearer TOKEN",
    )
    parser.add_argument(
        "--since",
        metavar="TIME",
        type=_seconds,
        default=SINCE,
        help=f"how far back, in m, h, d or w (default: {SINCE})",
    )
    parser.add_argument(
        "--by", choices=tuple(KEYS), default="job", help="what a row is (default: job)"
    )
    parser.add_argument(
        "--all", action="store_true", help=f"all rows, not only the first {MOST_ROWS}"
    )
    add_format(parser, "table", "a JSON document with all rows")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 0: no job was placed far, 1: one was, 2: unknown."""
    headers = _headers(arguments.header_file) if arguments.header_file else {}
    prometheus = Prometheus(_url(arguments.prometheus), headers)
    found = report(prometheus.query, Queries(arguments.by, arguments.since))
    if arguments.format == "json":
        print(dumps(found))
    else:
        print("\n".join(map(one_line, lines(found, None if arguments.all else MOST_ROWS))))
    if found.source == DAEMONS.name:
        say(f"affinityd fleet: {WITHOUT_RULES}")
    return 1 if found.rows else 0


def _seconds(text: str) -> int:
    number = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    seconds = int(number[1]) * UNITS[number[2]] if number else 0
    if not SHORTEST <= seconds <= LONGEST:
        raise argparse.ArgumentTypeError(
            f"{quote(text)} is not a time like 30m, 12h, 7d or 4w, of at most 366d"
        )
    return seconds


def _url(text: str) -> str:
    """Return a server's URL without a slash at its end. Raises InvalidRequestError."""
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise InvalidRequestError(
            f"--prometheus {quote(text)} is no URL like https://prometheus.example.org"
        )
    if "@" in parts.netloc:
        raise InvalidRequestError(
            "--prometheus has a password, which every user of this node could read: put the line "
            "`Authorization: Basic …` into a file for --header-file"
        )
    return text.rstrip("/")


def _headers(path: str) -> Mapping[str, str]:
    """Return the headers that a file has, one a line, as curl's `-H @FILE` reads them.

    Raises InvalidRequestError, which quotes no line: they are secrets.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidRequestError(f"--header-file {quote(path)}: {why}") from None
    headers = {}
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            found = HEADER.fullmatch(line.rstrip())
            if found is None:
                raise InvalidRequestError(
                    f"--header-file {quote(path)}: line {number} is no header like "
                    "`Authorization: Bearer TOKEN`"
                )
            headers[found[1]] = found[2]
    return headers
