"""Whatever the daemon does, or the user's environment, the job runs; at worst it is not pinned."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.slurm.node import HOME, Node, node
from tests.e2e.slurm.rig import Setup
from tests.support.daemons import PATIENCE, eventually
from tests.support.servers import Behaviour, answering, hanging, http, serving
from tests.support.tiny import FAR, NEAR

TWO = ("--ntasks=2", "--gres=gpu:small:2")
THEIRS = [HOME[2], HOME[3]]
SLICES = [NEAR, FAR]  #: what task/affinity gives the two tasks
MUCH = 10 * 1024 * 1024  #: bytes


@pytest.fixture(scope="module")
def it(release: str) -> Iterator[Node]:
    with node(Setup(task_plugin="task/affinity", release=release)) as made:
        yield made


@contextmanager
def beside(it: Node, behave: Behaviour | None) -> Iterator[dict[str, str]]:
    """Have something else listen where tasks ask, in this environment; None: nothing."""
    env = {"AFFINITYD_SOCKET": "/run/affinityd/other"}
    if behave is None:
        yield env
        return
    path = it.daemon.socket.with_name("other")
    with serving(path, behave):
        path.chmod(0o666)
        yield env
    path.unlink(missing_ok=True)


def dribbling(connection: socket.socket, over: threading.Event) -> None:
    """Answer a byte every 0.1 s."""
    connection.recv(65536)
    for byte in http("200 OK", plan()):
        connection.send(bytes([byte]))
        if over.wait(0.1):
            return


def closing(connection: socket.socket, _over: threading.Event) -> None:
    """Hang up at once."""
    connection.recv(1)


def plan(**lines: str) -> bytes:
    """Return a plan for CPU FAR, but for these lines."""
    answer = {"CPULIST": FAR, "LOCALITY": "local", "ALLOWED": f"{NEAR},{FAR}", **lines}
    return "".join(f"AFFINITYD_{name}={text}\n" for name, text in answer.items()).encode()


def planning(**lines: str) -> Behaviour:
    return answering(http("200 OK", plan(**lines)))


FAULTS: dict[str, tuple[Behaviour | None, str]] = {
    "there is none": (None, "no plan from "),
    "it hangs": (hanging, "no plan from "),
    "it answers a byte at a time": (dribbling, "no plan from "),
    "it hangs up": (closing, "no plan from "),
    "it speaks no HTTP": (answering(os.urandom(4096)), "no plan from "),
    "it answers NULs": (answering(http("200 OK", bytes(4096))), "no plan from "),
    "it answers nothing": (answering(http("200 OK", b"")), "no plan from "),
    "an error": (answering(http("500 Internal Server Error", b"Oh\nno\n")), "Oh"),
    "an error in HTML": (answering(http("502 Bad Gateway", b"<html>\n")), "<html>"),
    "an error in other letters": (answering(http("500 \xc3", b"\xc3\xa4\n")), "ä"),
    "10 MB": (answering(http("200 OK", b"0," * (MUCH // 2))), "no plan from "),
    "10 MB of unknown length": (
        answering(http("200 OK", b"0-3\n" * (MUCH // 4), "connection: close")),
        "no plan from ",
    ),
    "10 MB of a plan": (
        answering(http("200 OK", plan() + b"X" * MUCH, "connection: close")),
        "no plan from ",
    ),
    "no cpulist": (planning(CPULIST="all"), "no plan from "),
    "an empty one": (planning(CPULIST=""), "no plan from "),
    "a mask": (planning(CPULIST="0x3"), "no plan from "),
    "a command": (planning(CPULIST="0;touch /tmp/pwned"), "no plan from "),
    "a substitution": (planning(CPULIST="$(touch /tmp/pwned)"), "no plan from "),
    "an option": (planning(CPULIST="-1"), "no plan from "),
    "a list that ends early": (planning(CPULIST="0,"), "no plan from "),
    "a CPU that is not here": (planning(CPULIST="4095"), "CPUs 4095 were refused"),
    "a CPU that no machine has": (planning(CPULIST="0-9999999999999999999"), "no plan from "),
    "a range the wrong way round": (planning(CPULIST="1-0"), "CPUs 1-0 were refused"),
    "a locality of its own": (planning(LOCALITY="far away"), "no plan from "),
    "an export in what was planned on": (planning(ALLOWED="0\nexport X=1"), "no plan from "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_the_daemon_does_the_job_runs_where_slurm_put_it(it: Node, fault: str) -> None:
    behave, why = FAULTS[fault]
    with beside(it, behave) as env:
        start = time.monotonic()
        tasks = it.tasks(*TWO, env=env)
        took = time.monotonic() - start
    start = time.monotonic()
    it.tasks(*TWO, env={"AFFINITYD": "off"})
    usual = time.monotonic() - start
    if fault == "an export in what was planned on":  # a line of its own, which nobody asked for
        assert [task.cpus for task in tasks] == [FAR, FAR]
        assert {task.variables["ALLOWED"] for task in tasks} == {"0"}
        return
    assert [task.cpus for task in tasks] == SLICES
    assert [(task.unpinned or "")[: len(why)] for task in tasks] == [why] * 2
    assert [[*task.variables] for task in tasks] == [["SOCKET", "UNPINNED"]] * 2
    assert [task.rest for task in tasks] == [[]] * 2
    assert took < usual + PATIENCE


def test_a_daemon_that_stopped_is_not_waited_for(it: Node) -> None:
    start = time.monotonic()
    it.tasks(*TWO, env={"AFFINITYD": "off"})
    usual = time.monotonic() - start
    it.daemon.process.send_signal(19)  # SIGSTOP
    try:
        start = time.monotonic()
        tasks = it.tasks(*TWO)
        assert time.monotonic() - start < usual + PATIENCE
    finally:
        it.daemon.process.send_signal(18)  # SIGCONT
    assert [task.cpus for task in tasks] == SLICES
    eventually(lambda: [task.cpus for task in it.tasks(*TWO)] == THEIRS, "tasks are pinned again")


@pytest.fixture(scope="module", params=["/bin/dash", "/bin/bash", "/bin/busybox"])
def in_shell(request: pytest.FixtureRequest, release: str) -> Iterator[Node]:
    """Run a node whose sh is one of them."""
    binds = {Path(request.param): "/bin/sh"}
    with node(Setup(task_plugin="task/affinity", binds=binds, release=release)) as made:
        yield made


BAD_TOOLS = "#!/bin/sh\necho export STOLEN=1\nsleep 5\n"
FUNCTION = "() { echo export STOLEN=1; exit 3; }"

#: A user's environment. The rest of the task's own is as it was.
ENVIRONMENTS: dict[str, Callable[[Path], Mapping[str, str]]] = {
    "tools of its own": lambda folder: {"PATH": f"{folder}:/usr/bin:/bin"},
    "no PATH": lambda _: {"PATH": "/nonexistent"},
    "a start-up file": lambda folder: {"BASH_ENV": f"{folder}/rc", "ENV": f"{folder}/rc"},
    "functions": lambda _: {
        f"BASH_FUNC_{name}%%": FUNCTION
        for name in ("printf", "read", "[", "case", "exit", "eval", "set", "/usr/bin/curl", "curl")
    },
    "options of the shell": lambda _: {"SHELLOPTS": "xtrace:noglob:errexit", "PS4": "export "},
    "other separators": lambda _: {"IFS": "0123456789,=:"},
    "a library that is not there": lambda _: {"LD_PRELOAD": "/nonexistent.so"},
    "other libraries": lambda folder: {"LD_LIBRARY_PATH": f"{folder}"},
    "a proxy": lambda _: {"http_proxy": "http://127.0.0.1:1", "ALL_PROXY": "socks5://127.0.0.1:1"},
    "another language": lambda _: {"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "tr"},
    "settings of curl's libraries that never end": lambda folder: {
        **dict.fromkeys(("OPENSSL_CONF", "SSLKEYLOGFILE"), f"{folder}/fifo"),
        "GNUTLS_SYSTEM_PRIORITY_FILE": f"{folder}/fifo",
    },
    "settings of curl": lambda folder: {"HOME": f"{folder}", "CURL_HOME": f"{folder}"},
    "variables of the script": lambda _: {
        **dict.fromkeys(("job", "granted", "visible", "masks", "mode", "share", "mask"), "7"),
        **dict.fromkeys(("run", "curl", "taskset", "socket", "settings", "facts"), "/nonexistent"),
        **dict.fromkeys(("proc", "ls", "id", "trust", "trusted", "own", "above"), "/nonexistent"),
    },
    "pins of another job": lambda _: {
        "AFFINITYD_CPULIST": "7", "AFFINITYD_ALLOWED": "7", "AFFINITYD_JOB_GPUS": "7",
        "AFFINITYD_LOCALITY": "remote", "AFFINITYD_UNPINNED": "no", "AFFINITYD_WARNINGS": "all",
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_a_user_s_environment_does_not_get_into_the_way(
    in_shell: Node, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("user")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    for tool in ("curl", "taskset", "sh", "printf", "head", "ls", "id"):
        (folder / tool).write_text(BAD_TOOLS)
        (folder / tool).chmod(0o755)
    os.mkfifo(folder / "fifo", 0o666)
    (folder / "rc").write_text("echo export STOLEN=1; exit 3\n")
    (folder / ".curlrc").write_text("url = http://127.0.0.1:1/\noutput = /tmp/stolen\n")
    env = ENVIRONMENTS[kind](folder)
    printed = in_shell.cluster.run(
        *("/usr/bin/srun", "--label", *TWO, "--export", f"PATH,{','.join(env)}"),
        # A line each: srun writes a longer one in parts, each with a label.
        *("/usr/bin/sed", r"s/\x00/\n/g", "/proc/self/status", "/proc/self/environ"),
        env={"PATH": os.environ["PATH"], **env},
    )  # fmt: skip
    masks = re.findall(r"^(\d): Cpus_allowed_list:\s+(\S+)", printed, re.MULTILINE)
    assert [cpus for _, cpus in sorted(masks)] == THEIRS, printed
    pinned = re.findall(r"^\d: AFFINITYD_CPULIST=(.*)", printed, re.MULTILINE)
    assert sorted(pinned) == sorted(THEIRS)
    assert "AFFINITYD_UNPINNED" not in printed
    assert not re.search(r"^\d: STOLEN=", printed, re.MULTILINE)


@pytest.mark.parametrize(
    ("env", "cpus", "why"),
    [
        ({"AFFINITYD": "off"}, SLICES, "AFFINITYD=off"),
        ({"AFFINITYD": "No"}, SLICES, "AFFINITYD=off"),
        ({"AFFINITYD": "0"}, SLICES, "AFFINITYD=off"),
        ({"AFFINITYD": "on"}, THEIRS, None),
        ({"AFFINITYD_MODE": "unique-interleaved"}, THEIRS, None),
        ({"AFFINITYD_SCOPE": "socket"}, ["0-1", "0-1"], None),
        ({"AFFINITYD_MODE": ""}, THEIRS, None),
        ({"AFFINITYD_MODE": "fast"}, SLICES, "Malformed request: mode: 'fast' is not one of all"),
        (
            {"AFFINITYD_MODE": "all&scope=socket"},
            SLICES,
            "Malformed request: mode: 'all&scope=socket' is not one of all",
        ),
        ({"AFFINITYD_MODE": "$(id)"}, SLICES, "Malformed request: mode: '$(id)' is not one of"),
        ({"AFFINITYD_SCOPE": "a b"}, SLICES, "Malformed request: scope: 'a b' is not one of"),
        ({"AFFINITYD_SCOPE": "x" * 5000}, SLICES, "Malformed request: scope: 'xxxxx"),
        ({"AFFINITYD_MIN_PHYSICAL_CORES": "2"}, SLICES, "Cannot be satisfied: "),
        ({"AFFINITYD_SOCKET": "/nonexistent"}, SLICES, "no plan from /nonexistent"),
        ({"AFFINITYD_SOCKET": "--help"}, SLICES, "AFFINITYD_SOCKET=--help is no path from /"),
        ({"AFFINITYD_DAEMON_UID": "1234"}, THEIRS, None),
        ({"AFFINITYD_DAEMON_UID": "$(id)"}, THEIRS, None),
    ],
)
def test_a_user_chooses_by_the_job_s_environment(
    it: Node, env: Mapping[str, str], cpus: list[str], why: str | None
) -> None:
    tasks = it.tasks(*TWO, env=env)
    assert [task.cpus for task in tasks] == cpus
    assert [task.unpinned and task.unpinned[: len(why or "")] for task in tasks] == [why] * 2


def test_what_a_user_says_of_gpus_is_read_as_the_driver_reads_it(it: Node) -> None:
    """A step may set its own CUDA_VISIBLE_DEVICES only afterwards: Slurm's counts here."""
    tasks = it.tasks(*TWO, env={"CUDA_VISIBLE_DEVICES": "0&mode=all", "SLURM_JOB_GPUS": "0,1"})
    assert [task.cpus for task in tasks] == THEIRS


def test_where_others_could_listen_nothing_is_asked(it: Node) -> None:
    it.folder.chmod(0o777)
    try:
        tasks = it.tasks(*TWO)
    finally:
        it.folder.chmod(0o755)
    assert [task.cpus for task in tasks] == SLICES
    why = "others may write to /run/affinityd/, which is not trusted"
    assert [task.unpinned for task in tasks] == [why] * 2


def test_another_user_s_daemon_is_asked_where_its_user_is_named(it: Node) -> None:
    os.chown(it.folder, 1234, 1234)
    try:
        alone, named = (it.tasks(*TWO, env=env) for env in ({}, {"AFFINITYD_DAEMON_UID": "7,1234"}))
    finally:
        os.chown(it.folder, 0, 0)
    why = "/run/affinityd/ belongs to uid 1234, and is not trusted"
    assert [task.unpinned for task in alone] == [why] * 2
    assert [task.cpus for task in named] == THEIRS
