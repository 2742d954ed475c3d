"""`affinityd top`: the state of the node in a terminal, redrawn in place."""

from __future__ import annotations

import argparse
import curses
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial

from affinityd.audit.document import AuditDocument, document, everything
from affinityd.cli.commands.audit import auditor_by
from affinityd.cli.parser import Parser, add_settings, load_settings, sockets
from affinityd.cli.render.top import View, screen
from affinityd.cli.target import this_machine
from affinityd.client import ask_daemon
from affinityd.discovery.nvml.query import query_processes
from affinityd.errors import AffinityError, DaemonError, NoDaemonError
from affinityd.json_codec import loads
from affinityd.text import count, one_line

TIMEOUT = 2.0  #: seconds for which a daemon is waited for
EVERY = 2.0  #: seconds between two looks
KEY_MILLISECONDS = 1000  #: for which a key is waited for, before the age is drawn again
MOST_BYTES = 64 * 2**20
#: Key → lines by which it scrolls.
SCROLLS = {curses.KEY_DOWN: 1, curses.KEY_UP: -1, curses.KEY_NPAGE: 10, curses.KEY_PPAGE: -10}
KEYS = "q quit   arrows scroll   s sort by {sort}   / filter {wanted}   g GPU {gpu}"

#: Returns the state of the node, and its source.
Look = Callable[[], tuple[AuditDocument, str]]


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    add_settings(parser, ("socket", "pod_resources"))


def run(arguments: argparse.Namespace) -> int:
    """Show the state until `q`; where stdout is no terminal, print it once. 0."""
    look = looking(arguments)
    if not _has_screen():
        audit, source = look()
        print("\n".join(map(one_line, screen(audit, View(), source, time.time()))))
        return 0
    os.environ.setdefault("ESCDELAY", "25")
    curses.wrapper(Screen(look).run)
    return 0


def _has_screen() -> bool:
    """Return whether lines can be drawn over others, and keys be read."""
    if not all(file is not None and file.isatty() for file in (sys.stdin, sys.stdout)):
        return False
    try:
        curses.setupterm()
    except curses.error:  # TERM is unset, or not known here
        return False
    return curses.tigetstr("cup") is not None


def looking(arguments: argparse.Namespace) -> Look:
    """Return a function that asks the daemon, or scans where none listens."""
    addresses, auditor = sockets(arguments), None

    def look() -> tuple[AuditDocument, str]:
        nonlocal auditor
        for address in addresses:
            if (audit := _asked(address)) is not None:
                return audit, f"by the daemon at {address}"
        node = this_machine("has no processes")
        settings = load_settings(arguments)
        auditor = auditor or auditor_by(settings, query_processes, node.reserved)
        scan = auditor.scan(node.topology)
        return document(node.topology, scan, everything), "no daemon: by its own scan"

    return look


def _asked(address: str) -> AuditDocument | None:
    """Return a daemon's answer; None: none listens there. Raises DaemonError."""
    try:
        text = ask_daemon.fetch(address, "/audit", time.monotonic() + TIMEOUT, most=MOST_BYTES)
        return _read(text)
    except NoDaemonError:
        return None
    except ValueError as error:
        raise DaemonError(f"cannot parse the daemon's /audit response: {error}") from None


@lru_cache(maxsize=1)
def _read(text: str) -> AuditDocument:
    """Return a daemon's document, read once a scan: thousands of processes take half a second."""
    return loads(AuditDocument, text, "audit")


class Screen:
    """The terminal."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._view = View()
        self._typing = False  # the filter
        self._audit: AuditDocument | None = None
        self._source, self._trouble = "", ""
        self._due = 0.0
        self._first = 0  # line that is shown

    def run(self, window: curses.window) -> None:
        """Draw until `q`, Ctrl-C or the end of input."""
        for set_up in (partial(curses.curs_set, 0), curses.use_default_colors):
            with suppress(curses.error):  # a console's terminal has neither, as vt100 and vt220
                set_up()
        try:
            while True:
                if time.monotonic() >= self._due:
                    self._refresh()
                self._draw(window)
                window.timeout(KEY_MILLISECONDS)
                key = window.getch()
                window.timeout(0)  # all that were typed meanwhile, before it is drawn again
                while key != curses.ERR:
                    if not self._take(key):
                        return
                    key = window.getch()
        except KeyboardInterrupt:
            return

    def _refresh(self) -> None:
        try:
            self._audit, self._source = self._look()
            self._trouble = ""
            self._view = self._view.of(len(self._audit.gpus))
        except AffinityError as error:  # the last state stays, with its age
            self._trouble = str(error)
        self._due = time.monotonic() + EVERY

    def _take(self, key: int) -> bool:
        """Act on a key; return whether to go on."""
        if self._typing:
            wanted = self._view.wanted
            if key in {ord("\n"), curses.KEY_ENTER, 27}:  # Escape
                self._typing = False
                wanted = "" if key == 27 else wanted  # noqa: PLR2004
            elif key in {curses.KEY_BACKSPACE, 8, 127}:
                wanted = wanted[:-1]
            elif 32 <= key < 127:  # noqa: PLR2004 - printable ASCII
                wanted += chr(key)
            self._view = replace(self._view, wanted=wanted)
        elif key == ord("s"):
            self._view = self._view.next_sort()
        elif key == ord("g") and self._audit is not None:
            self._view = self._view.next_gpu(len(self._audit.gpus))
        elif key == ord("/"):
            self._typing = True
        self._first += SCROLLS.get(key, 0)
        return self._typing or key != ord("q")

    def _draw(self, window: curses.window) -> None:
        view, audit = self._view, self._audit
        keys = KEYS.format(
            sort=view.sort,
            wanted=f"{view.wanted}_" if self._typing else view.wanted or "none",
            gpu="all" if view.gpu is None or audit is None else audit.gpus[view.gpu].index,
        )
        lines: list[str] = [self._trouble] if self._trouble else []
        if audit is not None:
            lines += screen(audit, view, self._source, time.time())
        room = max(0, window.getmaxyx()[0] - 2)
        self._first = max(0, min(self._first, len(lines) - room))
        shown = lines[self._first : self._first + room]
        below = len(lines) - self._first - len(shown)
        _show(window, [*shown, f"and {count(below, 'line')} more below" if below else "", keys])


def _show(window: curses.window, lines: Sequence[str]) -> None:
    height, width = window.getmaxyx()
    *above, keys = lines
    window.erase()
    for row, line in enumerate(above[: height - 1]):
        window.addnstr(row, 0, one_line(line), width - 1)
    try:
        window.addnstr(height - 1, 0, keys, width - 1, curses.A_REVERSE)
    except curses.error:  # a window of one column
        return
    window.refresh()
