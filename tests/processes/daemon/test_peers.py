"""The users, groups and CPUs of real processes that connect to the daemon.

Some of these processes end, and their pids are reused.
"""

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest

from affinityd.audit.document import ALL, COUNTS
from affinityd.cpuset import parse_list
from affinityd.daemon.api import peers
from affinityd.daemon.api.peers import (
    Connections,
    Peer,
    caller_of,
    peer_of,
    reader_of,
)
from affinityd.request.resolve import Caller
from tests.support.child_python import said
from tests.support.children import program
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.tiny import BOTH, FAR, NEAR

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do so to processes")


#: Connects, and executes the lines that it reads.
CONNECTED = """
import os, socket, sys
kept = socket.socket(socket.AF_UNIX)
kept.connect(sys.argv[1])
print('ready', flush=True)
for line in sys.stdin:
    exec(line)
"""


@dataclass(frozen=True)
class Asker:
    process: subprocess.Popen[str]
    peer: Peer | None

    def do(self, code: str) -> None:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{code}; print('done', flush=True)\n")
        stdin.flush()
        assert stdout.readline() == "done\n"

    def enter(self, folder: Path) -> None:
        (folder / "cgroup.procs").write_text(str(self.process.pid))


@contextmanager
def connected(before: Sequence[str] = ()) -> Iterator[Asker]:
    """Connect from another process, which the command `before` starts."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder, "s")
        listener.bind(str(path))
        listener.listen()
        for it in (path.parent, path):
            it.chmod(0o777)
        with (
            program(CONNECTED, str(path), before=before) as process,
            listener.accept()[0] as accepted,
        ):
            yield Asker(process, peer_of(accepted))


@pytest.fixture
def caller() -> Iterator[Asker]:
    with connected() as asker:
        yield asker


def known(mask: str, within: str) -> Caller:
    return Caller(parse_list(mask), parse_list(within))


@needs_cpuset
def test_a_living_caller_has_its_current_mask_and_cpuset(
    caller: Asker,
) -> None:
    caller.do(
        "import ctypes; ctypes.CDLL(None).prctl(15, b'x\\nUid:\\t7\\t7\\n\\rUid:\\t7', 0, 0, 0)"
    )
    assert caller_of(caller.peer) == known(BOTH, BOTH)
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(20):
        caller_of(caller.peer)
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    caller.do(f"os.sched_setaffinity(0, {{{NEAR}}})")
    with cpuset() as folder:
        caller.enter(folder)
        assert caller_of(caller.peer) == known(NEAR, BOTH)
        (folder / "cpuset.cpus").write_text(FAR)
        assert caller_of(caller.peer) == known(FAR, FAR)
        caller.process.kill()  # a cgroup with a process cannot be removed
        caller.process.wait()


def test_a_caller_whose_cpuset_changed_after_its_mask_was_read_has_the_new_cpuset(
    caller: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "mask_of", lambda _: parse_list("8191"))
    monkeypatch.setattr(peers, "_cpuset_files", lambda _: ("/sys/devices/system/cpu/online",))
    online = Path("/sys/devices/system/cpu/online").read_text()
    assert caller_of(caller.peer) == known(online, online)


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_caller_that_has_ended_is_unidentified(caller: Asker, is_reaped: bool) -> None:
    caller.process.kill()
    os.waitid(os.P_PID, caller.process.pid, os.WEXITED | os.WNOWAIT)
    if is_reaped:
        caller.process.wait()
    assert caller_of(caller.peer) is None


#: In a pid namespace of its own: the caller ends, and another process gets the caller's pid.
REUSED = """
import os, socket, sys, time
from tests.processes.daemon.test_peers import caller_of, peer_of
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
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
    connection.connect(sys.argv[1])
    os.read(may_end, 1)
first = child(connect)
accepted, _ = listener.accept()
peer = peer_of(accepted)
before = caller_of(peer)
os.write(end, b"x")
os.waitpid(first, 0)
time.sleep(0.05)  # starts are known in steps of 10 ms
open("/proc/sys/kernel/ns_last_pid", "w").write(str(first - 1))
second = child(lambda: time.sleep(60))
print(second == first, before is not None, caller_of(peer))
os.kill(second, 9)
"""

#: A caller whose user may not look into its own cgroup's folder.
SHUT = """
import socket
from affinityd.daemon.api.peers import caller_of, peer_of
mine, other = socket.socketpair(socket.AF_UNIX)
print(caller_of(peer_of(mine)))
"""


@as_root
def test_a_process_with_a_reused_pid_is_not_taken_for_the_caller(
    tmp_path: Path,
) -> None:
    apart = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    assert said(REUSED, str(tmp_path / "s"), within=apart) == "True True None"


#: Becomes a user to whom /proc shows no other user's processes, and looks for root's process.
HIDDEN = """
import os, socket, sys
from tests.processes.daemon.test_peers import caller_of, peer_of
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
may_end, end = os.pipe()
if os.fork() == 0:
    os.close(end)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    os.read(may_end, 1)
    os._exit(0)
accepted, _ = listener.accept()
before = caller_of(peer_of(accepted))
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(before is not None, caller_of(peer_of(accepted)))
"""


@as_root
@pytest.mark.parametrize("hides", ["noaccess", "invisible"])
def test_a_caller_hidden_by_hidepid_is_unidentified(tmp_path: Path, hides: str) -> None:
    mount = f'mount -t proc -o hidepid={hides} proc /proc && exec "$0" "$@"'
    within = ("unshare", "--mount", "sh", "-c", mount)
    assert said(HIDDEN, str(tmp_path / "s"), within=within) == "True None"


@as_root
@needs_cpuset
def test_a_caller_whose_cgroup_is_unreadable_is_limited_by_its_mask_alone() -> None:
    with cpuset() as folder:
        (folder / "cpuset.cpus").write_text(FAR)
        folder.chmod(0o700)
        user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        enter = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        before = ("sh", "-c", enter, str(folder), *user)
        assert said(SHUT, within=before) == f"{known(FAR, FAR)}"


def test_callers_over_tcp_are_unidentified() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as accepted,
    ):
        assert peer_of(accepted) is None
    assert caller_of(None) is None


CONTAINER = ("unshare", "--pid", "--fork")
ADMIN = ("setpriv", "--reuid=1234", "--regid=1235", "--groups=1236")


@as_root
@pytest.mark.parametrize(
    ("before", "reader"),
    [
        ((), ALL),
        (ADMIN, ALL),
        (CONTAINER, COUNTS),
        ((*CONTAINER, *ADMIN), COUNTS),  # a container's root chooses its groups
    ],
)
def test_root_and_admins_see_everything_on_the_node_and_counts_in_a_container(
    before: Sequence[str], reader: str
) -> None:
    with connected(before) as asker:
        assert reader_of(asker.peer, 1236) == reader


@as_root
@pytest.mark.parametrize("before", [(), CONTAINER])
def test_a_child_that_uses_an_ended_process_s_connection_sees_counts(before: Sequence[str]) -> None:
    with connected(before) as asker:
        assert asker.peer is not None
        os.kill(asker.peer.credentials.pid, signal.SIGKILL)
        asker.process.wait()
        assert reader_of(asker.peer, None) == COUNTS


def test_a_user_whose_connections_have_ended_is_forgotten() -> None:
    connections = Connections(lambda: None)
    for user in range(3):
        connection = Mock(user=user)
        connections.add(connection)
        connections.remove(connection)
    assert not connections._of_user
