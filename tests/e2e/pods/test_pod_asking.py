"""`run` asks a daemon by any HTTP client of an image, with a job's settings, and uses its answer.

tests/processes/kubernetes checks the requests, tests/processes/client which daemon is trusted, and
tests/e2e/slurm the use of other answers: the TaskProlog and `run` share slurm/pinning.sh.
"""

import socket
import threading
from pathlib import Path

import pytest

from affinityd.cpuset import format_list, parse_list
from tests.support.daemons import Daemon
from tests.support.pods import GPU_2, ONLINE, SHELLS, Pod, only, unreachable
from tests.support.servers import hanging, serving

BESIDES = ("head", "ls", "env", "sh")
NO_ANSWER = "affinityd run: no answer from"
FROM_FILES = "; planned from {}/gpu"

#: Functions that a user's shell may export to its programs, in bash's notation.
FUNCTIONS = {
    "BASH_FUNC_cd%%": '() { builtin cd "$@" && ls; }',
    "BASH_FUNC_module%%": "() { eval `modulecmd bash $*`; }",
}


@pytest.mark.parametrize("shell", [*SHELLS, ["bash"]], ids=str)
def test_each_shell_works_with_exported_functions(pod: Pod, shell: list[str]) -> None:
    exported = ["env", *(f"{name}={text}" for name, text in FUNCTIONS.items())]
    plan = {"CPULIST": GPU_2, "LOCALITY": "local", "ALLOWED": "0-255"}
    ended = pod.run(cpus=ONLINE, shell=[*exported, *shell])
    assert ended.environment.items() >= {f"AFFINITYD_{it}": plan[it] for it in plan}.items()
    alone = pod.run(cpus=ONLINE, shell=[*exported, *shell], **unreachable(pod))
    assert alone.environment["AFFINITYD_CPULIST"] == GPU_2
    for told in (ended, alone):
        assert told.environment.keys() >= FUNCTIONS.keys()
        assert len(told.lines) == (told is alone), told.lines


@pytest.mark.parametrize("tool", ["curl", "python3"])
def test_each_http_client_sends_the_same_request(
    daemon: Daemon, pod: Pod, tmp_path: Path, tool: str
) -> None:
    few = only(tmp_path / "few", tool, *BESIDES)
    url = f"http://127.0.0.1:{daemon.lines[0].rsplit(':', 1)[1]}"
    (tmp_path / ".curlrc").write_text("output = /dev/null\n")
    odd = {"http_proxy": "http://127.0.0.1:9", "HOME": str(tmp_path)}  # must have no effect
    for env in ({"AFFINITYD_URL": f"{url}/", **odd, **unreachable(pod)}, {}):
        ended = pod.run(cpus=ONLINE, path=few, **env)
        assert (ended.environment["AFFINITYD_CPULIST"], ended.lines) == (GPU_2, [])


def test_a_plan_fits_the_container_s_own_cpus_and_says_when_they_are_far(pod: Pod) -> None:
    ended = pod.run(cpus=frozenset({0, 1, 2, 64}))
    assert ended.environment["AFFINITYD_LOCALITY"] == "remote"
    far = "affinityd run: CPUs 0-2 are not near the GPU; allowed are 0-2,64"
    assert ended.lines[0].startswith(far)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("AFFINITYD_MIN_PHYSICAL_CORES", "99", "Cannot be satisfied: "),
        ("CUDA_VISIBLE_DEVICES", "7", "No such GPU: "),
        ("AFFINITYD_SCOPE", "a&b=\xe9%\n", "Malformed request: scope"),
    ],
)
def test_a_refused_command_runs_unpinned(pod: Pod, name: str, text: str, reason: str) -> None:
    ended = pod.run(cpus=ONLINE, **{name: text})
    assert (ended.cpus, ended.status, len(ended.lines)) == (None, 0, 1)
    assert ended.lines[0].startswith(f"affinityd run: {reason}")
    assert ended.lines[0].endswith("; the command runs unpinned")


