"""The checks of the daemon: real sockets, real daemons, real confinement."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cli.commands.doctor import gather
from affinityd.config import file
from affinityd.config.settings import Settings
from affinityd.cpuset import format_list
from affinityd.discovery import open_tree
from affinityd.doctor.daemon_probe import probe
from affinityd.doctor.facts import DaemonFacts, NodeFacts
from affinityd.linux.process_table import descendants
from affinityd.linux.processes import INITIAL_PIDS
from affinityd.topology import node_file
from affinityd.topology.model import Node
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.daemons import running
from tests.support.doctor_facts import TWO, Expected, check, facts_of, n_a, well
from tests.support.machines.by_hand import made
from tests.support.paths import REPOSITORY
from tests.support.servers import Behaviour, answering, hanging, http, serving

CPUS = sorted(os.sched_getaffinity(0))
ONLINE = Path("/sys/devices/system/cpu/online").read_text().strip()

needs_host_pid = pytest.mark.skipif(
    open_tree("/").link("proc/self/ns/pid") != INITIAL_PIDS,
    reason="here is a pid namespace of its own",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="to mount /proc takes root")
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU cannot be less than all")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder that every user reaches, as /run/affinityd is one."""
    path = Path(tempfile.mkdtemp(prefix="doctor-", dir="/tmp"))  # pytest's are shut
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def here(path: Path) -> NodeFacts:
    """Return the facts of this machine, whose daemon's socket is at a path."""
    return gather(Settings(socket=os.fspath(path)))


def test_a_daemon_of_this_machine_passes(folder: Path) -> None:
    with running(folder) as daemon:
        facts = here(daemon.socket)
        found = f"{daemon.socket} answers (process {daemon.process.pid})"
        check("socket", facts, well(found))


@needs_host_pid
def test_a_daemon_that_sees_every_process_passes(folder: Path) -> None:
    with running(folder) as daemon:
        found = f"shows the daemon (process {daemon.process.pid}) every process"
        check("hidepid", here(daemon.socket), well(found))


def test_a_daemon_that_replays_is_told_from_one_of_this_machine(folder: Path) -> None:
    with running(folder, "--machine", "dgx-a100") as daemon:
        check(
            "socket",
            here(daemon.socket),
            Expected("warn", "another machine, or out of date: its name: dgx-a100", "of its own"),
        )
        check("caller", here(daemon.socket), n_a("the daemon replays dgx-a100"))


def nothing(path: Path) -> None:
    """Put nothing there."""


def test_a_user_who_names_no_socket_is_told_of_roots_daemon(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, roots = folder / "own" / "affinityd.sock", folder / "affinityd.sock"
    monkeypatch.setattr(file, "default_socket", lambda: os.fspath(own))
    monkeypatch.setattr(file, "SYSTEM_SOCKET", os.fspath(roots))
    check("socket", here(own), n_a(f"no daemon listens at {roots} or {own}, and none is needed"))
    with running(folder) as daemon:
        assert daemon.socket == roots
        check("socket", here(own), well(f"{roots} answers"))
    roots.unlink()  # node.json stays: jobs of this node reckon with a daemon
    missing = Expected("fail", f"no daemon at {roots}", "systemctl enable --now affinityd")
    check("socket", here(own), missing)
    (folder / "node.json").unlink()
    with running(folder / "own"):
        check("socket", here(own), well(f"{own} answers"))


def test_root_is_told_that_the_daemon_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = folder / "affinityd.sock"
    monkeypatch.setattr(file, "default_socket", lambda: os.fspath(roots))
    monkeypatch.setattr(file, "SYSTEM_SOCKET", os.fspath(roots))
    missing = Expected("fail", f"no daemon at {roots}", "systemctl enable --now affinityd")
    check("socket", here(roots), missing)


def test_a_socket_that_is_not_there_has_no_modes_to_judge(folder: Path) -> None:
    folder.chmod(0o700)
    assert probe(os.fspath(folder / "affinityd.sock")).closed == ()


def test_a_user_s_runtime_folder_is_that_user_s_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o700)
    with running(folder) as daemon:
        assert probe(os.fspath(daemon.socket)).closed
        monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(folder))
        check("socket", here(daemon.socket), well("answers"))


