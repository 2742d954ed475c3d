"""Who is at the other end of a unix socket. Real processes of real users, on real sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from affinityd.daemon.peers.connection import PeerConnection
from tests.support.asking_processes import connected
from tests.support.servers import Accepted

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@contextmanager
def another_user(groups: Sequence[int]) -> Iterator[tuple[int, PeerConnection]]:
    """Yield the pid of a process of user 1234, whose group is 1235, and who it is on the socket."""
    its = ",".join(map(str, groups))
    with connected(("setpriv", "--reuid=1234", "--regid=1235", f"--groups={its}")) as (
        it,
        accepted,
    ):
        yield it.process.pid, PeerConnection(Accepted(accepted))


def numbers(peer: PeerConnection) -> list[int]:
    told = peer.credentials
    return [] if told is None else [told.pid, told.uid, told.gid]


def test_a_process_is_known_by_its_pid_user_and_groups() -> None:
    with connected() as (it, accepted):
        peer = PeerConnection(Accepted(accepted))
        assert numbers(peer) == [it.process.pid, os.getuid(), os.getgid()]
        assert peer.groups == {os.getgid(), *os.getgroups()}


@as_root
def test_another_user_is_known_as_such_with_all_groups() -> None:
    with another_user([1236, 4_000_000_000]) as (pid, peer):
        assert numbers(peer) == [pid, 1234, 1235]
        assert peer.groups == {1235, 1236, 4_000_000_000}


@as_root
@pytest.mark.parametrize(("groups", "known"), [(256, 257), (257, 1)])
def test_of_more_groups_than_there_is_room_for_the_first_alone_is_known(
    groups: int, known: int
) -> None:
    with another_user(range(2000, 2000 + groups)) as (_, peer):
        assert (len(peer.groups), 1235 in peer.groups) == (known, True)


def test_little_of_an_answer_that_nobody_takes_waits_in_the_kernel() -> None:
    with connected() as (_, accepted):
        PeerConnection(Accepted(accepted))
        accepted.settimeout(0)
        assert 1024 <= accepted.send(b"x" * 1_000_000) <= 16384
