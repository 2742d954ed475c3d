"""Jobs, as a training has them: ranks, each with a thread and workers that can unpin themselves.

A rank goes into the cgroup that an argument names. A worker that is sent SIGUSR1 lets itself run on
every CPU, as what OpenMP's runtimes do to a child.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

WORKERS = 2  #: of each rank


def main() -> None:
    """Start the ranks, say so when all of them and their workers run, and wait."""
    groups = sys.argv[1:]
    told, tell = os.pipe()
    for group in groups:
        if os.fork() == 0:
            _rank(group, tell)
    for _ in range(len(groups) * (1 + WORKERS)):
        os.read(told, 1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.pause()


def _rank(group: str, tell: int) -> NoReturn:
    Path(group, "cgroup.procs").write_text("0")  # whoever writes it
    for _ in range(WORKERS):
        if os.fork() == 0:
            signal.signal(signal.SIGUSR1, lambda *_: os.sched_setaffinity(0, range(32)))
            _idle(tell)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    _idle(tell)


def _idle(tell: int) -> NoReturn:
    os.write(tell, b".")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
