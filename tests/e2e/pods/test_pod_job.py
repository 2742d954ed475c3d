"""The command that `run` starts keeps its words, exit status, environment, signals and streams."""

import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.daemons import PATIENCE, Daemon, eventually
from tests.support.pods import GPU_2, ONLINE, SHELLS, Pod, only, unreachable
from tests.support.servers import hanging, serving
from tests.support.tiny import BOTH, FAR, LOOK, Ended, ran

EACH_SHELL = pytest.mark.parametrize("shell", SHELLS, ids=str)
PATH = {"PATH": "/usr/bin:/bin"}


def test_the_command_keeps_its_environment(pod: Pod) -> None:
    """A job may have variables with names that the script uses: `mask`, `line`, `rank`."""
    script = (pod.to / "run").read_text() + (pod.to / "pinning.sh").read_text()
    names = set(re.findall(r"\b([a-z_]+)=", re.sub("(?m)^#.*", "", script)))
    names = {name for name in names if not name.startswith("affinityd_")} | {"mask", "name", "line"}
    assert names >= {"dev", "mask", "line", "name", "value", "here", "address"}
    mine = {name: f"its {name}" for name in names} | {"http_proxy": "http://nowhere:1"}
    ours = {"AFFINITYD_CPULIST", "AFFINITYD_LOCALITY", "AFFINITYD_ALLOWED"}
    ended = pod.run(cpus=ONLINE, IFS=",", **mine).environment
    assert ended["AFFINITYD_CPULIST"] == GPU_2
    assert ended.items() >= mine.items()
    assert {it for it in ended if it.startswith("AFFINITYD")} == ours
    assert pod.run(cpus=ONLINE, IFS=",", **mine, **unreachable(pod)).environment.items() >= (
        mine.items()
    )


def test_words_and_exit_status_of_the_command_are_kept(pod: Pod) -> None:
    for command, status in (
        (["sh", "-c", "exit 37"], 37),
        (["/nonexistent/train"], 127),
        (["/etc/passwd"], 126),  # not a program
    ):
        assert pod.run(*command, cpus=ONLINE).status == status
    words = ["a b", "", "$HOME", "*", "--fail-closed", "it's", "new\nline"]
    ended = pod.run("sh", "-c", 'for it; do printf "[%s]=" "$it"; done', "sh", *words, cpus=ONLINE)
    line = "".join(f"[{word}]=" for word in words)
    assert dict(part.partition("=")[::2] for part in line.splitlines()) == ended.environment


def test_with_fail_closed_an_unpinned_command_does_not_start(pod: Pod) -> None:
    ended = pod.run("--fail-closed", "env", cpus=ONLINE, CUDA_VISIBLE_DEVICES="")
    assert (ended.status, ended.environment) == (125, {})
    assert ended.lines[0].endswith("; the command was not started")
    assert pod.run("--fail-closed", "env", cpus=ONLINE).environment["AFFINITYD_CPULIST"] == GPU_2


def test_run_without_a_command_prints_its_usage(pod: Pod) -> None:
    usage = "usage: run [--fail-closed] [--] COMMAND [ARGUMENT...]\n"
    for words in ([], ["-x"], ["--fail-closed"], ["--help"]):
        assert ran(pod.to / "run", *words) == Ended(125, "", usage)
    assert pod.run("--", "env", cpus=ONLINE).environment["AFFINITYD_CPULIST"] == GPU_2


def test_a_command_that_cannot_be_pinned_runs(pod: Pod, tmp_path: Path) -> None:
    (pod.folder / "bin/taskset").write_text("#!/bin/sh\nexit 1\n")
    refused = [f"affinityd run: CPUs {GPU_2} were refused; the command runs unpinned"]
    assert pod.run(cpus=ONLINE).lines == refused
    (pod.folder / "bin/taskset").unlink()
    ended = pod.run(cpus=ONLINE, path=only(tmp_path / "few", "env", "sh", "curl"))
    none = "taskset is not here, to set CPUs"
    assert ended.lines == [f"affinityd run: {none}; the command runs unpinned"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pinning.sh", None),
        ("pinning.sh", "if\n"),  # a syntax error for the shell
        ("settings", "if\n"),
        ("settings", None),
    ],
)
@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_a_job_starts_with_a_damaged_folder(
    pod: Pod, shell: list[str], name: str, text: str | None
) -> None:
    (pod.to / name).unlink() if text is None else (pod.to / name).write_text(text)
    ended = pod.run(cpus=ONLINE, shell=shell)
    assert "PATH" in ended.environment
    assert (ended.status, ended.cpus is None) == (0, name != "settings" or bool(text))
    if shell == ["dash"] and text:
        line = "affinityd run: the script broke off; the command runs unpinned"
        assert ended.lines == [line]


