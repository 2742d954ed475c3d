"""Daemons that are killed, ended and started anew while clients ask. Real processes."""

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.faults.checker import QUERIES, asking, start_ranks, start_ranks_during
from tests.support.daemons import PATIENCE, eventually, is_ready, running, spawn, with_constants
from tests.support.machines.facts import machine
from tests.support.tiny import tiny, tiny_tree

MACHINE = "dgx-a100"

#: Only what does not wait for them ends with connections that say nothing.
ENDLESS = with_constants(daemon__servers__DRAIN_SECONDS=10 * PATIENCE)


def test_a_daemon_that_restarts_under_load_answers_right_or_not_at_all(tmp_path: Path) -> None:
    """And it ends well, as `systemctl restart` ends it: ranks are where they belong in any case."""
    root = str(tiny_tree(tmp_path / "machine"))
    with running(tmp_path, "--root", root) as daemon:
        before = [daemon.plan(query) for query in QUERIES]
        with asking(daemon.socket, tiny(), clients=3) as asked:

            def restart(number: signal.Signals) -> None:
                asked.more()
                daemon.signal(number)
                daemon.process.wait(PATIENCE)
                assert start_ranks(4, daemon.socket) == set()
                daemon.process = spawn(tmp_path, "--root", root).process
                eventually(lambda: is_ready(daemon), "it is there again")

            complaints = start_ranks_during(lambda: restart(signal.SIGKILL), daemon.socket)
            cut = asked.cut
            complaints |= start_ranks_during(lambda: restart(signal.SIGTERM), daemon.socket)
            assert asked.cut == cut
            assert all(line.endswith("from node.json") for line in complaints)
            asked.more()
        assert asked.refused
        assert [daemon.plan(query) for query in QUERIES] == before
        assert start_ranks(4, daemon.socket) == set()


def test_sigterm_cuts_no_answer_and_waits_for_no_silent_client(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE, before=ENDLESS) as daemon, ExitStack() as idle:
        for _ in range(500):
            connection = idle.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(os.fspath(daemon.socket))
        connection.sendall(b"GET /plan?gpus=0 HTT")
        with asking(daemon.socket, machine(MACHINE), clients=8) as asked:
            asked.more(100)
            assert daemon.stop() == 0
        assert asked.cut == 0
