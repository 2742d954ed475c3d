"""Daemons that are killed, ended and started anew while clients ask. Real processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.faults.checker import QUERIES, Truth, answered_more, asking, exchange
from tests.e2e.faults.ranks import environment, start_many, started_more, starting
from tests.support.daemons import PATIENCE, Daemon, eventually, is_ready, running, spawn
from tests.support.machines.facts import machine
from tests.support.tiny import tiny, tiny_tree

MACHINE = "dgx-a100"
END_SECONDS = 6.0  #: 5 that requests under way may take, and what a busy machine needs besides


def answers(daemon: Daemon) -> list[bytes]:
    return [daemon.get(f"/plan?{query}").body for query in QUERIES]


def ended(daemon: Daemon) -> float:
    """End a daemon well; return how long that took."""
    began = time.monotonic()
    daemon.signal(signal.SIGTERM)
    assert daemon.process.wait(PATIENCE) == 0
    return time.monotonic() - began


def test_killed_and_started_again_under_load_it_answers_right_or_not_at_all(
    tmp_path: Path,
) -> None:
    tree = tiny_tree(tmp_path / "machine")
    with running(tmp_path, "--root", str(tree)) as daemon:
        before = answers(daemon)
        with (
            asking(daemon.socket, Truth(tiny()), clients=3) as asked,
            starting(environment(daemon.socket)) as ranks,
        ):
            for _ in range(2):
                assert answered_more(asked)
                daemon.signal(signal.SIGKILL)
                daemon.process.wait(PATIENCE)
                assert started_more(ranks)
                daemon.process = spawn(tmp_path, "--root", str(tree)).process
                eventually(lambda: is_ready(daemon), "it is there again")
            assert answered_more(asked)
        assert asked.refused
        assert answers(daemon) == before
        assert set(ranks.said) <= {line for line in ranks.said if line.endswith("from node.json")}


def test_sigterm_cuts_no_answer_in_half_and_ends_in_time(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE) as daemon:
        for _ in range(2):
            with asking(daemon.socket, Truth(machine(MACHINE)), clients=8) as asked:
                assert answered_more(asked, 100)
                assert ended(daemon) < END_SECONDS
                daemon.process = spawn(tmp_path, "--machine", MACHINE).process
                eventually(lambda: is_ready(daemon), "it is there again")
                assert answered_more(asked, 100)
            assert asked.cut == 0


def test_a_thousand_that_say_nothing_do_not_hold_up_the_end(tmp_path: Path) -> None:
    with ExitStack() as idle, running(tmp_path, "--machine", MACHINE) as daemon:
        for _ in range(1000):
            connection = idle.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(os.fspath(daemon.socket))
        assert daemon.get("/plan?gpus=0").status == 200
        assert ended(daemon) < END_SECONDS


def test_half_a_request_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as slow, running(tmp_path, "--machine", MACHINE) as daemon:
        slow.connect(os.fspath(daemon.socket))
        slow.sendall(b"GET /plan?gpus=0 HTT")
        assert daemon.get("/plan?gpus=0").status == 200
        assert ended(daemon) < END_SECONDS


def test_a_second_sigterm_and_signals_of_all_kinds_at_once_are_one_end(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE) as daemon:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            daemon.signal(number)
        assert daemon.process.wait(PATIENCE) == 0
        assert not daemon.socket.exists()
        assert not [line for line in daemon.lines if "bug" in line]


def test_a_storm_of_sighup_changes_no_answer_and_no_generation(tmp_path: Path) -> None:
    tree = tiny_tree(tmp_path / "machine")
    with (
        running(tmp_path, "--root", str(tree)) as daemon,
        asking(daemon.socket, Truth(tiny())) as asked,
    ):
        for _ in range(500):
            daemon.signal(signal.SIGHUP)
        assert answered_more(asked, 200)
        assert not asked.refused
        assert daemon.plan("gpus=0")["generation"] == 1


def test_a_node_that_starts_jobs_all_the_time_notices_no_restart(tmp_path: Path) -> None:
    """As `systemctl restart` does it: the old one ends well before the new one starts."""
    tree = tiny_tree(tmp_path / "machine")
    with (
        running(tmp_path, "--root", str(tree)) as daemon,
        starting(environment(daemon.socket)) as ranks,
    ):
        for _ in range(2):
            ended(daemon)
            daemon.process = spawn(tmp_path, "--root", str(tree)).process
            assert started_more(ranks)
        eventually(lambda: is_ready(daemon), "it is there again")
    assert start_many(4, environment(daemon.socket)).wrong == []


def test_a_daemon_that_is_stopped_costs_ranks_their_time_and_no_more(tmp_path: Path) -> None:
    """SIGSTOP: its queue takes connections, and nobody answers them."""
    tree = tiny_tree(tmp_path / "machine")
    with running(tmp_path, "--root", str(tree)) as daemon:
        daemon.signal(signal.SIGSTOP)
        began = time.monotonic()
        ranks = start_many(2, environment(daemon.socket, timeout=8))
        assert 6 <= time.monotonic() - began < 6 + PATIENCE / 2
        assert (ranks.pinned, ranks.wrong) == (2, [])
        assert all("did not answer in time" in line for line in ranks.said)
        daemon.signal(signal.SIGCONT)
        assert exchange(daemon.socket, "/plan?gpus=0&format=cpulist").startswith(b"HTTP/1.1 200")
