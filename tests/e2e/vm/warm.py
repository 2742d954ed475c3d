"""Runs the guests' scripts, and affinityd's commands, without Python's start, which takes seconds.

A script guest_X.py reports results, and test_X.py judges them.

Each is a fork of a process that has imported the modules, above all the daemon's. After the fork
all is real: a pid, a mask, a cgroup, an environment, execve(2).
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from subprocess import Popen
from typing import IO, cast

from affinityd.cli import entry
from tests.e2e.vm.inside import SOCKET, Ended, stage
from tests.support import daemons
from tests.support.daemons import Daemon, eventually, is_ready

#: The modules that commands import only when they need them.
for _module in (
    *("linux.children", "client.local_plan", "linux.memory_policy", "request.formats"),
    *("cli.commands.exec", "cli.commands.pin", "cli.commands.verify", "cli.commands.audit"),
    *("cli.commands.serve", "daemon.main"),
):
    import_module(f"affinityd.{_module}")

LOG = Path("/tmp/log")  # noqa: S108 - nobody else is here
HASTELESS = {"AFFINITYD_TIMEOUT": "60"}  #: seconds; an emulated CPU is slow


def main() -> None:
    """Run the named script, and print its report as one line."""
    daemons.PATIENCE = 600.0  # seconds; an emulated CPU is slow
    report = import_module(f"tests.e2e.vm.guest_{sys.argv[1]}").main()
    stage("done")
    sys.stdout.write(f"{json.dumps(report)}\n")
    sys.stdout.flush()


class Forked:
    """A fork of this process, with the methods of Popen that tests of a daemon use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the process's status, or None while the process runs."""
        return self._waited(os.WNOHANG)

    def wait(self, _timeout: float = 0) -> int:
        """Wait, without a time limit, until the process ends; return its status."""
        status = self._waited(0)
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def _waited(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def serving(*arguments: str) -> Daemon:
    with LOG.open("wb") as log:
        process = Forked(_forked(partial(_become, ("serve", *arguments), {}, None, (log, log))))
    daemon = Daemon(cast("Popen[str]", process), SOCKET, LOG)
    eventually(lambda: is_ready(daemon), "the daemon is ready")
    return daemon


def affinityd(
    *words: str, env: Mapping[str, str] | None = None, group: Path | None = None
) -> Ended:
    """Return the result of a command. `env` adds to the environment; `group` is its cgroup."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        env = {**HASTELESS, **(env or {})}
        command = Forked(_forked(partial(_become, words, env, group, (stdout, stderr))))
        return {"status": command.wait(), "stdout": _text(stdout), "stderr": _text(stderr)}


def _forked(run: Callable[[], object]) -> int:
    """Run a function in a fork, which never returns to the parent's code; return its pid."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run()
            sys.stdout.flush()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - any error is reported
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def _become(
    words: Sequence[str], env: Mapping[str, str], group: Path | None, outputs: Sequence[IO[bytes]]
) -> None:
    if group is not None:
        (group / "cgroup.procs").write_text("0")  # 0: this process
    for target, output in enumerate(outputs, start=1):
        os.dup2(output.fileno(), target)
    os.environ.update(env)
    sys.argv[1:] = words
    entry()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    main()
