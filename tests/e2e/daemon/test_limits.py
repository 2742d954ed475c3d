"""What a real daemon takes from its callers, and what becomes of the others meanwhile."""

from __future__ import annotations

import re
import select
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.daemon.http.refusals import MOST_OF_ONE, Refusal
from tests.e2e.daemon.crowds import (
    ANOTHER,
    ANSWER,
    MACHINE,
    REQUEST,
    TARGET,
    as_root,
    connect,
    crowd,
    everything,
    get,
)
from tests.support.daemons import Daemon, eventually, running, with_constants

HASTY = with_constants(
    daemon__http__protocol__REQUEST_SECONDS=1,
    daemon__http__protocol__IDLE_SECONDS=0.5,
    daemon__http__protocol__ANSWER_SECONDS=2,
)
REFUSED = r'^affinityd_refused_connections_total\{reason="(\w+)"\} (\S+)$'


def refused(daemon: Daemon) -> Mapping[str, float]:
    """Return how many connections were refused, by reason."""
    rows = re.findall(REFUSED, daemon.get("/metrics").text, re.MULTILINE)
    return {reason: float(count) for reason, count in rows}


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /plan%0A?gpus=0 HTTP/1.1", 200),
        (b"GET //plan?gpus=0 HTTP/1.1", 404),
        (b"GET http://x/plan?gpus=0 HTTP/1.1", 200),
        (b"GET x:1 HTTP/1.1", 400),
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


def test_slow_clients_and_those_who_take_no_answer_are_ended_and_counted(folder: Path) -> None:
    long = "/plan?ranks=256&mode=all&cpuset=0-255:2"
    with (
        running(folder, *MACHINE, before=HASTY) as daemon,
        crowd(daemon, 5) as (none, half, drip, idle, deaf),
    ):
        half.sendall(REQUEST[:20])
        idle.sendall(REQUEST)
        deaf.sendall(get(long))
        for byte in REQUEST[:-4]:
            if select.select([drip], [], [], 0.1)[0]:
                break
            drip.sendall(bytes([byte]))
        said = [everything(it) for it in (none, half, drip, idle)]
        assert [it[:13] for it in said] == [b"", *[b"HTTP/1.1 408 "] * 2, b"HTTP/1.1 200 "]
        assert said[3].endswith(ANSWER)
        eventually(lambda: refused(daemon)["answer_time"], "an answer is given up")
        counted = {"silent": 1, "head_time": 2, "answer_time": 1}
        assert refused(daemon) == {it.reason: counted.get(it.reason, 0) for it in Refusal}
        content = everything(deaf).partition(b"\r\n\r\n")[2]
        assert len(content) < len(daemon.get(long).body)


@as_root
def test_a_user_has_1024_connections_and_costs_the_others_none(daemon: Daemon) -> None:
    with crowd(daemon, MOST_OF_ONE + 1, ANOTHER) as connections:
        assert everything(connections[-1]) == Refusal.CALLER.reply
        assert refused(daemon)["caller"] == 1
        assert daemon.get(TARGET).body == ANSWER
        (told,) = daemon.says("number of connections open")
        assert f"uid {ANOTHER}" in told


@as_root
def test_a_user_with_many_requests_keeps_nobody_else_waiting(daemon: Daemon) -> None:
    """All of them lie there before another's, whose answer says how many were answered before."""
    with crowd(daemon, 1, ANOTHER) as (other,), crowd(daemon, 200) as greedy:
        for connection in (*greedy, other):  # when they are answered, all of them are accepted
            connection.sendall(REQUEST)
        assert all(it.recv(65536).startswith(b"HTTP/1.1 200 ") for it in (*greedy, other))
        before = plans(daemon.get("/metrics").text)
        daemon.signal(signal.SIGSTOP)
        for number, connection in enumerate(greedy):
            connection.sendall(get(f"/plan?ranks=64&mode=node&cpuset=0-{number + 20}"))
        other.sendall(get("/metrics", "connection: close"))
        daemon.signal(signal.SIGCONT)
        assert plans(everything(other).decode()) - before < len(greedy) // 2


def plans(metrics: str) -> float:
    """Return how many plan requests have been answered."""
    found = re.findall(r"^affinityd_plans_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    return sum(map(float, found))


def test_those_who_end_before_they_take_an_answer_do_not_fill_the_log(folder: Path) -> None:
    with running(folder, *MACHINE) as daemon:
        with crowd(daemon, 100) as connections:
            for connection in connections:
                connection.sendall(get("/plan?ranks=64&mode=all"))

            def are_answered() -> bool:
                return len(select.select(connections, [], [], 0)[0]) == len(connections)

            eventually(are_answered, "they are answered")
            for connection in connections:
                connection.sendall(get("/healthz"))
                connection.shutdown(socket.SHUT_WR)
            assert daemon.get("/healthz").status == 200  # in its turn, which comes after theirs
        assert daemon.stop() == 0
        assert not daemon.says("error")


@as_root
def test_few_files_are_no_reason_for_a_user_to_keep_the_others_out(folder: Path) -> None:
    with running(folder, *MACHINE, before=("prlimit", "--nofile=128:128")) as daemon:
        with crowd(daemon, 200, ANOTHER):
            for _ in range(50):
                assert daemon.get(TARGET).body == ANSWER
            assert len([*Path(f"/proc/{daemon.process.pid}/fd").iterdir()]) < 128
        assert refused(daemon)["caller"] >= 200 - 16
        assert daemon.process.poll() is None


def test_the_limit_of_files_is_raised_to_what_it_may_be(folder: Path) -> None:
    with running(folder, *MACHINE, before=("prlimit", "--nofile=128:4096")) as daemon:
        limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
        assert re.search(r"Max open files +4096 +4096", limits)
