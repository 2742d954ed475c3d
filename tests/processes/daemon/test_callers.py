"""Real processes that connect, end, pass on, and have the pids of others: which CPUs are theirs."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.types import Scope

from affinityd.cpuset import parse_list
from affinityd.daemon.api.answer_cache import AnswerCache
from affinityd.daemon.peers import connection as connections
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.peers.connection import KEY, TCP, PeerConnection, has_peer_pidfd
from affinityd.daemon.peers.cpuset_cache import CpusetFiles
from affinityd.daemon.state.plan_service import Answer
from affinityd.errors import BusyError
from affinityd.request.resolve import Caller
from tests.support.asking_processes import Asker, connected
from tests.support.child_python import said
from tests.support.cpusets import HIERARCHY, cpuset, needs_cpuset
from tests.support.servers import Accepted
from tests.support.tiny import BOTH, FAR, NEAR

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do so to processes")
has_handles = pytest.mark.skipif(not has_peer_pidfd(), reason="a kernel before 6.5")


class Called:
    """A connection, and the process that made it."""

    def __init__(self, asker: Asker, accepted: socket.socket) -> None:
        self.asker = asker
        self.process = asker.process
        self.accepted = accepted
        self.connection = PeerConnection(Accepted(accepted))

    def do(self, code: str) -> None:
        assert self.asker.do(f"{code}; print('done', flush=True)") == "done"


@pytest.fixture(params=[pytest.param(True, id="by handle", marks=has_handles), False])
def by_pidfd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Know processes again by a handle, or by their start."""
    monkeypatch.setattr(connections, "has_peer_pidfd", lambda: request.param)
    return bool(request.param)


@pytest.fixture
def caller(by_pidfd: bool) -> Iterator[Called]:  # noqa: ARG001 - it has an effect
    """Yield a process that has connected."""
    with connected() as (asker, accepted):
        yield Called(asker, accepted)


def told(connection: PeerConnection | None, callers: Callers | None = None) -> Caller | None:
    """Return what the daemon would know, on its event loop."""

    async def ask() -> Caller | None:
        return (callers or Callers()).of_connection(connection)

    return asyncio.run(ask())


def known(mask: str, within: str) -> Caller:
    return Caller(parse_list(mask), parse_list(within))


@contextmanager
def no_more_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@needs_cpuset
def test_a_living_caller_is_known_by_the_mask_and_the_cpuset_that_it_has_now(
    caller: Called,
) -> None:
    """Whatever lines of its status it forges; and to look leaves no file open."""
    caller.do(
        "import ctypes; ctypes.CDLL(None).prctl(15, b'x\\nUid:\\t7\\t7\\n\\rUid:\\t7', 0, 0, 0)"
    )
    callers = Callers()
    assert told(caller.connection, callers) == known(BOTH, BOTH)
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(20):
        told(caller.connection, callers)
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    caller.do(f"os.sched_setaffinity(0, {{{NEAR}}})")
    with cpuset() as folder:
        caller.asker.enter(folder)
        assert told(caller.connection, callers) == known(NEAR, BOTH)
        (folder / "cpuset.cpus").write_text(FAR)
        assert told(caller.connection, callers) == known(FAR, FAR)
        caller.process.kill()  # no cgroup goes that has a process
        caller.process.wait()


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_caller_that_has_ended_is_not_known(caller: Called, is_reaped: bool) -> None:
    caller.process.kill()
    os.waitid(os.P_PID, caller.process.pid, os.WEXITED | os.WNOWAIT)
    if is_reaped:
        caller.process.wait()
    assert told(caller.connection) is None


#: In a pid namespace of its own: who connected ends, and another process is given its number.
REUSED = """
import os, socket, sys, time
from tests.processes.daemon.test_callers import Accepted, PeerConnection, connections, told
path, by_pidfd = sys.argv[1:]
connections.has_peer_pidfd = lambda: by_pidfd == "True"
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid
may_end, end = os.pipe()
def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    os.read(may_end, 1)
first = child(connect)
accepted, _ = listener.accept()
connection, unasked = (PeerConnection(Accepted(accepted)) for _ in range(2))
before = told(connection)
os.write(end, b"x")
os.waitpid(first, 0)
time.sleep(0.05)  # the start of a process is known by 10 ms
open("/proc/sys/kernel/ns_last_pid", "w").write(str(first - 1))
second = child(lambda: time.sleep(60))
after = told(connection)
connection.is_same_process = unasked.is_same_process = lambda: True
print(second == first, before is not None, after, told(connection), told(unasked) == before)
os.kill(second, 9)
"""

#: As a user who may not look into its own cgroup's folder: asks itself.
SHUT = """
import asyncio, socket
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.peers.connection import PeerConnection
from tests.support.servers import Accepted
async def ask():
    return Callers().of_connection(PeerConnection(Accepted(socket.socketpair(socket.AF_UNIX)[0])))
print(asyncio.run(ask()))
"""

