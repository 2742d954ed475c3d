"""The socket's file is deleted, its folder too, or somebody else's is in its place."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import time
from itertools import count, islice
from pathlib import Path

import pytest

from affinityd.topology import node_file
from tests.daemons import PATIENCE, UnixConnection, eventually, running, spawn
from tests.e2e.faults.checker import Truth, answered_more, asking
from tests.e2e.faults.elsewhere import listening_at, plans, says
from tests.e2e.faults.ranks import environment, start_many
from tests.machines.facts import machine
from tests.serving import hanging, serving
from tests.tiny import tiny_tree

pytestmark = pytest.mark.faults

MACHINE = "dgx-a100"


def test_a_socket_that_is_deleted_is_there_again_within_seconds(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--machine", MACHINE) as daemon,
        asking(daemon.socket, Truth(machine(MACHINE))) as asked,
    ):
        for times in (1, 2, 3):
            daemon.socket.unlink()
            began = time.monotonic()
            eventually(daemon.socket.exists, "it listens anew")
            assert time.monotonic() - began < 5
            assert answered_more(asked)
            eventually(lambda: len(says(daemon, "is listened on anew")) == times, "it is told")  # noqa: B023 - it ends before the next
        assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o666
        assert asked.cut == 0
        assert daemon.stop() == 0
        assert not daemon.socket.exists()


def test_who_is_connected_when_the_file_goes_is_answered(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE) as daemon:
        connection = UnixConnection(daemon.socket)
        connection.connect()
        daemon.socket.unlink()
        connection.request("GET", "/plan?gpus=0&format=cpulist")
        assert connection.getresponse().status == 200
        connection.close()


def test_no_file_stays_open_of_the_sockets_that_were_deleted(tmp_path: Path) -> None:
    def sockets() -> int:
        files = subprocess.run(
            ["ls", "-l", f"/proc/{daemon.process.pid}/fd"], stdout=subprocess.PIPE, check=False
        )
        return files.stdout.count(b" socket:")

    with running(tmp_path, "--machine", MACHINE) as daemon:
        before = sockets()
        for _ in range(2):
            daemon.socket.unlink()
            eventually(lambda: plans(daemon), "it listens anew")
        eventually(lambda: sockets() == before, "the former sockets are closed")


def test_it_listens_anew_where_it_may_open_three_files_more(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE) as daemon:
        pid = daemon.process.pid
        files = {int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()}
        *_, last = islice((number for number in count() if number not in files), 3)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (last + 1, last + 1))
        daemon.socket.unlink()
        eventually(lambda: plans(daemon), "it listens anew")
        assert daemon.stop() == 0
        assert not says(daemon, "bug")


def test_a_folder_that_is_deleted_is_made_again_with_all_that_belongs_in_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    path = folder / "affinityd.sock"
    tree = tiny_tree(tmp_path / "machine")
    with listening_at(path, tmp_path, "--root", str(tree)) as daemon:
        shutil.rmtree(folder)
        env = {**environment(path), "AFFINITYD_ROOT": str(tree)}
        assert start_many(2, env).wrong == []
        eventually(path.exists, "it listens anew")
        eventually((folder / node_file.NAME).exists, "the node file is there again")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755
        eventually(lambda: plans(daemon), "it answers")


def test_a_node_file_that_is_deleted_is_written_again(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE) as daemon:
        path = daemon.socket.with_name(node_file.NAME)
        before = path.read_text()
        path.unlink()
        eventually(path.exists, "it is written again")
        assert path.read_text() == before


def test_another_daemons_socket_in_its_place_is_left_alone_until_that_ends(tmp_path: Path) -> None:
    """As a daemon of a later release that is started before this one ends."""
    with running(tmp_path, "--machine", MACHINE) as daemon:
        for left in tmp_path.glob(".*.lock"):
            left.unlink()
        daemon.socket.unlink()
        with serving(daemon.socket, hanging):
            file = daemon.socket.stat().st_ino
            told = f"process {os.getpid()} listens there already"
            eventually(lambda: says(daemon, told), "it is told")
            time.sleep(2.5)
            assert daemon.socket.stat().st_ino == file
            assert len(says(daemon, told)) == 1
        eventually(lambda: plans(daemon), "it listens again")


def test_at_its_end_it_leaves_another_daemons_socket_alone(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE) as daemon:
        daemon.socket.unlink()
        with serving(daemon.socket, hanging):
            assert daemon.stop() == 0
            assert daemon.socket.exists()


def test_two_daemons_that_both_lost_their_file_agree_on_one(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE) as first:
        for path in (first.socket, *tmp_path.glob(".*.lock")):
            path.unlink()
        second = spawn(tmp_path, "--machine", MACHINE)
        try:
            eventually(
                lambda: second.process.poll() is not None or says(first, "listens there already"),
                "one of them gives way",
            )
            eventually(lambda: plans(first), "the other answers")
        finally:
            second.process.kill()
            second.process.wait(PATIENCE)
        eventually(lambda: plans(first), "the other takes over")
