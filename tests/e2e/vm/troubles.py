"""What a machine does to a daemon in the guest: CPUs come and go in a storm, the clock jumps."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from typing import Any

from tests.e2e.vm.inside import bring
from tests.support.daemons import Daemon, eventually

CLIENTS = 8
TOGGLED = "12"  #: a CPU of node 3, whose GPUs are asked about
QUERY = "/plan?gpus=0,1&mode=node&whose=node&format=cpulist"
STORM_SECONDS = 8.0
YEAR = 365 * 86400.0


def storm(daemon: Daemon) -> dict[str, Any]:
    """Take a CPU offline and online while clients ask; return when that was, and each answer.

    `answers` are [began, ended, status, text], `changes` [began, ended, whether it is online].
    """
    answers: list[tuple[float, float, int, str]] = []
    changes: list[tuple[float, float, bool]] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            began = time.monotonic()
            reply = daemon.get(QUERY)
            answers.append((began, time.monotonic(), reply.status, reply.text))

    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    end, online = time.monotonic() + STORM_SECONDS, True
    while time.monotonic() < end or not online:
        online = not online
        began = time.monotonic()
        bring(TOGGLED, online=online)
        changes.append((began, time.monotonic(), online))
        time.sleep(0.2)
    over.set()
    for thread in threads:
        thread.join()
    return {"answers": answers, "changes": changes, "after": daemon.get(QUERY).text}


def clock(daemon: Daemon) -> dict[str, Any]:
    """Set the clock a year on, a year back, and right again; return what is answered then."""
    ahead = time.time() - time.monotonic()
    seen = {"before": _look(daemon)}
    for name, offset in (("a year on", YEAR), ("a year back", -YEAR), ("right again", 0.0)):
        time.clock_settime(time.CLOCK_REALTIME, time.monotonic() + ahead + offset)
        read = _readings(daemon)
        daemon.signal(signal.SIGHUP)
        eventually(partial(_has_read_since, daemon, read), "it is read anew")
        seen[name] = _look(daemon)
    return seen


def _readings(daemon: Daemon) -> int:
    return sum("nothing has changed" in line for line in daemon.lines)


def _has_read_since(daemon: Daemon, readings: int) -> bool:
    return _readings(daemon) > readings


def _look(daemon: Daemon) -> dict[str, Any]:
    ages = [
        float(line.split()[1])
        for line in daemon.get("/metrics").text.splitlines()
        if line.startswith("affinityd_scan_age_seconds ")
    ]
    return {"plan": daemon.get(QUERY).text, "ready": daemon.get("/readyz").status, "ages": ages}
