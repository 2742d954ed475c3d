"""Becoming a command: what it finds is what it would have found without us, as env(1) shows."""

from __future__ import annotations

import os
import shutil
import signal
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
    given: bytes = b"",
) -> Ended:
    """Run a command one way or the other."""
    prepare = [sys.executable, "-c", PREPARE.format(state=state)] if state else []
    env = {"PATH": PATH, "AFFINITYD": "off", **(env or {})}
    whole = [*prepare, *way, *command]
    done = subprocess.run(whole, capture_output=True, check=False, cwd=cwd, env=env, input=given)
    return Ended(done.returncode, done.stdout, done.stderr)


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


# The command and its end.


@pytest.mark.parametrize(
    "words",
    [
        ["a", "", "b c", "'\"$HOME\\", "\n", "-x", "--", "--mode", "=", "*"],
        [b"\xff\xfe", "é", "\u2028", "x" * 100_000],
    ],
    ids=["what a shell would change", "what is no text, or long"],
)
def test_words_and_stdin_are_the_command_s(words: Sequence[str | bytes]) -> None:
    command = ["sh", "-c", "cat /proc/$$/cmdline -", *words]
    ours = run(OURS, *command, given=b"in")
    assert ours == run(ENV, *command, given=b"in")
    assert ours.stdout.split(b"\0")[3:] == [*(os.fsencode(word) for word in words), b"in"]


@pytest.mark.parametrize("status", [0, 1, 125, 127, 255])
def test_the_exit_status_is_the_command_s(status: int) -> None:
    assert run(OURS, "sh", "-c", f"exit {status}") == Ended(status, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGPIPE])
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
IGNORED = "for it in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM): "


@pytest.mark.parametrize(
    "state",
    [
        "pass",
        f"{IGNORED}signal.signal(it, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM, 40])",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [15]); os.kill(os.getpid(), 15)",
    ],
    ids=["none", "ignored", "blocked", "pending"],
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
        *("pass", "os.close(0)", "os.close(1)", "os.close(2)", "os.closerange(0, 3)"),
        "os.dup2(2, 3); os.dup2(2, 9); os.dup2(os.open('/etc', os.O_RDONLY), 63)",
    ],
    ids=["three", "no stdin", "no stdout", "no stderr", "none of them", "more of them"],
)
def test_open_files_stay_and_none_is_added(tmp_path: Path, state: str) -> None:
    seen = []
    for way in (OURS, ENV):
        assert run(way, *OPEN, "files", state=state, cwd=tmp_path).status == 0
        lines = (tmp_path / "files").read_text().splitlines()
        # A pipe is another one each time, and a shell's own number is its own.
        seen.append([line.split("/fd/")[1].split(":[")[0] for line in lines])
    assert seen[0] == seen[1]


OTHERS = (
    "os.umask(0o137); os.nice(7); resource.setrlimit(resource.RLIMIT_NOFILE, (77, 99));"
    "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); os.setpgid(0, 0)"
)
SHOWN = "umask; nice; ulimit -Sn; ulimit -Hn; cut -d' ' -f41 /proc/$$/stat"
GROUP = "test $(cut -d' ' -f5 /proc/$$/stat) = $$; echo $?"
GONE = "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"


@pytest.mark.parametrize(
    ("state", "command"), [(OTHERS, f"{SHOWN}; {GROUP}"), (GONE, "readlink /proc/$$/cwd")]
)
def test_the_rest_of_a_process_stays(tmp_path: Path, state: str, command: str) -> None:
    ours, theirs = (run(way, "sh", "-c", command, state=state, cwd=tmp_path) for way in (OURS, ENV))
    assert ours == theirs
    assert ours.stdout