def test_the_command_replaces_the_script_and_reads_the_same_stdin(tiny_pod: Path) -> None:
    """A runtime signals only a container's first process, and waits for that process."""
    command = ["sh", "run", "sh", "-c", f"echo $$; {' '.join(LOOK)}; cat"]
    both = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tiny_pod.parent, text=True, stdin=both, stdout=both
    ) as process:
        pid, cpus, data = process.communicate("the data\n")[0].splitlines()
    assert (int(pid), cpus.split()[1], data) == (process.pid, FAR, "the data")


@EACH_SHELL
def test_a_variable_with_a_name_unknown_to_sh_is_kept(pod: Pod, shell: list[str]) -> None:
    odd = {"my.var": "a b", "x-y": "", "1st": "$HOME *", "a.b": "c=d"}
    exported = ["env", *(f"{name}={text}" for name, text in odd.items()), *shell]
    for word in ("on", "off"):
        ended = pod.run(cpus=ONLINE, shell=exported, AFFINITYD=word)
        assert odd.items() <= ended.environment.items()
        assert (ended.cpus is None, ended.lines) == (word == "off", [])


def test_a_job_starts_though_stderr_is_closed_or_never_read(tiny_pod: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    unread = [str(tiny_pod), *LOOK]
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *unread]
    says = {"AFFINITYD_SOCKET": "/nobody"}
    for command, env, cpus in (
        (closed, says, FAR),
        (closed, {}, FAR),
        (unread, says, FAR),
        (unread, {"AFFINITYD": "perhaps"}, BOTH),
    ):
        printed = subprocess.check_output(command, env={**PATH, **env}, stderr=writer, text=True)
        assert printed.split()[1] == cpus
    os.close(writer)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@EACH_SHELL
def test_a_script_that_is_killed_while_it_asks_starts_no_command(
    tiny_pod: Path, tmp_path: Path, shell: list[str], number: signal.Signals
) -> None:
    asked = tmp_path / "asked"

    def behave(connection: socket.socket, over: threading.Event) -> None:
        asked.touch()
        hanging(connection, over)

    with serving(tmp_path / "s", behave) as path:
        env = {**PATH, "AFFINITYD_SOCKET": str(path)}
        command = ["env", "--default-signal", *shell, str(tiny_pod), "touch", f"{tmp_path}/started"]
        with subprocess.Popen(command, env=env) as process:
            eventually(asked.exists, "it asks")
            process.send_signal(number)
            assert process.wait(PATIENCE) == -number
    assert not (tmp_path / "started").exists()


@EACH_SHELL
def test_the_command_keeps_its_signals(tiny_pod: Path, shell: list[str]) -> None:
    look = ["/bin/grep", "-E", "^Sig(Ign|Cgt|Blk)", "/proc/self/status"]  # not busybox's grep
    deaf = ["sh", "-c", 'trap "" HUP USR1; exec "$@"', "sh"]
    for before in ([], deaf):
        alone = subprocess.check_output([*before, *look])
        assert subprocess.check_output([*before, *shell, str(tiny_pod), *look]) == alone


# AFFINITYD=on, observe or off is set for a job, for its init container, or for the daemon.

UNIQUE = {"AFFINITYD_MODE": "unique_contiguous"}
OBSERVED = f"observe: would run on CPUs {GPU_2} (local)"


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_observe_pins_nothing_and_exports_the_plan(pod: Pod, shell: list[str]) -> None:
    """This holds with and without a daemon; `--fail-closed` does not refuse the command."""
    for away in ({}, unreachable(pod)):
        command = ("--fail-closed", "env")
        ended = pod.run(*command, cpus=ONLINE, shell=shell, AFFINITYD="observe", **away)
        assert (ended.environment["AFFINITYD_UNPINNED"], ended.lines) == (OBSERVED, [])
        assert ended.cpus is None
    assert not (pod.folder / "pinned").exists()


@pytest.mark.parametrize(
    ("init", "unpinned"), [("observe", OBSERVED), ("off", None), ("obsreve", None)]
)
def test_pods_may_opt_out(tmp_path: Path, daemon: Daemon, init: str, unpinned: str | None) -> None:
    pod = Pod(tmp_path, daemon.socket, {"AFFINITYD": init, **UNIQUE})
    pod.has("nvidia5")
    ended = pod.run(cpus=ONLINE, AFFINITYD="on")
    assert (ended.cpus, ended.lines) == (None, [])
    assert ended.environment.get("AFFINITYD_UNPINNED") == unpinned