@needs_root
def test_a_user_without_a_daemon_has_nothing_that_fails(folder: Path) -> None:
    """No socket is named, root's is not there, nor the user's own in a folder of mode 0700."""
    folder.chmod(0o700)
    os.chown(folder, 65534, 65534)
    done = doctor_as_nobody(XDG_RUNTIME_DIR=os.fspath(folder))
    assert (done.returncode, done.stderr) == (0, "")
    places = f"{file.SYSTEM_SOCKET} or {folder}/affinityd.sock"
    assert re.search(f"^socket +n/a +no daemon listens at {places}", done.stdout, re.MULTILINE)


def left_over(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))


@pytest.mark.parametrize(
    ("put", "found"),
    [
        (nothing, "No such file or directory"),
        (left_over, "Connection refused"),
        (Path.touch, "Connection refused"),
    ],
)
def test_where_nobody_listens_it_says_how_to_start_a_daemon(
    folder: Path, put: Callable[[Path], None], found: str
) -> None:
    path = folder / "affinityd.sock"
    put(path)
    if path.exists():
        path.chmod(0o666)
    expected = Expected("fail", f"no daemon at {path}: {found}", "systemctl enable --now affinityd")
    check("socket", here(path), expected)


def test_a_path_too_long_for_a_socket_is_no_traceback(folder: Path) -> None:
    path = folder / ("x" * 120)
    check("socket", here(path), Expected("fail", "path too long", "--socket names another"))


@pytest.mark.parametrize(
    ("behave", "found", "remedy"),
    [
        (hanging, "is no ready daemon: no answer within 0.2 s", "systemctl restart"),
        (answering(b"220 mail\r\n"), "is no ready daemon: it does not speak HTTP", "end what"),
        (answering(b""), "is no ready daemon: it does not speak HTTP", "end what"),
        (answering(http("404 Not Found", b"")), "is no ready daemon: it answered 404", "end what"),
        (answering(http("503 Unready", b"")), "has not read the machine yet", "journalctl"),
    ],
    ids=["silent", "a mail server", "nothing", "another web server", "not ready"],
)
def test_what_listens_and_does_not_answer_well_fails(
    folder: Path,
    behave: Behaviour,
    found: str,
    remedy: str,
) -> None:
    node_file.write(folder / "node.json", Node(TWO))
    with serving(folder / "affinityd.sock", behave) as path:
        path.chmod(0o666)
        daemon = probe(os.fspath(path), timeout=0.2)
    assert daemon.pid == os.getpid()
    facts = NodeFacts(TWO, open_tree("/"), daemon=daemon)
    check("socket", facts, Expected("fail", found, remedy))


def in_pieces(connection: socket.socket, _over: threading.Event) -> None:
    """Answer a byte at a time."""
    connection.recv(65536)
    for byte in http("200 OK", b"ready"):
        connection.sendall(bytes([byte]))
        time.sleep(0.001)


def test_an_answer_that_comes_in_pieces_is_one(folder: Path) -> None:
    with serving(folder / "affinityd.sock", in_pieces) as path:
        assert probe(os.fspath(path)).status == 200


def test_a_daemon_whose_queue_is_full_is_there_and_takes_no_more(folder: Path) -> None:
    path = folder / "affinityd.sock"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(os.fspath(path))
        listener.listen(0)
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect(os.fspath(path))
        daemon = probe(os.fspath(path), timeout=0.1)
    assert (daemon.listens, daemon.status) == (True, None)
    assert daemon.error == "it takes no more connections: its queue is full"


def test_there_is_room_in_a_queue_by_and_by(folder: Path) -> None:
    path = folder / "affinityd.sock"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(os.fspath(path))
        listener.listen(0)
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect(os.fspath(path))

        def serve() -> None:
            time.sleep(0.1)
            listener.accept()[0].close()
            connection, _ = listener.accept()
            answering(http("200 OK", b""))(connection, threading.Event())
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        stack.callback(thread.join)
        assert probe(os.fspath(path), timeout=0.5).status == 200


