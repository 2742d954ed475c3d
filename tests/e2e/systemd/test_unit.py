"""The unit file, as systemd itself reads, checks and runs it.

A real systemd runs the unit: a separate manager in this machine's pid namespace. It is the user
manager, run as root: it applies a unit's capabilities, system calls and mounts as a machine's first
process does. It has its own cgroup and cgroup namespace, since it would otherwise take over every
process of this machine; its /run is a folder.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from affinityd.daemon.state.scans import NICENESS
from tests.support.children import children_of
from tests.support.daemons import PATIENCE, Daemon, eventually, is_ready
from tests.support.paths import REPOSITORY
from tests.support.tiny import printed, ran, tiny_tree

UNIT = REPOSITORY / "deploy" / "systemd" / "affinityd.service"
SYSTEMD = Path("/lib/systemd/systemd")
#: Where the hierarchy of cgroup v2 may be: beside those of v1, or as the only hierarchy.
HIERARCHIES = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not SYSTEMD.exists(), reason="only root can run a manager of its own"
)

#: $0: the folder, $1: the cgroup's folder, $2: a script. systemd needs /run/systemd/system.
ENTER = 'echo $$ >"$1/cgroup.procs" && exec unshare --cgroup --mount sh -ec "$2" "$0"'
MANAGE = f"""
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind "$0/run" /run
mkdir -p /run/systemd/system
exec {SYSTEMD} --user --unit={UNIT.name}
"""

#: Settings that a test's unit needs: the checkout and Python may lie in /tmp or a home.
HERE = f"""\
[Service]
PrivateTmp=no
ProtectHome=no
Restart=no
Environment=PYTHONPATH={REPOSITORY} PYTHONDONTWRITEBYTECODE=1
StandardOutput=append:{{log}}
StandardError=inherit
ExecStart=
ExecStart={sys.executable} {{command}}
"""


def installed(folder: Path, unit: str, drop_ins: Mapping[str, str]) -> Path:
    beside = folder / f"{UNIT.name}.d"
    beside.mkdir(parents=True)
    for name, text in drop_ins.items():
        (beside / name).write_text(text)
    path = folder / UNIT.name
    path.write_text(unit)
    return path


@contextmanager
def started(folder: Path, command: str, drop_ins: Mapping[str, str]) -> Iterator[Daemon]:
    """Start the unit in a manager; this Python runs `command` in place of the unit's own.

    `drop_ins`: file name → text. The unit's /run is FOLDER/run; the yielded value can be
    asked if the command is a daemon.
    """
    (folder / "run").mkdir()
    (folder / "run/docker.sock").touch()
    log = folder / "log"
    log.touch()
    here = HERE.format(log=log, command=command)
    unit = installed(folder / "units", UNIT.read_text(), {**drop_ins, "here.conf": here})
    paths = {"SYSTEMD_UNIT_PATH": f"{unit.parent}:", "XDG_CONFIG_HOME": str(folder)}
    with _cgroup() as cgroup, (folder / "manager").open("w") as log_of_manager:
        manager = subprocess.Popen(
            ["sh", "-c", ENTER, str(folder), str(cgroup), MANAGE],
            env={**os.environ, **paths, "XDG_RUNTIME_DIR": "/run", "SYSTEMD_LOG_TARGET": "console"},
            stdout=log_of_manager,
            stderr=log_of_manager,
            text=True,
        )
        try:
            yield Daemon(manager, folder / "run/affinityd/affinityd.sock", log)
        finally:
            manager.terminate()  # the manager ends its units before itself
            manager.wait(PATIENCE)


@contextmanager
def _cgroup() -> Iterator[Path]:
    top = next(it for it in HIERARCHIES if (it / "cgroup.controllers").exists())
    folder = Path(tempfile.mkdtemp(prefix="affinityd-test-", dir=top))
    try:
        yield folder
    finally:
        for path, _, _ in os.walk(folder, topdown=False):
            Path(path).rmdir()


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    for path in (tmp_path / "usr/bin/affinityd", tmp_path / "bin/kill"):
        path.parent.mkdir(parents=True)
        shutil.copy("/bin/true", path)
    installed(tmp_path / "etc/systemd/system", UNIT.read_text(), {})
    options = ("--man=no", "--recursive-errors=no", f"--root={tmp_path}")
    done = ran("systemd-analyze", "verify", *options, UNIT.name)
    assert (done.status, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_s_security_exposure_is_limited(tmp_path: Path) -> None:
    if "--offline" not in ran("systemd-analyze", "--help").stdout:
        pytest.skip("only systemd 250 and newer judge a unit that is not installed")
    unit = installed(tmp_path, UNIT.read_text(), {})
    security = ("systemd-analyze", "security", "--offline=true", "--no-pager")
    printed(*security, "--threshold=21", unit)


# Faults that end the daemon: a real systemd starts it again.

#: Restarts like the unit's, but sooner; other tests switch restarts off.
RESTARTS = "[Service]\nRestart=always\nRestartSec=100ms\nEnvironment=AFFINITYD_LISTEN={}\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("restart")
    command = f"-m affinityd serve --root {tiny_tree(folder / 'machine')}"
    with started(folder, command, {"restarts.conf": RESTARTS.format("none")}) as daemon:
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        yield daemon


def main_pid(daemon: Daemon) -> int | None:
    manager = daemon.process.pid
    for pid in Path(f"/proc/{manager}/task/{manager}/children").read_text().split():
        with suppress(OSError):
            if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return None


def test_systemd_restarts_the_daemon_when_its_socket_is_gone(daemon: Daemon) -> None:
    for number, path in enumerate((daemon.socket, daemon.socket.parent), 1):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        eventually(lambda number=number: len(daemon.says("critical")) == number, "it ends")  # type: ignore[misc]
        eventually(lambda: is_ready(daemon), "it is started again")
    gone = "critical: /run/affinityd/affinityd.sock is gone"
    assert all(line.startswith(gone) for line in daemon.says("critical"))


def test_the_daemon_cannot_see_other_services_sockets(daemon: Daemon) -> None:
    eventually(lambda: is_ready(daemon), "the daemon is ready")
    run = daemon.socket.parent.parent
    assert {"docker.sock", "systemd"} < {path.name for path in run.iterdir()}
    seen = Path(f"/proc/{main_pid(daemon)}/root/run")
    assert {path.name for path in seen.iterdir()} == {"affinityd", "affinityd-jobs", "systemd"}
    (run / "affinityd-jobs/7").write_text("gpus=0\n")  # as prolog.sh does
    assert (seen / "affinityd-jobs/7").read_text() == "gpus=0\n"
    assert os.statvfs(seen / "affinityd-jobs").f_flag & os.ST_RDONLY
    assert {path.name for path in (seen / "systemd").iterdir()} <= {"notify", "userdb"}
    assert (seen / "systemd/notify").is_socket()


def test_systemd_restarts_the_daemon_however_often_it_ends(daemon: Daemon) -> None:
    """By default systemd gives up a unit that has started five times within ten seconds."""
    killed: set[int] = set()
    while len(killed) < 7:
        eventually(lambda: main_pid(daemon) not in {None, *killed}, "it runs")
        killed.add(pid := main_pid(daemon) or 0)
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: is_ready(daemon), "it is started again")


def test_a_wrong_setting_causes_no_restart(tmp_path: Path) -> None:
    wrong = {"wrong.conf": RESTARTS.format("9465")}
    with started(tmp_path, "-m affinityd serve", wrong) as daemon:
        eventually(lambda: daemon.lines, "it has ended")
        time.sleep(1)  # long enough for a restart
        (line,) = daemon.lines
        assert "'9465' is not HOST:PORT" in line


#: Runs the daemon, whose event loop hangs after a signal.
SERVE = """
import signal, sys, time
from affinityd.cli import entry
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))
sys.argv = ["affinityd", "serve", "--root", {machine!r}]
entry()
"""


def test_systemd_kills_a_daemon_that_hangs(tmp_path: Path) -> None:
    assert "\nWatchdogSec=60\n" in UNIT.read_text()
    program = tmp_path / "serve.py"
    program.write_text(SERVE.format(machine=str(tiny_tree(tmp_path / "machine"))))
    soon = {"soon.conf": f"{RESTARTS.format('none')}WatchdogSec=4\n"}
    with started(tmp_path, str(program), soon) as daemon:
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        pid = main_pid(daemon)
        time.sleep(6)  # longer than a daemon may stay silent
        assert pid is not None
        assert main_pid(daemon) == pid
        os.kill(pid, signal.SIGUSR1)
        eventually(lambda: main_pid(daemon) not in {None, pid}, "it is ended")
        eventually(lambda: is_ready(daemon), "it is started again")


def test_a_scan_yields_to_ranks_under_the_unit_too(tmp_path: Path) -> None:
    with started(tmp_path, "-m affinityd serve", {"none.conf": RESTARTS.format("none")}) as daemon:
        eventually(daemon.socket.exists, "it serves")
        (scanning,) = children_of(main_pid(daemon) or 0)
        eventually(lambda: os.getpriority(os.PRIO_PROCESS, scanning) == NICENESS, "it is nice")