@pytest.mark.parametrize(
    "env",
    [
        *({}, {"LANG": "C"}, {"LANG": "C.UTF-8"}, {"LANG": "xx_XX.UTF-8"}, {"LC_ALL": "C"}),
        *({"LC_CTYPE": "C.UTF-8"}, {"LC_CTYPE": "POSIX"}, {"LC_CTYPE": ""}),
        {"PYTHONCOERCECLOCALE": "0"},
        {"NAME": b"\xff=\n\xfe", "EMPTY": "", "a.b-c": "1", "É": "é", "AFFINITYD_NONSENSE": "1"},
    ],
    ids=str,
)
def test_the_environment_stays_to_the_byte(env: Mapping[str, str | bytes]) -> None:
    ours, theirs = (run(way, "cat", "/proc/self/environ", env=env) for way in (OURS, ENV))
    assert sorted(ours.stdout.split(b"\0")) == sorted(theirs.stdout.split(b"\0"))


# What is run, and what cannot be.


def test_a_script_without_an_interpreter_is_the_shell_s(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "hello", 'echo "$0|$1|$#"\n')
    for command in ("hello", "./bin/hello", str(tmp_path / "bin" / "hello")):
        env = {"PATH": f"{tmp_path}/bin:{PATH}"}
        ours, theirs = (run(way, command, "a b", "", env=env, cwd=tmp_path) for way in (OURS, ENV))
        assert ours == theirs
        assert ours.stdout.endswith(b"|a b|2\n")


@pytest.mark.parametrize(("mode", "found"), [(0o755, b"first\n"), (0o644, b"second\n")])
def test_the_first_in_the_path_that_may_be_run_is_run(
    tmp_path: Path, mode: int, found: bytes
) -> None:
    script(tmp_path / "first" / "hello", "echo first\n", mode)
    script(tmp_path / "second" / "hello", "#!/bin/sh\necho second\n")
    env = {"PATH": f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second:{PATH}"}
    for way in (ENV, OURS):
        assert run(way, "hello", env=env).stdout == found


@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        *(("nonexistent", 127, "No such file or directory"), ("/etc", 126, "Permission denied")),
        *(("", 127, "No such file or directory"), ("./text", 126, "Permission denied")),
        *(("./text/x", 126, "Not a directory"), ("./lost", 127, "No such file or directory")),
        ("./loop", 126, "Too many levels of symbolic links"),
        ("./" + "x" * 300, 126, "File name too long"),
        ("./text\n\x1b[2J", 127, "No such file or directory"),
    ],
)
def test_what_cannot_be_run_is_said_with_env_s_exit_status(
    tmp_path: Path, command: str, status: int, reason: str
) -> None:
    (tmp_path / "text").touch()
    (tmp_path / "loop").symlink_to("loop")
    script(tmp_path / "lost", "#!/nonexistent/sh\n")
    ours, theirs = (run(way, command, cwd=tmp_path) for way in (OURS, ENV))
    assert theirs.status == status
    shown = repr(command if len(command) <= 60 else f"{command[:60]}…")
    told = f"affinityd exec: {shown} cannot be run: {reason}\n"
    assert ours == Ended(status, b"", told.encode())


@pytest.mark.parametrize(
    "path", ["text:bin", "bin:text", "none", "locked:bin", "bin:locked", "locked:text", "", ":bin"]
)
def test_what_is_nowhere_in_the_path_is_said_with_env_s_exit_status(
    tmp_path: Path, path: str
) -> None:
    (tmp_path / "text").touch()
    script(tmp_path / "bin" / "other", "")
    script(tmp_path / "locked" / "hello", "", 0o644)
    ours, theirs = (run(way, "hello", env={"PATH": path}, cwd=tmp_path) for way in (OURS, ENV))
    assert ours.status == theirs.status
    assert ours.stderr.split(b": ")[-1] == theirs.stderr.split(b": ")[-1]


def test_a_program_of_another_kind_is_the_shell_s_to_refuse(tmp_path: Path) -> None:
    script(tmp_path / "garbage", "\x7fELF\x02\0")
    ours, theirs = (run(way, "./garbage", cwd=tmp_path) for way in (OURS, ENV))
    assert ours.status == theirs.status
    assert ours.status in {2, 126, 127}
