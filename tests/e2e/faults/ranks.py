"""Ranks on a machine of two CPUs: commands that `affinityd exec` starts where they belong."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.daemons import PATIENCE
from tests.support.tiny import FAR, LOOK, NEAR

PLACES = {"0": NEAR, "1": FAR}  #: GPU → the only CPU that is right for it


@dataclass
class Started:
    """What came of ranks that were started."""

    pinned: int = 0
    wrong: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  #: lines on stderr


def environment(socket: Path, *, timeout: float = PATIENCE) -> dict[str, str]:
    """Return what leads a rank to a daemon, whoever runs the tests, however busy the machine is."""
    return {
        "PATH": os.environ["PATH"],
        "AFFINITYD_CONFIG": "/nonexistent",
        "AFFINITYD_SOCKET": os.fspath(socket),
        "AFFINITYD_DAEMON_UID": str(os.getuid()),
        "AFFINITYD_TIMEOUT": str(timeout),
    }


def start(
    gpu: str, env: Mapping[str, str], started: Started, *, checkout: Path | None = None
) -> None:
    """Start a rank, by the program of a checkout, and note where it ran."""
    done = subprocess.run(
        [sys.executable, "-m", "affinityd", "exec", f"--gpus={gpu}", "--", *LOOK],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        cwd=checkout,
        timeout=2 * PATIENCE,
    )
    started.said += done.stderr.splitlines()
    if done.returncode == 0 and done.stdout.split(":")[1].strip() == PLACES[gpu]:
        started.pinned += 1
    else:
        started.wrong.append(f"GPU {gpu}: {done.returncode} {done.stdout!r} {done.stderr!r}")


def start_many(
    number: int, env: Mapping[str, str], *, checkouts: Sequence[Path | None] = (None,)
) -> Started:
    """Start so many ranks, a few at a time, in turn by the programs of these checkouts."""
    started = Started()

    def rank(place: int) -> None:
        start(str(place % 2), env, started, checkout=checkouts[place // 2 % len(checkouts)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(rank, range(number)))
    return started


def started_more(started: Started, number: int = 4) -> bool:
    """Wait until so many more have started."""
    goal, end = started.pinned + number, time.monotonic() + PATIENCE
    while started.pinned < goal and time.monotonic() < end:
        time.sleep(0.02)
    return started.pinned >= goal


@contextmanager
def starting(env: Mapping[str, str], *, at_once: int = 2) -> Iterator[Started]:
    """Start ranks until the end of the block; one that was not where it belongs fails it."""
    started, over = Started(), threading.Event()

    def loop(gpu: str) -> None:
        while not over.is_set():
            start(gpu, env, started)

    threads = [threading.Thread(target=loop, args=(str(gpu % 2),)) for gpu in range(at_once)]
    for thread in threads:
        thread.start()
    try:
        yield started
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert started.wrong == [], started.wrong[:3]
    assert started.pinned, started.said
