"""What many connections and requests of a user cost the daemon: memory that it has to spare."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from affinityd.daemon.http.refusals import MAX_HEAD
from tests.e2e.daemon.crowds import (
    ANOTHER,
    ANSWER,
    MACHINE,
    REQUEST,
    TARGET,
    as_root,
    connect,
    crowd,
    get,
)
from tests.support.daemons import eventually, is_ready, running

#: Bytes that one user may cost: a fraction of what the unit gives the daemon (MemoryMax=512M).
GROWTH = 256 * 2**20

LONG = MAX_HEAD - 100  #: bytes of a head

Flood = Callable[[int], bytes]
FLOODS: dict[str, Flood] = {
    "half heads": lambda _: b"GET /plan?gpus=" + b"0" * LONG,
    "requests that wait": lambda number: get(f"/plan?gpus={number}" + "0" * LONG),
    "pipelines": lambda _: REQUEST * 10_000,
    "answers that are not taken": lambda _: get("/plan?ranks=256&mode=all"),
}


def memory(process: int) -> int:
    """Return the most memory that a process has had, in bytes: proc_pid_status(5)."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@as_root
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_user_with_a_thousand_connections_does_not_fill_the_memory(
    folder: Path, flood: Flood
) -> None:
    with running(folder, *MACHINE) as daemon:
        before = memory(daemon.process.pid)
        with crowd(daemon, 1000, ANOTHER) as connections:
            for _ in range(3):
                for number, connection in enumerate(connections):
                    connection.settimeout(0)
                    with suppress(BlockingIOError, ConnectionError):
                        connection.sendall(flood(number))
                assert daemon.get(TARGET).body == ANSWER
            assert memory(daemon.process.pid) - before < GROWTH


def test_those_who_ask_and_go_do_not_fill_the_memory(folder: Path) -> None:
    head = get("/plan?gpus=" + "0" * 60_000)
    with running(folder, *MACHINE) as daemon:
        before = memory(daemon.process.pid)
        for _ in range(2000):
            with connect(daemon) as connection:
                connection.sendall(head)
        eventually(lambda: is_ready(daemon), "there is room for others")
        assert memory(daemon.process.pid) - before < GROWTH