def test_a_daemon_that_clients_do_not_believe_fails(folder: Path) -> None:
    with running(folder) as daemon:
        folder.chmod(0o777)
        found, remedy = f"others may write to {folder}", "set AFFINITYD_DAEMON_UID"
        check("socket", here(daemon.socket), Expected("fail", found, remedy))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("affinityd.sock", "this user may not connect to .*: Permission denied"),
        ("a" * 6000, "no daemon at "),
    ],
    ids=["shut", "too long"],
)
@needs_root
def test_a_socket_that_cannot_be_reached_fails_and_ends_nothing(
    folder: Path, name: str, found: str
) -> None:
    """Others' checks are made all the same: what is in the way is a finding, and no error."""
    folder.chmod(0o700)
    done = doctor_as_nobody("--socket", folder / name)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(f"^socket +fail +{found}", done.stdout, re.MULTILINE)
    assert re.search("^cgroup ", done.stdout, re.MULTILINE)


@needs_root
def test_of_a_socket_that_refuses_us_nobody_says_that_no_daemon_is_there(folder: Path) -> None:
    with serving(folder / "affinityd.sock", answering(http("200 OK", b""))) as path:
        path.chmod(0o600)
        said = doctor_as_nobody("--socket", path).stdout
    assert f"this user may not connect to {path}: Permission denied" in said
    assert "affinityd.sock is 0600" in said
    assert "no daemon" not in said
    assert "systemctl" not in said


def doctor_as_nobody(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    code = (
        # Python itself may be where another user reads nothing: all that is needed comes first.
        "import os, affinityd.cli.commands.doctor, affinityd.slurm.check\n"
        "from affinityd.cli import entry\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "entry()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "doctor", "socket", "cgroup", *words],
        env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY), **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("shut", "mode", "found"),
    [("", 0o750, " is 0750"), ("affinityd.sock", 0o660, "affinityd.sock is 0660")],
)
def test_a_socket_that_not_every_user_reaches_is_a_warning(
    folder: Path, shut: str, mode: int, found: str
) -> None:
    node_file.write(folder / "node.json", Node(TWO))
    with serving(folder / "affinityd.sock", answering(http("200 OK", b""))) as path:
        path.chmod(0o666)
        (folder / shut).chmod(mode)
        facts = NodeFacts(TWO, open_tree("/"), daemon=probe(os.fspath(path)))
    check("socket", facts, Expected("warn", f"not every user's job reaches {path}", "chmod 755"))
    assert facts.daemon is not None
    assert facts.daemon.closed[0].endswith(found)


OTHER_CPUS = made({0: "0-3", 1: "4-6"}, gpus=[0, 1])
OTHER_GPUS = made({0: "0-3", 1: "4-7"}, gpus=[0])


@pytest.mark.parametrize(
    ("node", "found", "remedy"),
    [
        (Node(replace(TWO, name="gpu08")), "its name: gpu08, here: made", "remove the file"),
        (Node(OTHER_CPUS), "its online CPUs: 0-6, here: 0-7", "systemctl reload affinityd"),
        (Node(OTHER_GPUS), "its GPUs: 0000:10:00.0, here: 0000:10:00.0, 0000:11", "reload"),
        (Node(OTHER_GPUS, replayed=True), "its GPUs: ", "a folder of its own"),
        (Node(TWO, replayed=True), "it was replayed", "a folder of its own"),
    ],
    ids=["another node's", "CPUs came", "GPUs came", "a replayed node's", "a replay of this one"],
)
def test_a_node_file_of_another_machine_is_a_warning(
    folder: Path, node: Node, found: str, remedy: str
) -> None:
    node_file.write(folder / "node.json", node)
    daemon = replace(probe(os.fspath(folder / "affinityd.sock")), listens=True, status=200)
    check("socket", NodeFacts(TWO, open_tree("/"), daemon=daemon), Expected("warn", found, remedy))


def test_a_node_file_is_missed_where_a_daemon_listens(folder: Path) -> None:
    broken = {"node.json: there is none": None, "node.json has no 'version'": json.dumps({})}
    for found, text in broken.items():
        if text is not None:
            (folder / "node.json").write_text(text)
        daemon = replace(probe(os.fspath(folder / "affinityd.sock")), listens=True, status=200)
        facts = NodeFacts(TWO, open_tree("/"), daemon=daemon)
        check("socket", facts, Expected("warn", found, "let the daemon write to its folder"))


@pytest.mark.parametrize("name", ["socket", "daemon-cpuset", "hidepid"])
def test_a_replayed_machine_has_no_daemon_to_judge(tmp_path: Path, name: str) -> None:
    check(name, facts_of(tmp_path), n_a("the machine is replayed"))


def test_a_daemon_whose_process_is_not_seen_is_not_judged(folder: Path) -> None:
    check("daemon-cpuset", here(folder / "none"), n_a("no daemon's process is seen"))


