"""Who is at the other end of a unix socket. Real processes of real users, on real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.daemon.peers.connection import PeerConnection
from tests.support.daemons import PATIENCE
from tests.support.servers import Accepted

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")

#: Becomes a user of some groups, connects, and stays until its stdin ends.
CONNECT = """
import os, socket, sys
uid, gid, *groups = map(int, sys.argv[2:])
if os.geteuid() == 0:
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    sys.stdin.read()
"""


@contextmanager
def connected(*numbers: int) -> Iterator[tuple[int, PeerConnection]]:
    """Yield the pid of a process of this user, group and groups, and who it is on the socket."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder, "s")
        listener.bind(os.fspath(path))
        for it, mode in ((path.parent, 0o755), (path, 0o666)):
            it.chmod(mode)
        listener.listen()
        listener.settimeout(PATIENCE)
        command = [sys.executable, "-I", "-S", "-c", CONNECT, str(path), *map(str, numbers)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            with listener.accept()[0] as connection:
                yield child.pid, PeerConnection(Accepted(connection))
            assert child.stdin is not None
            child.stdin.close()


def numbers(peer: PeerConnection) -> list[int]:
    told = peer.credentials
    return [] if told is None else [told.pid, told.uid, told.gid]


def test_a_process_is_known_by_its_pid_user_and_groups() -> None:
    with connected(os.getuid(), os.getgid(), *os.getgroups()) as (pid, peer):
        assert numbers(peer) == [pid, os.getuid(), os.getgid()]
        assert peer.groups == {os.getgid(), *os.getgroups()}


@as_root
def test_another_user_is_known_as_such_with_all_groups() -> None:
    with connected(1234, 1235, 1236, 4_000_000_000) as (pid, peer):
        assert numbers(peer) == [pid, 1234, 1235]
        assert peer.groups == {1235, 1236, 4_000_000_000}


@as_root
@pytest.mark.parametrize(("groups", "known"), [(256, 257), (257, 1)])
def test_of_more_groups_than_there_is_room_for_the_first_alone_is_known(
    groups: int, known: int
) -> None:
    with connected(1234, 1, *range(2000, 2000 + groups)) as (_, peer):
        assert (len(peer.groups), 1 in peer.groups) == (known, True)


def test_little_of_an_answer_that_nobody_takes_waits_in_the_kernel() -> None:
    with connected(os.getuid(), os.getgid(), *os.getgroups()) as (_, peer):
        accepted: socket.socket = peer._socket
        accepted.settimeout(0)
        assert 1024 <= accepted.send(b"x" * 1_000_000) <= 16384
