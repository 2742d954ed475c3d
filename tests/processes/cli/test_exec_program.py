"""Becoming a command: what it finds is what it would have found without us, as env(1) shows."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

#: The same process, becoming a command by way of us and by way of env(1).
OURS = (sys.executable, "-m", "affinityd", "exec", "--")
ENV = (shutil.which("env") or "env",)

PATH = os.environ["PATH"]

#: Brings a process into a state before it goes on; Python itself ignores two signals.
PREPARE = """
import os, signal, sys, resource
for number in (signal.SIGPIPE, signal.SIGXFSZ): signal.signal(number, signal.SIG_DFL)
{state}
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class Ended:
    status: int
    stdout: bytes
    stderr: bytes


def run(
    way: Sequence[str],
    *command: str | bytes,
    state: str = "",
    env: Mapping[str, str | bytes] | None = None,
    cwd: Path | None = None,
    fds: Sequence[int] = (),
) -> Ended:
    """Run a command one way or the other."""
    prepare = [sys.executable, "-c", PREPARE.format(state=state)] if state else []
    done = subprocess.run(
        [*prepare, *way, *command],
        capture_output=True,
        check=False,
        cwd=cwd,
        env={"PATH": PATH, "AFFINITYD": "off", **(env or {})},
        pass_fds=fds,
        timeout=30,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


# The command and its end.


@pytest.mark.parametrize(
    "words",
    [
        [],
        [""],
        ["a", "", "b c", "'\"$HOME\\", "\n", "-x", "--", "--mode", "=", "*"],
        [b"\xff\xfe", "é", "\u2028"],
        ["x" * 100_000],
    ],
    ids=["none", "an empty one", "what a shell would change", "bytes that are no text", "long"],
)
def test_words_stay_what_they_are(words: Sequence[str | bytes]) -> None:
    command = ["sh", "-c", "cat /proc/$$/cmdline", *words]
    ours = run(OURS, *command)
    assert ours == run(ENV, *command)
    assert ours.stdout.split(b"\0")[3:-1] == [os.fsencode(word) for word in words]


@pytest.mark.parametrize("status", [0, 1, 2, 42, 125, 126, 127, 255])
def test_the_exit_status_is_the_command_s(status: int) -> None:
    assert run(OURS, "sh", "-c", f"exit {status}") == Ended(status, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGPIPE])
def test_a_death_by_a_signal_is_the_command_s(number: signal.Signals) -> None:
    with caught(number):
        assert run(OURS, "sh", "-c", f"kill -{number.value} $$").status == -number


@contextmanager
def caught(number: signal.Signals) -> Iterator[None]:
    """Have a program not inherit that a signal is ignored, as a script ignores SIGINT for `&`."""
    before = signal.getsignal(number)
    if before is not signal.SIG_IGN:
        yield
        return
    signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_it_is_the_same_process() -> None:
    with subprocess.Popen(
        [*OURS, "sh", "-c", "echo $$"], stdout=subprocess.PIPE, env={"PATH": PATH}
    ) as child:
        assert child.communicate()[0] == b"%d\n" % child.pid


# What it inherits.

SIGNALS = ("grep", "-E", "^(Sig|Shd)(Blk|Ign|Pnd)", "/proc/self/status")


@pytest.mark.parametrize(
    "state",
    [
        "pass",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)",
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM, 40])",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [15]); os.kill(os.getpid(), 15)",
    ],
    ids=["none", "SIGINT", "nohup", "SIGCHLD", "SIGALRM", "blocked", "pending"],
)
def test_signals_that_are_ignored_or_blocked_stay_so(state: str) -> None:
    assert run(OURS, *SIGNALS, state=state) == run(ENV, *SIGNALS, state=state)