@pytest.mark.skipif(format_list(CPUS) != ONLINE, reason="the tests themselves are confined")
def test_a_daemon_that_may_use_every_cpu_passes(folder: Path) -> None:
    with running(folder) as daemon:
        check("daemon-cpuset", here(daemon.socket), well("may use every CPU"))


@needs_two_cpus
def test_a_daemon_with_a_mask_is_a_warning(folder: Path) -> None:
    with running(folder, before=("taskset", "-c", str(CPUS[0]))) as daemon:
        expected = Expected("warn", f"mask of the daemon (process {daemon.process.pid})", "CPUAff")
        check("daemon-cpuset", here(daemon.socket), expected)


@needs_cpuset
@needs_two_cpus
def test_a_daemon_in_a_cpuset_is_a_warning(folder: Path) -> None:
    with cpuset() as group:
        (group / "cpuset.cpus").write_text(str(CPUS[0]))
        enter = 'echo $$ > "$0/tasks" && exec "$@"'
        with running(folder, before=("sh", "-c", enter, os.fspath(group))) as daemon:
            expected = Expected("warn", "the cpuset of the daemon", "take AllowedCPUs= from its")
            check("daemon-cpuset", here(daemon.socket), expected)


#: Mounts a /proc of its own, gives up capabilities as the unit does, and waits.
WITH_PROC = 'mount -t proc -o "$0" proc /proc && exec "$@"'
WAITING = ("sh", "-c", "echo ready && exec sleep 60")
POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@contextmanager
def seeing_proc(options: str, before: Sequence[str]) -> Iterator[int]:
    """Run a process that sees a /proc with these options, and return its pid."""
    command = ["unshare", "--mount", "sh", "-c", WITH_PROC, options, *before]
    with subprocess.Popen([*command, *WAITING], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


@needs_root
@needs_host_pid
@pytest.mark.parametrize(
    ("options", "before", "expected"),
    [
        ("hidepid=0", POWERLESS, well("(hidepid=off)")),
        ("hidepid=2", POWERLESS, well("(hidepid=invisible)")),
        ("hidepid=2,gid=4711", (), well("(hidepid=invisible)")),
        ("hidepid=1,gid=4711", POWERLESS, Expected("warn", "hidepid=noaccess", "CAP_SYS_PTRACE")),
        ("hidepid=2,gid=4711", POWERLESS, Expected("warn", "hidepid=invisible", "hidepid=off /p")),
        (
            "hidepid=2,gid=4711",
            ("setpriv", "--groups=4711", *POWERLESS[1:]),
            well("(hidepid=invisible)"),
        ),
        ("hidepid=4", POWERLESS, Expected("warn", "hidepid=ptraceable", "CAP_SYS_PTRACE")),
        ("hidepid=4", (), well("(hidepid=ptraceable)")),
        ("subset=pid", (), Expected("warn", "subset=pid: the daemon", "take ProcSubset=pid")),
    ],
    ids=[
        "nothing is hidden",
        "root's group is exempt",
        "a capability sees all",
        "others' files are hidden",
        "others' processes are hidden",
        "its group is exempt",
        "no group is exempt",
        "a capability sees through that too",
        "the rest of /proc is hidden",
    ],
)
def test_a_proc_that_hides_processes(
    options: str, before: Sequence[str], expected: Expected
) -> None:
    with seeing_proc(options, before) as pid:
        facts = NodeFacts(
            TWO, open_tree("/"), daemon=DaemonFacts("affinityd.sock", listens=True, pid=pid)
        )
        check("hidepid", facts, expected)


@needs_root
def test_a_daemon_in_a_pid_namespace_of_its_own_is_a_warning() -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with subprocess.Popen([*command, *WAITING], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            (child,) = descendants(process.pid)
            daemon = DaemonFacts("affinityd.sock", listens=True, pid=child.number)
            facts = NodeFacts(TWO, open_tree("/"), daemon=daemon)
            expected = Expected("warn", "is in a pid namespace of its own", "hostPID: true in its")
            check("hidepid", facts, expected)
        finally:
            process.kill()


@needs_host_pid
def test_without_a_daemon_proc_is_judged_by_this_process(folder: Path) -> None:
    check("hidepid", here(folder / "none"), well("/proc shows this process every process"))
