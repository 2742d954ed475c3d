"""`run` in a pod where something is missing or wrong: the command starts all the same."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.cli.exec_options import SAID
from affinityd.conffile import is_off
from affinityd.cpuset import parse_list
from affinityd.launchers import LAUNCHERS
from tests.daemons import Daemon, running
from tests.machines.sysfs_tree import write_tree
from tests.pods import Pod, unreachable
from tests.serving import answering, hanging, http, serving
from tests.test_devices import EIGHT
from tests.tiny import BOTH, FAR, LOOK, affinityd

pytestmark = pytest.mark.pods

GPU_2 = "16-23,144-151"  #: its block
ONLINE = EIGHT.online
SHELLS = [["dash"], ["bash", "--posix"]]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("node")
    tree = write_tree(EIGHT, folder / "machine")
    with running(folder, "--root", str(tree), listen="127.0.0.1:0") as started:
        yield started


@pytest.fixture
def pod(daemon: Daemon, tmp_path: Path) -> Pod:
    made = Pod(tmp_path, daemon.socket, {"AFFINITYD_MODE": "unique_contiguous"})
    made.has("nvidia5")  # GPU 2
    return made


def only(folder: Path, *programs: str) -> str:
    """Return a PATH with these programs and no others."""
    folder.mkdir()
    for name in programs:
        found = sys.executable if name == "python3" else shutil.which(name)
        (folder / name).symlink_to(found or f"{name} is not installed")
    return str(folder)


@pytest.mark.parametrize("shell", [it for it in SHELLS if shutil.which(it[0])], ids=str)
@pytest.mark.parametrize("reach", ["asked", "table"])
def test_every_shell_reads_it_alike(pod: Pod, shell: list[str], reach: str) -> None:
    away = unreachable(pod) if reach == "table" else {}
    told = pod.run(cpus=ONLINE, shell=shell, **away)
    assert told.environment["AFFINITYD_CPULIST"] == GPU_2
    assert told.environment["AFFINITYD_LOCALITY"] == "local"
    assert told.environment["AFFINITYD_ALLOWED"] == "0-255"
    assert len(told.lines) == (reach == "table"), told.lines


@pytest.mark.parametrize("tool", ["curl", "python3"])
def test_it_asks_by_what_the_image_has(pod: Pod, tmp_path: Path, tool: str) -> None:
    told = pod.run(cpus=ONLINE, path=only(tmp_path / "few", tool, "head", "env", "sh"))
    assert (told.environment["AFFINITYD_CPULIST"], told.lines) == (GPU_2, [])


@pytest.mark.parametrize("tools", [["curl"], ["python3"], ["wget", "timeout"]], ids=str)
def test_it_asks_a_service_by_what_the_image_has(
    daemon: Daemon, pod: Pod, tmp_path: Path, tools: list[str]
) -> None:
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        pytest.skip(f"{missing} are not installed")
    url = f"http://127.0.0.1:{daemon.lines[0].rsplit(':', 1)[1]}"
    few = only(tmp_path / "few", *tools, "head", "env", "sh")
    (tmp_path / ".curlrc").write_text("output = /dev/null\n")
    odd = {"http_proxy": "http://127.0.0.1:9", "HOME": str(tmp_path)}  # which are no matter of ours
    told = pod.run(cpus=ONLINE, path=few, AFFINITYD_URL=f"{url}/", **odd, **unreachable(pod))
    assert (told.environment["AFFINITYD_CPULIST"], told.lines) == (GPU_2, [])


def test_without_anything_to_ask_by_the_table_tells(
    daemon: Daemon, pod: Pod, tmp_path: Path
) -> None:
    told = pod.run(cpus=ONLINE, path=only(tmp_path / "few", "env", "sh"))
    assert told.environment["AFFINITYD_CPULIST"] == GPU_2
    cause = f"neither curl nor python3 is here to ask {daemon.socket}"
    assert told.lines == [f"affinityd run: {cause}; planned from {pod.to}/table"]


def test_the_table_is_cut_to_the_cpus_that_the_container_has(pod: Pod) -> None:
    told = pod.run(cpus=frozenset({*range(10, 18), 150, 151, 152}), **unreachable(pod))
    assert told.environment["AFFINITYD_CPULIST"] == "16-17,150-151"
    assert told.environment["AFFINITYD_ALLOWED"] == "10-17,150-152"


def test_without_a_near_cpu_in_the_table_the_command_stays_where_it_is(pod: Pod) -> None:
    told = pod.run(cpus=frozenset({0, 1, 2}), **unreachable(pod))
    assert told.cpus is None
    trouble = "no affinityd is here to be asked"
    reason = f"{trouble}, and in {pod.to}/table none of the CPUs 0-2 is near the GPU"
    assert told.lines == [f"affinityd run: {reason}; the command runs unpinned"]


def test_a_plan_fits_the_container_s_own_cpus_and_says_when_they_are_far(pod: Pod) -> None:
    told = pod.run(cpus=frozenset({0, 1, 2, 64}))
    assert told.environment["AFFINITYD_LOCALITY"] == "remote"
    assert told.lines[0].startswith(
        "affinityd run: CPUs 0-2 are not near the GPU; allowed are 0-2,64"
    )


def test_a_second_run_below_the_first_plans_on_what_the_first_was_allowed(pod: Pod) -> None:
    pod.has("nvidia5", "nvidia1")  # GPUs 2 and 6
    first = pod.run(cpus=ONLINE).environment
    assert first["AFFINITYD_CPULIST"] == "16-23,80-87,144-151,208-215"
    mask = frozenset({*range(16, 24), *range(80, 88), *range(144, 152), *range(208, 216)})
    again = pod.run(cpus=mask, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", **first)
    assert again.environment["AFFINITYD_CPULIST"] == "80-87,208-215"
    assert again.environment["AFFINITYD_ALLOWED"] == "0-255"


def test_the_command_s_environment_is_its_own_but_for_what_it_is_told(pod: Pod) -> None:
    """Variables of the script's, such as `mask`, `line` and `rank`, may be names of the job's."""
    names = set(re.findall(r"\b([a-z_]+)=", (pod.to / "run").read_text()))
    names = {name for name in names if not name.startswith("affinityd_")} | {"mask", "name", "line"}
    assert names >= {"dev", "mask", "line", "name", "rank", "value", "here", "query"}
    mine = {name: f"its {name}" for name in names} | {"IFS": ",", "http_proxy": "http://nowhere:1"}
    for away in ({}, unreachable(pod)):
        told = pod.run(cpus=ONLINE, **mine, **away).environment
        assert told["AFFINITYD_CPULIST"] == GPU_2
        assert {name: told[name] for name in mine if name != "IFS"} == {
            name: text for name, text in mine.items() if name != "IFS"
        }
        assert {name for name in told if name.startswith("AFFINITYD")} - away.keys() == {
            *("AFFINITYD_CPULIST", "AFFINITYD_LOCALITY", "AFFINITYD_ALLOWED")
        }


@pytest.mark.parametrize(
    ("command", "status"),
    [
        pytest.param(["sh", "-c", "exit 37"], 37, id="its own"),
        pytest.param(["/nonexistent/train"], 127, id="of none that is there"),
        pytest.param(["/etc/passwd"], 126, id="of no program"),
        pytest.param([], 0, id="of env"),
    ],
)
def test_the_exit_status_is_the_command_s(pod: Pod, command: list[str], status: int) -> None:
    assert pod.run(*command, cpus=ONLINE).status == status


def test_words_reach_the_command_as_they_are(pod: Pod) -> None:
    words = ["a b", "", "$HOME", "*", "--fail-closed", "it's", "new\nline"]
    told = pod.run("sh", "-c", 'for it; do printf "[%s]=" "$it"; done', "sh", *words, cpus=ONLINE)
    line = "".join(f"[{word}]=" for word in words)
    assert dict(part.partition("=")[::2] for part in line.splitlines()) == told.environment


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param(
            {"AFFINITYD_MODE": "best"}, "Malformed request: mode: 'best'", id="no such mode"
        ),
        pytest.param(
            {"AFFINITYD_MIN_PHYSICAL_CORES": "99"}, "Cannot be satisfied: ", id="too few cores"
        ),
        pytest.param({"CUDA_VISIBLE_DEVICES": "7"}, "No such GPU: ", id="no GPU visible"),
        pytest.param({"AFFINITYD_SCOPE": "a&b=\xe9%\n"}, "Malformed request: scope", id="garbage"),
    ],
)
def test_a_refusal_is_told_and_the_command_runs(
    pod: Pod, said: dict[str, str], reason: str
) -> None:
    told = pod.run(cpus=ONLINE, **said)
    assert told.cpus is None
    assert told.lines[0].startswith(f"affinityd run: {reason}")
    assert told.lines[0].endswith("; the command runs unpinned")
    assert (told.status, len(told.lines)) == (0, 1)


def test_fail_closed_turns_this_round(pod: Pod) -> None:
    told = pod.run("--fail-closed", "env", cpus=ONLINE, CUDA_VISIBLE_DEVICES="")
    assert (told.status, told.environment) == (125, {})
    assert told.lines[0].endswith("; the command was not started")
    assert pod.run("--fail-closed", "env", cpus=ONLINE).environment["AFFINITYD_CPULIST"] == GPU_2


def test_without_a_command_it_says_what_it_takes(pod: Pod) -> None:
    done = subprocess.run([pod.to / "run"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == "usage: run [--fail-closed] [--] COMMAND [ARGUMENT...]\n"


@pytest.mark.parametrize("word", ["--fail-closd", "-x", "--fail-closed"])
def test_a_word_that_is_no_command_is_not_taken_for_one(pod: Pod, word: str) -> None:
    done = pod.run(word, cpus=ONLINE)
    assert (done.status, done.lines[0][:10]) == (125, "usage: run")
    assert pod.run("--", "env", cpus=ONLINE).environment["AFFINITYD_CPULIST"] == GPU_2


def test_it_says_what_it_takes_when_asked(pod: Pod) -> None:
    done = subprocess.run([pod.to / "run", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: run ")


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no", "false"])
def test_a_job_may_opt_out(pod: Pod, word: str) -> None:
    told = pod.run(cpus=ONLINE, AFFINITYD=word)
    assert (told.cpus, told.lines) == (None, [])


def test_without_a_tool_to_pin_by_the_command_runs(pod: Pod, tmp_path: Path) -> None:
    (pod.folder / "bin/taskset").unlink()
    told = pod.run(cpus=ONLINE, path=only(tmp_path / "few", "env", "sh", "curl"))
    assert told.lines == [
        "affinityd run: neither taskset nor python3 is here; the command runs unpinned"
    ]


def test_a_mask_that_is_refused_is_told(pod: Pod) -> None:
    (pod.folder / "bin/taskset").write_text("#!/bin/sh\nexit 1\n")
    told = pod.run(cpus=ONLINE)
    assert told.lines == [f"affinityd run: CPUs {GPU_2} were refused; the command runs unpinned"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(http("200 OK", b"<html>hello</html>"), id="of somebody else"),
        pytest.param(
            http("200 OK", b"AFFINITYD_CPULIST=0-3;reboot\nAFFINITYD_ALLOWED=0\n"), id="odd"
        ),
        pytest.param(http("200 OK", b"AFFINITYD_CPULIST=\n"), id="no CPUs"),
        pytest.param(
            http("200 OK", b"AFFINITYD_CPULIST=0-4294967295\nAFFINITYD_ALLOWED=0\n"), id="too many"
        ),
        pytest.param(
            http("200 OK", b"AFFINITYD_CPULIST=0\nAFFINITYD_ALLOWED=all\n"), id="half a plan"
        ),
        pytest.param(http("503 Busy", b"No topology yet: try again\n"), id="not ready"),
        pytest.param(
            http("422 Malformed", b"Malformed request: unknown parameter 'nvidia_visible'\n"),
            id="of another release",
        ),
        pytest.param(http("500 Oops", b"Internal error: x\n"), id="an error"),
        pytest.param(b"\xff\x00\xfe" * 5000, id="noise"),
    ],
)
@pytest.mark.parametrize("tool", ["curl", "python3"])
def test_an_answer_that_is_no_plan_is_none(
    pod: Pod, tmp_path: Path, answer: bytes, tool: str
) -> None:
    with serving(tmp_path / "s", answering(answer)) as path:
        told = pod.run(
            cpus=ONLINE,
            path=only(tmp_path / "few", tool, "head", "env", "sh"),
            AFFINITYD_SOCKET=str(path),
            NVIDIA_VISIBLE_DEVICES="2",
        )
    assert told.environment["AFFINITYD_CPULIST"] == GPU_2
    trouble = f"no answer from {tmp_path}/s"
    assert told.lines == [f"affinityd run: {trouble}; planned from {pod.to}/table"]


@pytest.mark.parametrize("tool", ["curl", "python3"])
def test_a_daemon_that_hangs_holds_a_start_up_for_less_than_a_second(
    pod: Pod, tmp_path: Path, tool: str
) -> None:
    with serving(tmp_path / "s", hanging) as path:
        began = time.monotonic()
        few = only(tmp_path / "few", tool, "head", "env", "sh")
        told = pod.run(cpus=ONLINE, path=few, AFFINITYD_SOCKET=str(path))
        assert time.monotonic() - began < 1.0
    assert told.environment["AFFINITYD_CPULIST"] == GPU_2


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda to: (to / "table").unlink(), id="gone"),
        pytest.param(lambda to: (to / "table").write_text(""), id="empty"),
        pytest.param(lambda to: (to / "table").write_text("2 local 0-x minor:5\n"), id="wrong"),
        pytest.param(lambda to: (to / "table").write_bytes(b"\x00\xff\n" * 9), id="noise"),
        pytest.param(lambda to: (to / "table.sh").unlink(), id="without its reader"),
        pytest.param(lambda to: (to / "settings").unlink(), id="without settings"),
    ],
)
def test_a_folder_that_is_spoilt_is_no_end_of_a_job(pod: Pod, spoil: object) -> None:
    assert callable(spoil)
    spoil(pod.to)
    told = pod.run(cpus=ONLINE, **unreachable(pod))
    assert told.status == 0
    assert "PATH" in told.environment
    if told.cpus is None:
        assert told.lines[-1].endswith("; the command runs unpinned")


# With a mask that the kernel takes.


@pytest.fixture
def tiny_pod(tiny_daemon: Daemon, tmp_path: Path) -> Path:
    done = affinityd("init", "--to", str(tmp_path / "to"), "--socket", str(tiny_daemon.socket))
    assert done.status == 0, done.stderr
    script = tmp_path / "to/run"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia1").touch()
    script.write_text(script.read_text().replace("dev=/dev ", f"dev={tmp_path}/dev "))
    return script


def look(script: Path, path: str, **said: str) -> str:
    done = subprocess.run(
        ["/bin/sh", script, *LOOK],
        env={"PATH": path, **said},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()[1]


@pytest.mark.parametrize("tool", ["taskset", "python3"])
def test_a_process_is_pinned_by_what_the_image_has(
    tiny_pod: Path, tmp_path: Path, tool: str
) -> None:
    path = only(tmp_path / "few", tool, "grep", "sh", "env")
    assert look(tiny_pod, path) == FAR
    assert look(tiny_pod, path, AFFINITYD="off") == BOTH


def test_what_comes_by_stdin_is_the_command_s(tiny_pod: Path) -> None:
    done = subprocess.run(
        [tiny_pod, "cat"], input="the data\n", capture_output=True, text=True, check=True
    )
    assert done.stdout == "the data\n"


def test_the_command_takes_the_place_of_the_script(tiny_pod: Path) -> None:
    """The first process of a container is signalled, and waited for."""
    with subprocess.Popen(
        [tiny_pod, "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True
    ) as it:
        assert it.stdout is not None
        assert int(it.stdout.read()) == it.pid


@pytest.mark.parametrize(
    ("mode", "cpus"),
    [
        pytest.param("core-complex", "88-91,216-219", id="by their numbers"),
        pytest.param("unique_contiguous", "80-87,208-215", id="by their GPUs' blocks"),
    ],
)
def test_ranks_that_see_a_gpu_of_their_own_each_are_kept_apart(
    pod: Pod, mode: str, cpus: str
) -> None:
    pod.has("nvidia5", "nvidia3", "nvidia1")  # GPUs 2, 4 and 6
    rank = {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3", "CUDA_VISIBLE_DEVICES": "2"}
    told = pod.run(cpus=ONLINE, AFFINITYD_MODE=mode, **rank)
    assert (told.environment["AFFINITYD_CPULIST"], told.lines) == (cpus, [])


def test_a_variable_of_endless_garbage_takes_no_time(pod: Pod) -> None:
    began = time.monotonic()
    told = pod.run(cpus=ONLINE, CUDA_VISIBLE_DEVICES="! " * 50_000)
    assert time.monotonic() - began < 1.0
    reason = f"visible has 100000 characters that are no plan's: {'! ' * 20}..."
    assert told.lines == [f"affinityd run: {reason}; the command runs unpinned"]


def test_it_may_be_started_from_its_own_folder(tiny_pod: Path) -> None:
    done = subprocess.run(
        ["sh", "run", *LOOK], cwd=tiny_pod.parent, capture_output=True, text=True, check=True
    )
    assert (done.stdout.split()[1], done.stderr) == (FAR, "")


@pytest.mark.parametrize(
    ("lines", "cpus", "locality"),
    [
        pytest.param("2 local 0-3 minor:5", "0-3", "local", id="local"),
        pytest.param("2 remote 0-3 minor:5", "0-3", "remote", id="remote"),
        pytest.param("2 unknown 0-3 minor:5", "0-3", "unknown", id="unknown"),
        pytest.param("1 unknown 4 minor:6\n2 local 0-3 minor:5", "0-4", "unknown", id="the worst"),
        pytest.param("1 remote 4 minor:6\n2 unknown 0 minor:5", "0,4", "remote", id="of any"),
    ],
)
def test_the_table_says_how_near_its_cpus_are(
    pod: Pod, lines: str, cpus: str, locality: str
) -> None:
    pod.has("nvidia5", "nvidia6")
    (pod.to / "table").write_text(f"{lines}\n")
    told = pod.run(cpus=ONLINE, **unreachable(pod))
    assert told.cpus == parse_list(cpus)
    assert told.environment["AFFINITYD_LOCALITY"] == locality
    assert len(told.lines) == 1 + (locality == "remote")


@pytest.mark.parametrize(
    ("reach", "cpus"), [("asked", "112-127,240-255"), ("table", "112-119,240-247")]
)
def test_a_rank_beyond_the_gpus_shares_one(pod: Pod, reach: str, cpus: str) -> None:
    pod.has("nvidia5", "nvidia3", "nvidia1")  # GPUs 2, 4 and 6
    away = unreachable(pod) if reach == "table" else {}
    told = pod.run(cpus=ONLINE, AFFINITYD_MODE="node", LOCAL_RANK="4", **away)
    assert told.environment["AFFINITYD_CPULIST"] == cpus


# What a job may bring along.


@pytest.mark.parametrize("word", ["on", "off"])
@pytest.mark.parametrize("shell", [it for it in SHELLS if shutil.which(it[0])], ids=str)
def test_a_variable_whose_name_is_no_sh_s_is_kept(pod: Pod, shell: list[str], word: str) -> None:
    odd = {"my.var": "a b", "x-y": "", "1st": "$HOME *", "a.b": "c=d"}
    given = ["env", *(f"{name}={text}" for name, text in odd.items()), *shell]
    told = pod.run(cpus=ONLINE, shell=given, AFFINITYD=word)
    assert odd.items() <= told.environment.items()
    assert (told.cpus is None) == (word == "off")


def test_a_stderr_that_nobody_reads_is_no_end_of_a_job(tiny_pod: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = {"PATH": "/usr/bin:/bin", "AFFINITYD_SOCKET": "/nobody"}
    for said in ({}, {"NVIDIA_VISIBLE_DEVICES": "9", "CUDA_VISIBLE_DEVICES": ""}):
        done = subprocess.run(
            [tiny_pod, *LOOK],
            env={**env, **said},
            stdout=subprocess.PIPE,
            stderr=writer,
            check=True,
        )
        assert b"Cpus_allowed_list" in done.stdout
    os.close(writer)


def test_a_stderr_that_is_closed_is_no_reason_not_to_pin(tiny_pod: Path) -> None:
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", str(tiny_pod), *LOOK]
    for path in ("/nobody", ""):
        env = {"PATH": "/usr/bin:/bin", "AFFINITYD_SOCKET": path}
        done = subprocess.run(closed, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split()[1] == FAR


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("shell", [it for it in SHELLS if shutil.which(it[0])], ids=str)
def test_who_is_ended_while_it_asks_starts_no_command(
    tiny_pod: Path, tmp_path: Path, shell: list[str], number: signal.Signals
) -> None:
    with serving(tmp_path / "s", hanging) as path:
        env = {"PATH": "/usr/bin:/bin", "AFFINITYD_SOCKET": str(path)}
        command = ["env", "--default-signal", *shell, str(tiny_pod), "touch", f"{tmp_path}/started"]
        with subprocess.Popen(command, env=env) as it:
            time.sleep(0.3)
            it.send_signal(number)
            assert it.wait(5) == -number
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("shell", [it for it in SHELLS if shutil.which(it[0])], ids=str)
def test_signals_are_the_command_s_as_they_were(tiny_pod: Path, shell: list[str]) -> None:
    look = ["grep", "-E", "^Sig(Ign|Cgt|Blk)", "/proc/self/status"]
    deaf = ["sh", "-c", 'trap "" HUP USR1; exec "$@"', "sh"]
    for before in ([], deaf):
        alone = subprocess.check_output([*before, *look])
        assert subprocess.check_output([*before, *shell, str(tiny_pod), *look]) == alone


def test_a_timer_that_the_job_ignores_is_not_ours_to_ignore(pod: Pod, tmp_path: Path) -> None:
    deaf = ["sh", "-c", 'trap "" ALRM; exec sh "$@"', "sh"]
    began = time.monotonic()
    with serving(tmp_path / "s", hanging) as path:
        few = only(tmp_path / "few", "python3", "env", "sh")
        told = pod.run(cpus=ONLINE, shell=deaf, path=few, AFFINITYD_SOCKET=str(path))
    assert time.monotonic() - began < 3.0
    assert told.environment["AFFINITYD_CPULIST"] == GPU_2


@pytest.mark.parametrize("tool", ["curl", "python3"])
def test_an_answer_without_an_end_is_read_to_no_end(pod: Pod, tmp_path: Path, tool: str) -> None:
    def endless(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not over.is_set():
            connection.sendall(b"A" * 2**20)

    began = time.monotonic()
    with serving(tmp_path / "s", endless) as path:
        few = only(tmp_path / "few", tool, "head", "env", "sh")
        told = pod.run(cpus=ONLINE, path=few, AFFINITYD_SOCKET=str(path))
    assert time.monotonic() - began < 2.0
    assert told.environment["AFFINITYD_CPULIST"] == GPU_2


def test_a_daemon_that_lies_cannot_widen_the_mask(pod: Pod, tmp_path: Path) -> None:
    plan = b"AFFINITYD_CPULIST=0-255\nAFFINITYD_LOCALITY=local\nAFFINITYD_ALLOWED=0-255\n"
    with serving(tmp_path / "s", answering(http("200 OK", plan))) as path:
        told = pod.run(cpus=frozenset({20, 21, 30}), AFFINITYD_SOCKET=str(path))
    assert told.cpus == frozenset({20, 21, 30})


def test_a_settings_file_that_breaks_the_shell_is_told(pod: Pod) -> None:
    (pod.to / "settings").write_text("if\n")
    told = pod.run(cpus=ONLINE, shell=["dash"])
    assert told.lines == ["affinityd run: the script broke off; the command runs unpinned"]


def test_a_rank_with_zeros_before_it_is_not_octal(pod: Pod) -> None:
    pod.has("nvidia5", "nvidia3", "nvidia1")  # GPUs 2, 4 and 6
    for away in ({}, unreachable(pod)):
        rank = {"LOCAL_RANK": "08", "LOCAL_WORLD_SIZE": "09", "AFFINITYD_MODE": "single"}
        told = pod.run(cpus=ONLINE, **rank, **away)
        assert told.cpus is not None
        assert min(told.cpus) == 80  # of GPU 6's node


def test_what_only_begins_as_a_device_file_is_none(pod: Pod) -> None:
    pod.has("nvidia5", "nvidia1x")
    assert pod.run(cpus=ONLINE).environment["AFFINITYD_CPULIST"] == GPU_2


def test_strict_holds_for_the_table_too(pod: Pod) -> None:
    (pod.to / "table").write_text("2 remote 0-3 minor:5\n")
    told = pod.run(cpus=ONLINE, AFFINITYD_STRICT="true", **unreachable(pod))
    assert told.cpus is None
    assert "CPUs 0-3 are far, which AFFINITYD_STRICT forbids" in told.lines[0]


# What run knows is what the rest knows.


def test_every_setting_of_a_pod_is_asked_with(pod: Pod) -> None:
    script = (pod.to / "run").read_text()
    assert {name for name in SAID if f"AFFINITYD_{name.upper()}" not in script} == set()


def test_every_launcher_is_known_but_slurm_s_which_has_a_script_of_its_own(pod: Pod) -> None:
    script = (pod.to / "run").read_text()
    unknown = {name for name, _ in LAUNCHERS if f" {name}:" not in script}
    assert unknown == {"SLURM_LOCALID"}


@pytest.mark.parametrize("word", ["off", "0", "no", "false", "on", "1", "", "offline"])
def test_it_is_off_where_all_the_rest_is(pod: Pod, word: str) -> None:
    assert (pod.run(cpus=ONLINE, AFFINITYD=word).cpus is None) == is_off({"AFFINITYD": word})
