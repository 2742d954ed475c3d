"""Who is at the other end of a unix socket. Real processes of real users, on real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from affinityd.daemon.api.peers import Peer, peer_of
from tests.support.asking_processes import connected

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@contextmanager
def another_user(groups: Sequence[int]) -> Iterator[tuple[int, Peer]]:
    """Yield the pid of a process of user 1234, whose group is 1235, and who it is on the socket."""
    its = ",".join(map(str, groups))
    with connected(("setpriv", "--reuid=1234", "--regid=1235", f"--groups={its}")) as (
        it,
        accepted,
    ):
        yield it.process.pid, known(accepted)


def known(accepted: socket.socket) -> Peer:
    peer = peer_of(accepted)
    assert peer is not None
    return peer


def numbers(peer: Peer) -> list[int]:
    told = peer.credentials
    return [told.pid, told.uid, told.gid]


def test_a_process_is_known_by_its_pid_user_and_groups() -> None:
    with connected() as (it, accepted):
        peer = known(accepted)
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