def endless(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not over.is_set():
        connection.sendall(b"A" * 2**20)


@pytest.mark.parametrize("tool", ["curl", "python3"])
def test_run_waits_neither_for_endless_nor_for_missing_answers(
    pod: Pod, tmp_path: Path, tool: str
) -> None:
    """`run` does not ignore a timer signal that the job ignores."""
    deaf = ["sh", "-c", 'trap "" ALRM; exec sh "$@"', "sh"]
    few = only(tmp_path / "few", tool, *BESIDES)
    for number, behave in enumerate((endless, hanging)):
        with serving(tmp_path / f"{number}", behave) as path:
            ended = pod.run(cpus=ONLINE, shell=deaf, path=few, AFFINITYD_SOCKET=str(path))
            assert ended.environment["AFFINITYD_CPULIST"] == GPU_2
            assert ended.lines == [f"{NO_ANSWER} {path}{FROM_FILES.format(pod.to)}"]


def test_the_files_of_init_are_used_where_no_daemon_can_answer(pod: Pod, tmp_path: Path) -> None:
    dead = str(tmp_path / "s")  # as a killed daemon leaves it
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(dead)
    trouble = "a.sock is neither http://HOST:PORT nor the path of a socket from /"
    for name, text, line in (
        ("AFFINITYD_SOCKET", dead, f"{NO_ANSWER} {dead}"),
        ("CUDA_VISIBLE_DEVICES", "! " * 50_000, f"{NO_ANSWER} {pod.socket}"),
        ("AFFINITYD_SOCKET", "a.sock", f"affinityd run: {trouble}"),
        ("AFFINITYD_SOCKET", "/nobody", "affinityd run: no affinityd is here to be asked"),
    ):
        ended = pod.run(cpus=ONLINE, **{name: text})
        assert ended.environment["AFFINITYD_CPULIST"] == GPU_2
        assert ended.lines == [line + FROM_FILES.format(pod.to)]
    few = only(tmp_path / "few", "env", "sh", "ls")
    none = "affinityd run: neither curl nor python3 is here, to ask affinityd"
    assert pod.run(cpus=ONLINE, path=few).lines == [none + FROM_FILES.format(pod.to)]


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_run_with_only_files_pins_to_the_cpus_near_the_gpus_or_does_not_pin(
    pod: Pod, shell: list[str]
) -> None:
    rank = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "1"}
    two_gpus, far = "16-23,80-87,144-151,208-215", pod.to / "gpu/minor:5"
    for devices, env, cpus in (
        (["nvidia5", "nvidia1"], rank, two_gpus),  # near either GPU
        ([], {"NVIDIA_VISIBLE_DEVICES": "GPU-120000"}, GPU_2),
        ([], {"NVIDIA_VISIBLE_DEVICES": "2"}, GPU_2),  # an index, not a minor
        (["nvidia5", "nvidia77"], {}, None),  # a rank may use the unknown GPU
        (["nvidia77"], {}, None),
        (["nvidia5"], {"AFFINITYD_JOB_CPUS": "17"}, None),  # fewer CPUs than the job asked for
        (["nvidia5"], {"AFFINITYD_JOB_CPUS": "16"}, GPU_2),
    ):
        pod.has(*devices)
        ended = pod.run(cpus=ONLINE, shell=shell, **env, **unreachable(pod))
        assert ended.cpus == (None if cpus is None else parse_list(cpus)), ended.lines
    assert (pod.folder / "pinned").read_text().splitlines()[-2] == format_list(ONLINE)  # undone
    pod.has("nvidia5")
    for text in ("16-23 remote\n", "16-23 unknown\n", "16-23 local LD_PRELOAD=/x\n", "\0\1\n"):
        far.write_text(text)
        ended = pod.run(cpus=ONLINE, shell=shell, **unreachable(pod))
        assert (ended.cpus, "LD_PRELOAD" in ended.environment) == (None, False)