#: Three connections of one process, asked twice: what is opened for the second time.
OPENED = """
import asyncio, socket, sys
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.peers.connection import PeerConnection
from tests.support.servers import Accepted
pairs = [socket.socketpair(socket.AF_UNIX) for _ in range(3)]
connections = [PeerConnection(Accepted(mine)) for mine, _ in pairs]
callers = Callers(most_open=int(sys.argv[1]))
async def ask():
    return [callers.of_connection(it) for it in connections]
before, opened = asyncio.run(ask()), []
sys.addaudithook(lambda event, told: opened.append(told[0]) if event == "open" else None)
assert asyncio.run(ask()) == before and None not in before
print(sum("/proc" in it for it in opened), len(opened))
"""

#: In a mount namespace of its own: the cgroups are mounted elsewhere.
REMOUNTED = """
import subprocess, sys
from affinityd.daemon.peers.cpuset_cache import CpusetFiles
old, new = sys.argv[1:]
files = CpusetFiles()
def told():
    return files.cpuset(b"1:cpuset:/\\n") is not None
print(told(), told())
subprocess.run(["mount", "--bind", old, new], check=True)
subprocess.run(["umount", old], check=True)
print(told(), told())
subprocess.run(["umount", new], check=True)
print(told(), told())
"""


@as_root
def test_a_process_with_the_pid_of_one_that_has_ended_is_not_taken_for_it(
    tmp_path: Path, by_pidfd: bool
) -> None:
    apart = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    arguments = (str(tmp_path / "s"), str(by_pidfd))
    assert said(REUSED, *arguments, within=apart) == "True True None None True"


@as_root
@needs_cpuset
def test_a_caller_whose_cgroups_folder_is_shut_is_bound_by_its_mask_and_by_nothing_wider() -> None:
    with cpuset() as folder:
        (folder / "cpuset.cpus").write_text(FAR)
        folder.chmod(0o700)
        user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        enter = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        before = ("sh", "-c", enter, str(folder), *user)
        assert said(SHUT, within=before) == f"{known(FAR, FAR)}"


@has_handles
@needs_cpuset
@pytest.mark.parametrize(("most_open", "opened"), [(3, "0 1"), (2, "3 4")])
def test_of_callers_that_ask_again_nothing_is_opened_but_their_common_cpuset_once(
    most_open: int, opened: str
) -> None:
    assert said(OPENED, str(most_open)) == opened


@as_root
@needs_cpuset
def test_where_cgroups_are_mounted_is_looked_up_anew_when_that_changes(tmp_path: Path) -> None:
    told = said(REMOUNTED, str(HIERARCHY), str(tmp_path), within=("unshare", "--mount"))
    assert told.splitlines() == ["True True", "True True", "False False"]


def test_over_tcp_on_a_replayed_machine_and_without_a_connection_no_caller_is_known(
    caller: Called,
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as accepted,
    ):
        connection = PeerConnection(Accepted(accepted))
        assert (connection.credentials, connection.groups) == (None, frozenset())
        assert (connection.caller, told(connection)) == (TCP, None)
    assert told(caller.connection, Callers(replayed=True)) is None
    assert told(None) is None


async def test_where_no_more_files_can_be_opened_there_is_no_answer_rather_than_a_wrong_one(
    caller: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_counted(_answer: Answer) -> Callable[[], None]:
        return lambda: None

    callers = Callers()
    answers = AnswerCache(callers, generation=lambda: 1, counter=not_counted)
    unknown = {"query_string": b"gpus=0", "headers": [], "state": {}}
    answers.remember(unknown, Answer(b"{}", "application/json", "node", "local"))

    other = PeerConnection(Accepted(caller.accepted))
    assert callers.of_connection(caller.connection) is not None
    assert answers.find(b"gpus=0", unknown) is not None
    with no_more_files():
        with pytest.raises(BusyError, match="Too many open files; try again in a moment"):
            callers.of_connection(other)
        of_other = {**unknown, "state": {KEY: other}}
        assert answers.find(b"gpus=0", of_other) is None
    assert callers.of_connection(other) is not None
    monkeypatch.setattr(connections, "has_peer_pidfd", lambda: False)
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        PeerConnection(Accepted(caller.accepted))


async def test_the_cpus_of_a_requests_caller_are_read_once(caller: Called) -> None:
    scope: Scope = {"state": {KEY: caller.connection}}
    callers = Callers()

    before = callers.of_request(scope)
    assert before is not None
    caller.do(f"os.sched_setaffinity(0, {{{NEAR}}})")
    assert callers.of_request(scope) is before
    assert callers.of_connection(caller.connection) != before


@pytest.mark.parametrize(
    ("within", "mask"), [("0-65535", BOTH), (f"{NEAR},999", NEAR), ("999", "999"), (None, BOTH)]
)
def test_a_mask_is_within_the_cpuset_that_was_read_after_it(
    caller: Called, monkeypatch: pytest.MonkeyPatch, within: str | None, mask: str
) -> None:
    monkeypatch.setattr(CpusetFiles, "cpuset", lambda *_: within and within.encode())
    cpus = None if within is None else parse_list(within)
    assert told(caller.connection) == Caller(parse_list(mask), cpus)