def test_signals_that_python_ignores_end_a_command() -> None:
    """A subprocess of Python inherits them ignored, unless they are restored, as here."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        state = f"signal.signal({number.value}, signal.SIG_IGN)"
        assert run(OURS, "sh", "-c", f"kill -{number.value} $$", state=state).status == -number


OPEN = ("sh", "-c", "for fd in /proc/$$/fd/*; do echo $fd $(readlink $fd); done > $0")


@pytest.mark.parametrize(
    "state",
    [
        "pass",
        "os.dup2(2, 3); os.dup2(2, 9)",
        "os.close(0)",
        "os.close(1)",
        "os.close(2)",
        "os.closerange(0, 3)",
        "os.open('/', os.O_RDONLY); os.dup2(os.open('/etc', os.O_RDONLY), 63)",
    ],
    ids=["three", "3 and 9", "no stdin", "no stdout", "no stderr", "none of them", "a folder"],
)
def test_open_files_stay_and_none_is_added(tmp_path: Path, state: str) -> None:
    seen = []
    for way in (OURS, ENV):
        assert run(way, *OPEN, "files", state=state, cwd=tmp_path).status == 0
        lines = (tmp_path / "files").read_text().splitlines()
        # A pipe is another one each time, and a shell's own number is its own.
        seen.append([line.split("/fd/")[1].split(":[")[0] for line in lines])
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("state", "command"),
    [
        ("os.umask(0o137)", "umask"),
        ("os.nice(7)", "nice"),
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (77, 99))", "ulimit -Sn; ulimit -Hn"),
        ("os.setpgid(0, 0)", "test $(cut -d' ' -f5 /proc/$$/stat) = $$; echo $?"),
        (
            "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
            "cut -d' ' -f41 /proc/$$/stat",
        ),
        ("os.chdir('/etc')", "pwd"),
        ("os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')", "readlink /proc/$$/cwd"),
    ],
    ids=[
        "umask",
        "nice",
        "limits",
        "process group",
        "scheduler",
        "folder",
        "a folder that is gone",
    ],
)
def test_the_rest_of_a_process_stays(tmp_path: Path, state: str, command: str) -> None:
    ours, theirs = (run(way, "sh", "-c", command, state=state, cwd=tmp_path) for way in (OURS, ENV))
    assert ours == theirs
    assert ours.stdout


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"LANG": "C"},
        {"LANG": "C.UTF-8"},
        {"LANG": "xx_XX.UTF-8"},
        {"LC_ALL": "C"},
        {"LC_ALL": "", "LANG": "C"},
        {"LC_CTYPE": "C.UTF-8"},
        {"LC_CTYPE": "C"},
        {"LC_CTYPE": "POSIX"},
        {"LC_CTYPE": ""},
        {"PYTHONCOERCECLOCALE": "0"},
        {"NAME": b"\xff=\n\xfe", "EMPTY": "", "a.b-c": "1", "É": "é"},
        {"AFFINITYD_MODE": "node", "AFFINITYD_NONSENSE": "1"},
    ],
    ids=str,
)
def test_the_environment_stays_to_the_byte(env: Mapping[str, str | bytes]) -> None:
    ours, theirs = (run(way, "cat", "/proc/self/environ", env=env) for way in (OURS, ENV))
    assert sorted(ours.stdout.split(b"\0")) == sorted(theirs.stdout.split(b"\0"))


# What cannot be run.


def test_a_script_without_an_interpreter_is_the_shell_s(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "hello", 'echo "$0|$1|$#"\n')
    for command in ("hello", "./bin/hello", str(tmp_path / "bin" / "hello")):
        env = {"PATH": f"{tmp_path}/bin:{PATH}"}
        ours, theirs = (run(way, command, "a b", "", env=env, cwd=tmp_path) for way in (OURS, ENV))
        assert ours == theirs
        assert ours.stdout.endswith(b"|a b|2\n")


def test_a_script_without_an_interpreter_comes_before_what_is_later_in_the_path(
    tmp_path: Path,
) -> None:
    script(tmp_path / "first" / "hello", "echo first\n")
    script(tmp_path / "second" / "hello", "#!/bin/sh\necho second\n")
    env = {"PATH": f"{tmp_path}/first:{tmp_path}/second:{PATH}"}
    for way in (ENV, OURS):
        assert run(way, "hello", env=env).stdout == b"first\n"


def test_what_may_not_be_run_is_passed_over_for_what_is_later_in_the_path(tmp_path: Path) -> None:
    script(tmp_path / "first" / "hello", "#!/bin/sh\necho first\n").chmod(0o644)
    script(tmp_path / "second" / "hello", "#!/bin/sh\necho second\n")
    env = {"PATH": f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second:{PATH}"}
    for way in (ENV, OURS):
        assert run(way, "hello", env=env).stdout == b"second\n"


@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        ("nonexistent", 127, "No such file or directory"),
        ("./nonexistent", 127, "No such file or directory"),
        ("", 127, "No such file or directory"),
        ("/etc", 126, "Permission denied"),
        ("./text", 126, "Permission denied"),
        ("./text/x", 126, "Not a directory"),
        ("./loop", 126, "Too many levels of symbolic links"),
        ("./" + "x" * 300, 126, "File name too long"),
        ("./lost", 127, "No such file or directory"),
        ("./text\n\x1b[2J", 127, "No such file or directory"),
    ],
    ids=[
        *("not found", "not there", "empty", "a folder", "no program", "below a file", "a loop"),
        *("too long", "its interpreter is not there", "a name that acts on a terminal"),
    ],
)
def test_what_cannot_be_run_is_said_with_env_s_exit_status(
    tmp_path: Path, command: str, status: int, reason: str
) -> None:
    (tmp_path / "text").touch()
    (tmp_path / "loop").symlink_to("loop")
    script(tmp_path / "lost", "#!/nonexistent/sh\n")
    ours, theirs = (run(way, command, cwd=tmp_path) for way in (OURS, ENV))
    assert ours.status == theirs.status == status
    shown = repr(command if len(command) <= 60 else f"{command[:60]}…")
    assert ours.stderr.decode() == f"affinityd exec: {shown} cannot be run: {reason}\n"
    assert ours.stdout == b""


@pytest.mark.parametrize(
    "path",
    ["text", "text:bin", "bin:text", "none", "locked:bin", "bin:locked", "locked:text", "", ":bin"],
)
def test_what_is_nowhere_in_the_path_is_said_with_env_s_exit_status(
    tmp_path: Path, path: str
) -> None:
    (tmp_path / "text").touch()
    script(tmp_path / "bin" / "other", "")
    script(tmp_path / "locked" / "hello", "").chmod(0o644)
    ours, theirs = (run(way, "hello", env={"PATH": path}, cwd=tmp_path) for way in (OURS, ENV))
    assert ours.status == theirs.status
    assert ours.stderr.split(b": ")[-1] == theirs.stderr.split(b": ")[-1]


def test_a_program_of_another_kind_is_the_shell_s_to_refuse(tmp_path: Path) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(b"\x7fELF\x02\0")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    ours, theirs = (run(way, "./garbage", cwd=tmp_path) for way in (OURS, ENV))
    assert ours.status == theirs.status
    assert ours.status in {2, 126, 127}
