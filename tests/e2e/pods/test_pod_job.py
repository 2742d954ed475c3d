"""What `run` starts is the job's own: its words, status, environment, signals and streams."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, running
from tests.support.machines.sysfs_tree import write_tree
from tests.support.pods import GPU_2, ONLINE, SHELLS, Pod, only, unreachable
from tests.support.servers import hanging, serving
from tests.support.tiny import BOTH, FAR, LOOK
from tests.unit.request.test_devices import EIGHT


def test_the_command_s_environment_is_its_own_but_for_what_it_is_told(pod: Pod) -> None:
    """Variables of the script's, such as `mask`, `line` and `rank`, may be names of the job's."""
    script = (pod.to / "run").read_text() + (pod.to / "pinning.sh").read_text()
    names = set(re.findall(r"\b([a-z_]+)=", re.sub("(?m)^#.*", "", script)))
    names = {name for name in names if not name.startswith("affinityd_")} | {"mask", "name", "line"}
    assert names >= {"dev", "mask", "line", "name", "value", "here", "query"}
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


def test_it_may_be_started_from_its_own_folder(tiny_pod: Path) -> None:
    done = subprocess.run(
        ["sh", "run", *LOOK], cwd=tiny_pod.parent, capture_output=True, text=True, check=True
    )
    assert (done.stdout.split()[1], done.stderr) == (FAR, "")


@pytest.mark.parametrize("word", ["on", "off"])
@pytest.mark.parametrize("shell", SHELLS, ids=str)
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
@pytest.mark.parametrize("shell", SHELLS, ids=str)
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


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_signals_are_the_command_s_as_they_were(tiny_pod: Path, shell: list[str]) -> None:
    look = ["/bin/grep", "-E", "^Sig(Ign|Cgt|Blk)", "/proc/self/status"]  # not busybox's own
    deaf = ["sh", "-c", 'trap "" HUP USR1; exec "$@"', "sh"]
    for before in ([], deaf):
        alone = subprocess.check_output([*before, *look])
        assert subprocess.check_output([*before, *shell, str(tiny_pod), *look]) == alone


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_a_word_that_is_none_leaves_the_command_unpinned_and_is_told(
    pod: Pod, shell: list[str]
) -> None:
    told = pod.run(cpus=ONLINE, shell=shell, AFFINITYD="obsreve")
    line = "affinityd run: AFFINITYD is none of on, observe and off; the command runs unpinned"
    assert (told.cpus, told.lines) == (None, [line])


UNIQUE = {"AFFINITYD_MODE": "unique_contiguous"}
OBSERVED = f"observe: would run on CPUs {GPU_2} (local)"


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_observing_moves_nothing_and_tells_the_command_alone(pod: Pod, shell: list[str]) -> None:
    """With a daemon and by the table, and `--fail-closed` has nothing to hold up."""
    for away in ({}, unreachable(pod)):
        command = ("--fail-closed", "env")
        told = pod.run(*command, cpus=ONLINE, shell=shell, AFFINITYD="observe", **away)
        assert (told.environment["AFFINITYD_UNPINNED"], told.lines) == (OBSERVED, [])
        assert told.cpus is None
    assert not (pod.folder / "pinned").exists()


def test_observing_tells_the_command_what_would_keep_it_from_its_place(pod: Pod) -> None:
    said = {"AFFINITYD": "observe", "AFFINITYD_MODE": "fast"}
    told = pod.run("--fail-closed", "env", cpus=ONLINE, **said)
    why = "Malformed request: mode: 'fast' is not one of all"
    assert told.environment["AFFINITYD_UNPINNED"].startswith(why)
    assert told.lines == []


def test_what_is_pinned_is_not_told_why_an_earlier_one_was_not(pod: Pod) -> None:
    told = pod.run(cpus=ONLINE, AFFINITYD_UNPINNED=OBSERVED)
    assert "AFFINITYD_UNPINNED" not in told.environment
    assert told.environment["AFFINITYD_CPULIST"] == GPU_2


@pytest.mark.parametrize(
    ("init", "job", "unpinned"),
    [
        ("observe", "", OBSERVED),
        ("observe", "on", OBSERVED),
        ("observe", "off", None),
        ("off", "on", None),
        ("off", "observe", None),
        ("obsreve", "on", None),
    ],
)
def test_a_program_cannot_turn_on_what_its_pod_turned_off(
    tmp_path: Path, daemon: Daemon, init: str, job: str, unpinned: str | None
) -> None:
    pod = Pod(tmp_path, daemon.socket, {"AFFINITYD": init, **UNIQUE})
    pod.has("nvidia5")
    for away in ({}, unreachable(pod)):
        told = pod.run(cpus=ONLINE, AFFINITYD=job, **away)
        assert (told.cpus, told.lines) == (None, [])
        assert told.environment.get("AFFINITYD_UNPINNED") == unpinned


@pytest.mark.parametrize(("site", "unpinned"), [("observe", OBSERVED), ("off", None)])
def test_a_node_s_daemon_says_it_for_all_pods_and_when_it_is_gone_too(
    tmp_path: Path, site: str, unpinned: str | None
) -> None:
    tree = write_tree(EIGHT, tmp_path / "machine")
    with running(tmp_path / "run", "--root", str(tree), env={"AFFINITYD": site}) as daemon:
        pod = Pod(tmp_path / "pod", daemon.socket, UNIQUE)
        pod.has("nvidia5")
        there = pod.run(cpus=ONLINE)
    gone = pod.run(cpus=ONLINE)
    for told in (there, gone):
        assert told.environment.get("AFFINITYD_UNPINNED") == unpinned
        assert (told.cpus, told.lines) == (None, [])


@pytest.mark.parametrize(("site", "unpinned"), [("observe", OBSERVED), ("off", None)])
def test_a_node_s_daemon_that_comes_to_say_it_is_heeded_by_the_pods_that_are_there(
    tmp_path: Path, site: str, unpinned: str | None
) -> None:
    tree = write_tree(EIGHT, tmp_path / "machine")
    with running(tmp_path / "run", "--root", str(tree)) as daemon:
        pod = Pod(tmp_path / "pod", daemon.socket, UNIQUE)
        pod.has("nvidia5")
        assert pod.run(cpus=ONLINE).environment["AFFINITYD_CPULIST"] == GPU_2
    with running(tmp_path / "run", "--root", str(tree), env={"AFFINITYD": site}):
        told = pod.run(cpus=ONLINE)
    assert told.environment.get("AFFINITYD_UNPINNED") == unpinned
    assert (told.cpus, told.lines) == (None, [])
