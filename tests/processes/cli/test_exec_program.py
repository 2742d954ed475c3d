"""A command that `exec` starts finds the same state as a command that env(1) starts."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

#: The words by which a process becomes a command: with affinityd, and with env(1).
OURS = (sys.executable, "-m", "affinityd", "exec", "--")
ENV = (shutil.which("env") or "env",)

PATH = os.environ["PATH"]

#: Brings a process into a state, and executes the words; resets signals that Python changed.
PREPARE = """
import os, signal, sys, resource
for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT): signal.signal(number, signal.SIG_DFL)
{state}
os.execvp(sys.argv[1], sys.argv[1:])
"""

Env = Mapping[str, str | bytes]
Ended = tuple[int, bytes, bytes]


def run(
    way: Sequence[str], *command: str | bytes, state: str = "pass", env: Env | None = None
) -> Ended:
    whole = [sys.executable, "-c", PREPARE.format(state=state), *way, *command]
    env = {"PATH": PATH, "AFFINITYD": "off", **(env or {})}
    done = subprocess.run(whole, capture_output=True, check=False, env=env, input=b"in")
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    hello = {
        "bin": ('echo "$0|$1|$#"\n', 0o755),
        "second": ("#!/bin/sh\necho second\n", 0o755),
        "locked": ("echo locked\n", 0o644),
        "lost": ("#!/nonexistent/sh\n", 0o755),
        "garbage": ("\x7fELF\x02\0", 0o755),
    }
    for name, (text, mode) in hello.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "hello").write_text(text)
        (tmp_path / name / "hello").chmod(mode)
    (tmp_path / "text").touch()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    return tmp_path


WORDS = ["a", "", "b c", "'\"$HOME\\", "\n", "-x", "--", "--mode", "=", "*"]
ODD = [b"\xff\xfe", "é", "\u2028", "x" * 100_000]
SHOW = ("sh", "-c", "cat /proc/$$/cmdline -")
SIGNALS = ("grep", "-E", "^(Sig|Shd)(Blk|Ign|Pnd)", "/proc/self/status")
OPEN = ("sh", "-c", "for fd in /proc/$$/fd/*; do echo $fd $(readlink $fd); done >files")
IGNORED = "for it in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM): "
OTHERS = (
    "os.umask(0o137); os.nice(7); resource.setrlimit(resource.RLIMIT_NOFILE, (77, 99));"
    "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); os.setpgid(0, 0)"
)
SHOWN = "umask; nice; ulimit -Sn; ulimit -Hn; cut -d' ' -f41 /proc/$$/stat"
GROUP = "test $(cut -d' ' -f5 /proc/$$/stat) = $$; echo $?"
GONE = "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"


@pytest.mark.parametrize(
    ("state", "command"),
    [
        ("pass", (*SHOW, *WORDS, *ODD)),
        *(
            ("pass", ("sh", "-c", end))
            for end in ("exit 1", "exit 255", "kill -2 $$", "kill -9 $$")
        ),
        ("pass", SIGNALS),
        (f"{IGNORED}signal.signal(it, signal.SIG_IGN)", SIGNALS),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM, 40])", SIGNALS),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [15]); os.kill(os.getpid(), 15)", SIGNALS),
        *((f"os.close({fd})", OPEN) for fd in (0, 1, 2)),
        ("os.closerange(0, 3)", OPEN),
        ("os.dup2(2, 3); os.dup2(2, 9); os.dup2(os.open('/etc', 0), 63)", OPEN),
        (OTHERS, ("sh", "-c", f"{SHOWN}; {GROUP}")),
        (GONE, ("readlink", "/proc/self/cwd")),
        *(("pass", (it, "a b", "")) for it in ("hello", "./bin/hello", "./garbage/hello")),
    ],
)
def test_a_command_behaves_as_under_env(
    folder: Path, state: str, command: Sequence[str | bytes]
) -> None:
    env = {"PATH": f"none:text:locked:bin:second:{PATH}"}
    seen = []
    for way in (OURS, ENV):
        ended = run(way, *command, state=state, env=env)
        listed = folder / "files"
        # Each run has another pipe, and a shell with another pid.
        files = re.sub(r"/proc/\d+/|:\S+", "", listed.read_text() if listed.exists() else "")
        seen.append((ended, files))
    assert seen[0] == seen[1]


def test_the_command_is_the_same_process() -> None:
    with subprocess.Popen(
        [*OURS, "sh", "-c", "echo $$"], stdout=subprocess.PIPE, env={"PATH": PATH}
    ) as child:
        assert child.communicate()[0] == b"%d\n" % child.pid


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGXFSZ])
def test_signals_that_python_ignores_end_a_command(number: signal.Signals) -> None:
    state = f"signal.signal({number.value}, signal.SIG_IGN)"
    assert run(OURS, "sh", "-c", f"kill -{number.value} $$", state=state)[0] == -number


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
def test_the_environment_stays_the_same_byte_by_byte(env: Env) -> None:
    state = "os.environ.pop('LC_CTYPE', None); " * ("LC_CTYPE" not in env)  # which Python set
    ours, theirs = (
        run(way, "cat", "/proc/self/environ", env=env, state=f"{state}pass") for way in (OURS, ENV)
    )
    assert sorted(ours[1].split(b"\0")) == sorted(theirs[1].split(b"\0"))


# Commands that cannot be run.


@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        *(("nonexistent", 127, "No such file or directory"), ("/etc", 126, "Permission denied")),
        *(("", 127, "No such file or directory"), ("./text", 126, "Permission denied")),
        *(("./text/x", 126, "Not a directory"), ("lost/hello", 127, "No such file or directory")),
        ("./loop", 126, "Too many levels of symbolic links"),
        ("./" + "x" * 300, 126, "File name too long"),
        ("./text\n\x1b[2J", 127, "No such file or directory"),
    ],
)
def test_a_command_that_cannot_be_run_is_named_with_env_s_exit_status(
    command: str, status: int, reason: str
) -> None:
    shown = repr(command if len(command) <= 60 else f"{command[:60]}…")
    told = f"affinityd exec: {shown} cannot be run: {reason}\n"
    assert run(ENV, command)[0] == status
    assert run(OURS, command) == (status, b"", told.encode())
