"""Daemons that are killed, ended and started anew while clients ask. Real processes."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.faults.checker import QUERIES, asking
from tests.e2e.faults.ranks import start_ranks, start_ranks_during
from tests.support.daemons import (
    PATIENCE,
    Daemon,
    eventually,
    is_ready,
    running,
    spawn,
    with_constants,
)
from tests.support.machines.facts import machine
from tests.support.tiny import tiny, tiny_tree

MACHINE = "dgx-a100"

#: Only what does not wait for them ends with connections that say nothing.
ENDLESS = with_constants(
    daemon__servers__DRAIN_SECONDS=10 * PATIENCE,
)


def answers(daemon: Daemon) -> list[bytes]:
    return [daemon.get(f"/plan?{query}").body for query in QUERIES]


def test_killed_and_started_again_under_load_it_answers_right_or_not_at_all(
    tmp_path: Path,
) -> None:
    """And it ends well, as `systemctl restart` ends it: ranks are where they belong in any case."""
    root = str(tiny_tree(tmp_path / "machine"))
    with running(tmp_path, "--root", root) as daemon:
        before = answers(daemon)
        with asking(daemon.socket, tiny(), clients=3) as asked:

            def restart(number: signal.Signals) -> None:
                asked.more()
                daemon.signal(number)
                daemon.process.wait(PATIENCE)
                assert start_ranks(4, daemon.socket) == set()
                daemon.process = spawn(tmp_path, "--root", root).process
                eventually(lambda: is_ready(daemon), "it is there again")

            said = start_ranks_during(lambda: restart(signal.SIGKILL), daemon.socket)
            cut = asked.cut
            said |= start_ranks_during(lambda: restart(signal.SIGTERM), daemon.socket)
            assert asked.cut == cut
            assert all(line.endswith("from node.json") for line in said)
            asked.more()
        assert asked.refused
        assert answers(daemon) == before
        assert start_ranks(4, daemon.socket) == set()


def test_sigterm_cuts_no_answer_in_half_and_ends_well_whoever_says_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE, before=ENDLESS) as daemon, ExitStack() as idle:
        for _ in range(500):
            connection = idle.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(os.fspath(daemon.socket))
        connection.sendall(b"GET /plan?gpus=0 HTT")
        with asking(daemon.socket, machine(MACHINE), clients=8) as asked:
            asked.more(100)
            assert daemon.stop() == 0
        assert asked.cut == 0


def test_signals_of_all_kinds_at_once_are_one_end(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE) as daemon:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            daemon.signal(number)
        assert daemon.process.wait(PATIENCE) == 0
        assert not daemon.socket.exists()
        assert not daemon.says("bug")


def test_a_storm_of_sighup_changes_no_answer_and_no_generation(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--root", str(tiny_tree(tmp_path / "machine"))) as daemon,
        asking(daemon.socket, tiny()) as asked,
    ):
        for _ in range(500):
            daemon.signal(signal.SIGHUP)
        asked.more(200)
        assert not asked.refused
        assert daemon.plan("gpus=0")["generation"] == 1
