"""affinityd's commands as processes of their own, without Python's start: that takes a second here.

Each is a fork of this process, which has imported what they need. From there on all is real: a pid,
a mask, a cgroup, an environment, execve(2).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

from affinityd.cli import entry
from tests.e2e.vm.inside import Ended
from tests.support.daemons import eventually

#: What the commands import when they need it.
for _module in (
    *("client.forked", "client.local_plan", "linux.memory_policy", "request.formats"),
    *("cli.commands.exec", "cli.commands.pin", "cli.commands.verify"),
):
    import_module(f"affinityd.{_module}")

HASTELESS = {"AFFINITYD_TIMEOUT": "60"}  #: seconds; an emulated CPU is slow


def affinityd(
    *words: str, env: Mapping[str, str] | None = None, group: Path | None = None
) -> Ended:
    """Return how a command ended. `env` adds to the environment, `group` is a cgroup to be in."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        pid = _fork(words, {**HASTELESS, **(env or {})}, group, (stdout, stderr))
        _, status = os.waitpid(pid, 0)
        texts = {name: _text(file) for name, file in (("stdout", stdout), ("stderr", stderr))}
    return {"status": os.waitstatus_to_exitcode(status), **texts}


@contextmanager
def executing(*options: str, program: str, group: Path | None = None) -> Iterator[int]:
    """Run a program that `affinityd exec` becomes, and give its pid, until the end of the block."""
    pid = _fork(("exec", *options, "--", program, "1000"), HASTELESS, group, ())
    try:
        eventually(lambda: _name(pid) == program, f"{program} runs")
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork(
    words: Sequence[str], env: Mapping[str, str], group: Path | None, outputs: Sequence[IO[bytes]]
) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _become(words, env, group, outputs)
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1)
        except BaseException:  # noqa: BLE001 - nothing may get back into the parent's code
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def _become(
    words: Sequence[str], env: Mapping[str, str], group: Path | None, outputs: Sequence[IO[bytes]]
) -> NoReturn:
    if group is not None:
        (group / "cgroup.procs").write_text("0")  # whoever writes it
    for target, output in enumerate(outputs, start=1):
        os.dup2(output.fileno(), target)
    os.environ.update(env)
    sys.argv[1:] = words
    entry()
    raise AssertionError("a program ends by SystemExit")


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
