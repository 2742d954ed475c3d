"""A newcomer runs scripts/run; scripts/audit-dependencies meets packages that it cannot check."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.paths import REPOSITORY
from tests.support.tiny import ran

RUN = REPOSITORY / "scripts" / "run"
PATIENCE = 120.0  #: seconds; the first run may have to install the package


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start scripts/run in a process group, as a terminal does; end the group afterwards."""
    process = subprocess.Popen(
        ["/usr/bin/env", "--default-signal=INT", RUN, *arguments],  # a background job ignores INT
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if group_lives(process):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def group_lives(process: subprocess.Popen[str]) -> bool:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 0)
        return True
    return False


def read_until(process: subprocess.Popen[str], end: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(end):
            return lines
    raise AssertionError("\n".join(lines))


def test_the_printed_command_works_and_ctrl_c_leaves_nothing() -> None:
    with started("--machine", "dgx-a100", "--listen", "none") as process:
        lines = read_until(process, "Ctrl-C")
        command = shlex.split(next(line for line in lines if line.startswith("    curl ")))
        answer = subprocess.check_output(command, text=True)
        assert answer.splitlines()[:2] == ["48-63,176-191", "48-63,176-191"]
        assert answer.strip() in "\n".join(lines)
        export = next(line for line in lines if line.startswith("    export "))
        script = f"{export}; LOCAL_RANK=0 affinityd exec --verbose -- true 2>&1"
        assert "planned from daemon" in subprocess.check_output(["sh", "-c", script], text=True)
        folder = Path(command[command.index("--unix-socket") + 1]).parent
        assert folder.is_dir()

        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) == 128 + signal.SIGINT
        assert not group_lives(process)
        assert not folder.exists()


def test_without_root_the_script_names_the_command_that_installs_the_rest(tmp_path: Path) -> None:
    """The machine has only apt-get and Python, and no curl; the user is not root."""
    for program in ("apt-get", "cat", "dirname", "sh"):
        (tmp_path / program).symlink_to(shutil.which(program) or "/bin/true")
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    with started(PATH=str(tmp_path), PYTHON=sys.executable) as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "    apt-get install -y --no-install-recommends curl" in output.splitlines()


def test_packages_that_could_not_be_checked_are_not_called_clean() -> None:
    env = {**os.environ, "OSV_URL": "http://127.0.0.1:1/v1/query", "NO_PROXY": "127.0.0.1"}
    done = ran(REPOSITORY / "scripts/audit-dependencies", env=env)
    assert (done.status, done.stdout) == (3, "")
    assert done.lines[-1].startswith("deploy/image/*.txt was NOT AUDITED: ")
