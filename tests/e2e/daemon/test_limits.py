"""What a real daemon takes from its callers, and what becomes of the others meanwhile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from affinityd.daemon.api.peers import MOST_OF_ONE, TOO_MANY
from tests.e2e.daemon.crowds import (
    ANOTHER,
    ANSWER,
    MACHINE,
    TARGET,
    as_root,
    connect,
    crowd,
    everything,
)
from tests.support.daemons import Daemon, running

REFUSED = r"^affinityd_refused_connections_total (\S+)$"


def refused(daemon: Daemon) -> float:
    """Return how many connections were refused."""
    (count,) = re.findall(REFUSED, daemon.get("/metrics").text, re.MULTILINE)
    return float(count)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /plan%0A?gpus=0 HTTP/1.1", 200),
        (b"GET //plan?gpus=0 HTTP/1.1", 404),
        (b"GET http://x/plan?gpus=0 HTTP/1.1", 200),
        (b"OPTIONS * HTTP/1.1", 404),
        (b"TRACE /plan?gpus=0 HTTP/1.1", 405),
        (b"GET /nope HTTP/1.1\r\nhost: [::1", 404),
        (b"GET /plan?visible=%00 HTTP/1.1", 422),
        (b"GET /plan?gpus=0 HTTP/1.1\r\naccept: \xff\xfe", 200),
        (b"GET /plan?" + b"gpus=0&" * 64 + b"gpus=0 HTTP/1.1", 422),
        (b"GET /plan?cpuset=0-65536 HTTP/1.1", 422),
    ],
)
def test_whatever_is_asked_the_answer_is_http_and_one_line(
    daemon: Daemon, head: bytes, status: int
) -> None:
    with connect(daemon) as connection:
        connection.sendall(head + b"\r\nconnection: close\r\n\r\n")
        top, _, body = everything(connection).partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 %d " % status)
    assert body.count(b"\n") == 1
    assert status != 404 or b"is not answered here" in body
    assert daemon.get("/healthz").status == 200
    assert not daemon.says("bug")


@as_root
def test_a_user_with_too_many_connections_keeps_no_other_from_a_plan(daemon: Daemon) -> None:
    with crowd(daemon, MOST_OF_ONE + 1, ANOTHER) as connections:
        assert everything(connections[-1]) == TOO_MANY
        assert refused(daemon) == 1
        for _ in range(20):
            assert daemon.get(TARGET).body == ANSWER


@as_root
def test_few_files_are_no_reason_for_a_user_to_keep_the_others_out(folder: Path) -> None:
    with running(folder, *MACHINE, before=("prlimit", "--nofile=128:128")) as daemon:
        with crowd(daemon, 200, ANOTHER):
            for _ in range(50):
                assert daemon.get(TARGET).body == ANSWER
            assert len([*Path(f"/proc/{daemon.process.pid}/fd").iterdir()]) < 128
        assert refused(daemon) >= 200 - 16
        assert daemon.process.poll() is None


def test_the_limit_of_files_is_raised_to_what_it_may_be(folder: Path) -> None:
    with running(folder, *MACHINE, before=("prlimit", "--nofile=128:4096")) as daemon:
        limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
        assert re.search(r"Max open files +4096 +4096", limits)
