"""What task_prolog.sh makes of whatever it is answered, in whichever environment and sh.

At worst the task stays where Slurm put it, and is told why.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.slurm.alone import SHELLS, Node, beside, said
from tests.support.servers import Behaviour, answering, hanging, http
from tests.support.tiny import FAR

GPU = {"CUDA_VISIBLE_DEVICES": "0"}
MUCH = 10 * 1024 * 1024  #: bytes
SOCKET = "/run/affinityd/affinityd.sock"
NO_PLAN, WOULD = f"no plan from {SOCKET}", f"observe: would run on CPUs {FAR} (local)"


def plan(**lines: str) -> str:
    """Return a plan for CPU FAR, but for these lines."""
    answer = {"CPULIST": FAR, "LOCALITY": "local", "ALLOWED": "0-1", **lines}
    return "".join(f"AFFINITYD_{name}={text}\n" for name, text in answer.items())


def ok(body: str | bytes, *fields: str) -> Behaviour:
    return answering(http("200 OK", body if isinstance(body, bytes) else body.encode(), *fields))


def dribbling(connection: socket.socket, over: threading.Event) -> None:
    """Answer a byte every 0.1 s."""
    connection.recv(65536)
    for byte in http("200 OK", plan().encode()):
        connection.send(bytes([byte]))
        if over.wait(0.1):
            return


#: What listens, by what is said of it.
FAULTS: dict[str, tuple[Behaviour | None, str]] = {
    "there is none": (None, NO_PLAN),
    "it hangs": (hanging, NO_PLAN),
    "it answers a byte at a time": (dribbling, NO_PLAN),
    "it speaks no HTTP": (answering(os.urandom(4096)), NO_PLAN),
    "it answers nothing": (ok(""), NO_PLAN),
    "an error": (answering(http("500 Internal Server Error", b"Oh\nno\n")), "Oh"),
    "an error in other letters": (answering(http("500 \xc3", "ä\n".encode())), "ä"),
    "10 MB": (ok(b"0," * (MUCH // 2)), NO_PLAN),
    "10 MB of a plan": (ok(plan() + "X" * MUCH, "connection: close"), NO_PLAN),
    "no cpulist": (ok(plan(CPULIST="all")), NO_PLAN),
    "an empty one": (ok(plan(CPULIST="")), NO_PLAN),
    "a command": (ok(plan(CPULIST="0;touch /tmp/pwned")), NO_PLAN),
    "a substitution": (ok(plan(CPULIST="$(touch /tmp/pwned)")), NO_PLAN),
    "an option": (ok(plan(CPULIST="-1")), NO_PLAN),
    "a list that ends early": (ok(plan(CPULIST="0,")), NO_PLAN),
    "a CPU that is not here": (ok(plan(CPULIST="4095")), "CPUs 4095 were refused"),
    "a CPU that no machine has": (ok(plan(CPULIST="0-9999999999999999999")), NO_PLAN),
    "a range the wrong way round": (ok(plan(CPULIST="1-0")), "CPUs 1-0 were refused"),
    "a locality of its own": (ok(plan(LOCALITY="far away")), NO_PLAN),
    "it is off": (ok(plan() + "AFFINITYD=off\n"), f"AFFINITYD=off, from the daemon at {SOCKET}"),
    "it observes": (ok(plan() + "AFFINITYD=observe\n"), WOULD),
}


@pytest.fixture(scope="module")
def anywhere() -> str:
    """Return the CPUs of a task that nothing has pinned."""
    with beside(None) as folder:
        return said(Node(run=folder), {})[1]


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_is_answered_the_task_stays_where_slurm_put_it(fault: str, anywhere: str) -> None:
    behave, why = FAULTS[fault]
    with beside(behave) as folder:
        assert said(Node(run=folder), GPU) == (f"export AFFINITYD_UNPINNED={why}\n", anywhere)


PINNED = "".join(f"export {line}\n" for line in plan().splitlines())


def test_a_line_that_is_none_of_a_plan_s_is_not_exported() -> None:
    with beside(ok(plan(ALLOWED="0\nexport X=1"))) as folder:
        printed, cpus = said(Node(run=folder), GPU)
    assert (printed, cpus) == (PINNED.replace("ALLOWED=0-1", "ALLOWED=0"), FAR)


BAD_TOOL = "#!/bin/sh\necho export STOLEN=1\nsleep 5\n"
FUNCTION = "() { echo export STOLEN=1; exit 3; }"
FUNCTIONS = ("printf", "read", "[", "case", "exit", "eval", "set", "/usr/bin/curl", "curl")
OWN_NAMES = (
    *("job", "granted", "visible", "masks", "mode", "share", "mask", "run", "curl", "taskset"),
    *("socket", "settings", "facts", "proc", "ls", "id", "trust", "trusted", "own", "above"),
)
TOLD = ("CPULIST", "LOCALITY", "ALLOWED", "JOB_GPUS", "WARNINGS", "UNPINNED", "RDMA")
LIBRARIES = ("OPENSSL_CONF", "SSLKEYLOGFILE", "GNUTLS_SYSTEM_PRIORITY_FILE")

#: A user's environment, where some files are in a folder.
ENVIRONMENTS: dict[str, Callable[[Path], Mapping[str, str]]] = {
    "tools of its own": lambda folder: {"PATH": f"{folder}:/usr/bin:/bin"},
    "no PATH": lambda _: {"PATH": "/nonexistent"},
    "a start-up file": lambda folder: {"BASH_ENV": f"{folder}/rc", "ENV": f"{folder}/rc"},
    "functions": lambda _: {f"BASH_FUNC_{name}%%": FUNCTION for name in FUNCTIONS},
    "options of the shell": lambda _: {"SHELLOPTS": "xtrace:noglob:errexit", "PS4": "export "},
    "other separators": lambda _: {"IFS": "0123456789,=:"},
    "a library that is not there": lambda _: {"LD_PRELOAD": "/nonexistent.so"},
    "other libraries": lambda folder: {"LD_LIBRARY_PATH": f"{folder}"},
    "a proxy": lambda _: {"http_proxy": "http://127.0.0.1:1", "ALL_PROXY": "socks5://127.0.0.1:1"},
    "another language": lambda _: {"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "tr"},
    "settings that never end": lambda folder: dict.fromkeys(LIBRARIES, f"{folder}/fifo"),
    "settings of curl": lambda folder: {"HOME": f"{folder}", "CURL_HOME": f"{folder}"},
    "variables of the script": lambda _: dict.fromkeys(OWN_NAMES, "/nonexistent"),
    "pins of another job": lambda _: {f"AFFINITYD_{name}": "7" for name in TOLD},
}


def fill(folder: Path) -> None:
    """Write these files."""
    for tool in ("curl", "taskset", "sh", "printf", "head", "ls", "id"):
        (folder / tool).write_text(BAD_TOOL)
        (folder / tool).chmod(0o755)
    os.mkfifo(folder / "fifo", 0o666)
    (folder / "rc").write_text("echo export STOLEN=1; exit 3\n")
    (folder / ".curlrc").write_text("url = http://127.0.0.1:1/\noutput = /tmp/stolen\n")


@pytest.fixture(scope="module")
def user_s() -> Iterator[Path]:
    with beside(None) as folder:
        fill(folder)
        yield folder


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_a_user_s_environment_does_not_get_into_the_way(
    user_s: Path, kind: str, shell: str
) -> None:
    with beside(ok(plan())) as folder:
        env = {**GPU, **ENVIRONMENTS[kind](user_s)}
        printed, cpus = said(Node(run=folder, shell=shell), env)
    unset = TOLD if kind == "pins of another job" else ()
    lines = "".join(f"unset AFFINITYD_{name}\n" for name in unset)
    assert (printed, cpus) == (lines + PINNED, FAR)
