"""Real processes that connect, end, pass on, and have the pids of others: which CPUs are theirs."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.types import Scope

from affinityd.cpuset import parse_list
from affinityd.daemon.api.answer_cache import AnswerCache
from affinityd.daemon.peers import connection as connections
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.peers.connection import KEY, PeerConnection, has_peer_pidfd
from affinityd.daemon.peers.cpuset_cache import CpusetFiles
from affinityd.daemon.state.plan_service import Answer
from affinityd.errors import BusyError
from affinityd.request.resolve import Caller
from tests.support.children import program
from tests.support.cpusets import HIERARCHY, cpuset, needs_cpuset
from tests.support.paths import REPOSITORY
from tests.support.servers import Accepted
from tests.support.tiny import BOTH, FAR, NEAR

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do so to processes")

#: Connects, and executes what it is told.
CALLER = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print('connected', flush=True)
for line in sys.stdin:
    exec(line)
    print('done', flush=True)
"""


class Called:
    """A connection, and the process that made it."""

    def __init__(self, process: subprocess.Popen[str], accepted: socket.socket) -> None:
        self.process = process
        self.accepted = accepted
        self.connection = PeerConnection(Accepted(accepted))

    def do(self, code: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"exec({code!r})\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextmanager
def called() -> Iterator[Called]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/s"
        listener.bind(path)
        listener.listen()
        with program(CALLER, path) as process, listener.accept()[0] as accepted:
            yield Called(process, accepted)


@pytest.fixture(
    params=[
        pytest.param(
            True,
            id="by its handle",
            marks=pytest.mark.skipif(not has_peer_pidfd(), reason="a kernel before 6.5"),
        ),
        pytest.param(False, id="by its start"),
    ]
)
def by_pidfd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Know processes again in either way."""
    monkeypatch.setattr(connections, "has_peer_pidfd", lambda: request.param)
    return bool(request.param)


@pytest.fixture
def caller(by_pidfd: bool) -> Iterator[Called]:  # noqa: ARG001 - it has an effect
    """Yield a process that has connected."""
    with called() as it:
        yield it


def facts(of: Called) -> Caller | None:
    return told(Callers(), of.connection)


def told(callers: Callers, connection: PeerConnection | None) -> Caller | None:
    """Return what the daemon would know, on its event loop."""

    async def ask() -> Caller | None:
        return callers.of_connection(connection)

    return asyncio.run(ask())


def known(mask: str, within: str) -> Caller:
    return Caller(parse_list(mask), parse_list(within))


@needs_cpuset
def test_who_lives_is_known_by_the_mask_and_the_cpuset_that_it_has_now(caller: Called) -> None:
    assert facts(caller) == known(BOTH, BOTH)
    caller.do(f"os.sched_setaffinity(0, {{{NEAR}}})")
    assert facts(caller) == known(NEAR, BOTH)
    with cpuset() as folder:
        (folder / "cpuset.cpus").write_text(FAR)
        (folder / "cgroup.procs").write_text(str(caller.process.pid))
        assert facts(caller) == known(FAR, FAR)
        caller.process.kill()
        caller.process.wait()


@pytest.mark.parametrize("is_reaped", [False, True], ids=["a zombie", "gone"])
def test_who_has_ended_is_not_known(caller: Called, is_reaped: bool) -> None:
    caller.process.kill()
    os.waitid(os.P_PID, caller.process.pid, os.WEXITED | os.WNOWAIT)
    if is_reaped:
        caller.process.wait()
    assert facts(caller) is None


def test_to_find_out_who_asks_leaves_no_file_open(caller: Called) -> None:
    callers = Callers()
    assert told(callers, caller.connection) is not None
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        assert told(callers, caller.connection) is not None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_who_forges_lines_of_its_status_is_known_as_it_is(caller: Called) -> None:
    caller.do(
        "import ctypes; ctypes.CDLL(None).prctl(15, b'x\\nUid:\\t7\\t7\\n\\rUid:\\t7', 0, 0, 0)"
    )
    assert facts(caller) is not None


#: In a pid namespace of its own: who connected ends, and another process is given its number.
REUSED = """
import asyncio, os, socket, sys, time
sys.path.insert(0, sys.argv[1])
from tests.support.servers import Accepted
from affinityd.daemon.peers import connection as connections
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.peers import connection as connections
from affinityd.daemon.peers.connection import PeerConnection
path = sys.argv[2]
connections.has_peer_pidfd = lambda: sys.argv[3] == "True"
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid
told, tell = os.pipe()
def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    os.read(told, 1)
first = child(connect)
accepted, _ = listener.accept()
connection = PeerConnection(Accepted(accepted))
def facts():
    async def ask():
        return Callers().of_connection(connection)
    return asyncio.run(ask())
before = facts()
os.write(tell, b"x")
os.waitpid(first, 0)
time.sleep(0.05)  # the start of a process is known by 10 ms
open("/proc/sys/kernel/ns_last_pid", "w").write(str(first - 1))
second = child(lambda: time.sleep(60))
after = facts()
connection.is_same_process = lambda: True
print(second == first, before is not None, after, facts() == before)
os.kill(second, 9)
"""


@as_root
def test_who_has_the_pid_of_one_that_has_ended_is_not_taken_for_it(
    tmp_path: Path, by_pidfd: bool
) -> None:
    apart = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    repository = str(REPOSITORY)
    command = [*apart, sys.executable, "-c", REUSED, repository, str(tmp_path / "s")]
    done = subprocess.run(
        [*command, str(by_pidfd)], capture_output=True, text=True, check=False, cwd=repository
    )
    assert done.stdout == "True True None True\n", done.stderr


def test_over_tcp_nobody_is_known() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as accepted,
    ):
        assert told(Callers(), PeerConnection(Accepted(accepted))) is None


def test_of_a_replayed_machine_nobody_is_known(caller: Called) -> None:
    assert told(Callers(replayed=True), caller.connection) is None


def test_without_a_connection_of_ours_nobody_is_known() -> None:
    assert told(Callers(), None) is None


def test_where_no_more_files_can_be_opened_there_is_no_answer_rather_than_a_wrong_one(
    caller: Called,
) -> None:
    callers = Callers()
    _, most = limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def ask() -> None:
        assert callers.of_connection(caller.connection) is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
        try:
            with pytest.raises(BusyError, match="Too many open files; try again in a moment"):
                callers.of_connection(caller.connection)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert callers.of_connection(caller.connection) is not None

    asyncio.run(ask())


def test_where_no_more_files_can_be_opened_nobody_elses_answer_is_given(caller: Called) -> None:
    def not_counted(_answer: Answer) -> Callable[[], None]:
        return lambda: None

    answers = AnswerCache(Callers(), generation=lambda: 1, counter=not_counted)
    unknown = {"query_string": b"gpus=0", "headers": [], "state": {}}
    answers.remember(unknown, Answer(b"{}", "application/json", "node", "local"))
    _, most = limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def of_caller() -> Scope:
        return {**unknown, "state": {KEY: caller.connection}}

    async def ask() -> None:
        assert answers.find(b"gpus=0", unknown) is not None
        assert answers.find(b"gpus=0", of_caller()) is None
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
        try:
            assert answers.find(b"gpus=0", of_caller()) is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    asyncio.run(ask())


def test_of_who_connects_when_no_more_files_can_be_opened_no_connection_is_made(
    caller: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "has_peer_pidfd", lambda: False)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            PeerConnection(Accepted(caller.accepted))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_cpus_of_a_requests_caller_are_read_once(caller: Called) -> None:
    scope: Scope = {"state": {KEY: caller.connection}}
    callers = Callers()

    async def ask() -> None:
        before = callers.of_request(scope)
        assert before is not None
        caller.do(f"os.sched_setaffinity(0, {{{NEAR}}})")
        assert callers.of_request(scope) is before
        assert callers.of_connection(caller.connection) != before

    asyncio.run(ask())


@needs_cpuset
def test_a_cpuset_is_read_once_in_a_turn_of_the_loop(caller: Called) -> None:
    with cpuset() as folder:
        (folder / "cgroup.procs").write_text(str(caller.process.pid))
        callers, connection = Callers(), caller.connection

        async def ask() -> None:
            assert callers.of_connection(connection) == known(BOTH, BOTH)
            (folder / "cpuset.cpus").write_text(FAR)
            assert callers.of_connection(connection) == known(FAR, BOTH)
            await asyncio.sleep(0)
            assert callers.of_connection(connection) == known(FAR, FAR)

        asyncio.run(ask())
        caller.process.kill()
        caller.process.wait()


#: As a user who may not look into a folder: asks itself.
SHUT = """
import asyncio, socket, sys
sys.path.insert(0, sys.argv[1])
from tests.support.servers import Accepted
from affinityd.daemon.peers import connection as connections
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.peers.connection import PeerConnection
ours, theirs = socket.socketpair(socket.AF_UNIX)
async def ask():
    return Callers().of_connection(PeerConnection(Accepted(ours)))
print(asyncio.run(ask()))
"""


@as_root
@needs_cpuset
def test_who_shuts_his_cgroups_folder_is_bound_by_his_mask_and_by_nothing_wider() -> None:
    repository = str(REPOSITORY)
    with cpuset() as folder:
        (folder / "cpuset.cpus").write_text(FAR)
        folder.chmod(0o700)
        user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        enter = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        command = ["sh", "-c", enter, str(folder), *user, sys.executable, "-c", SHUT, repository]
        done = subprocess.run(
            [*command, str(by_pidfd)], capture_output=True, text=True, check=False, cwd="/"
        )
    assert done.stdout == f"{known(FAR, FAR)}\n", done.stderr


@pytest.mark.parametrize(
    ("cpuset", "mask", "within"),
    [
        pytest.param(b"0-65535", BOTH, "0-65535", id="a mask in a cpuset"),
        pytest.param(BOTH.encode(), BOTH, BOTH, id="all of it"),
        pytest.param(f"{NEAR},999".encode(), NEAR, f"{NEAR},999", id="a cpuset changed meanwhile"),
        pytest.param(b"999", "999", "999", id="and has nothing of the mask"),
        pytest.param(None, BOTH, None, id="a cpuset that is not to be seen"),
    ],
)
def test_a_mask_is_within_the_cpuset_that_was_read_after_it(
    caller: Called,
    monkeypatch: pytest.MonkeyPatch,
    cpuset: bytes | None,
    mask: str,
    within: str | None,
) -> None:
    monkeypatch.setattr(CpusetFiles, "cpuset", lambda *_: cpuset)
    cpus = None if within is None else parse_list(within)
    assert facts(caller) == Caller(parse_list(mask), cpus)


@needs_cpuset
def test_a_cgroups_cpuset_is_read_each_time() -> None:
    files = CpusetFiles()
    with cpuset() as folder:
        membership = f"1:cpuset:/{folder.name}\n".encode()
        for cpus in (BOTH, NEAR, FAR):
            (folder / "cpuset.cpus").write_text(cpus)
            assert files.cpuset(membership) == cpus.encode()


def test_of_what_is_no_cgroup_nothing_is_known() -> None:
    files = CpusetFiles()
    assert files.cpuset(b"") is None
    assert files.cpuset(b"no path\n") is None


#: In a mount namespace of its own: the cgroups are mounted elsewhere.
REMOUNTED = """
import os, subprocess, sys
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
@needs_cpuset
def test_where_cgroups_are_mounted_is_looked_up_anew_when_that_changes(tmp_path: Path) -> None:
    command = ["unshare", "--mount", sys.executable, "-c", REMOUNTED, str(HIERARCHY)]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "True True\nTrue True\nFalse False\n", done.stderr
