"""A real systemd that runs the unit: a manager of its own, in this machine's pid namespace.

It is what runs a user's units, run as root: it applies a unit's capabilities, system calls and
mounts as the first process of a machine does. It has a cgroup, and a namespace of cgroups, of its
own, or it would take every process of this machine into its care; its /run is a folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemons import PATIENCE, Daemon
from tests.support.paths import REPOSITORY

UNIT = REPOSITORY / "deploy" / "systemd" / "affinityd.service"
SYSTEMD = Path("/lib/systemd/systemd")
#: The second version's hierarchy: the only one, or beside those of the first.
HIERARCHIES = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]

needs_manager = pytest.mark.skipif(
    os.geteuid() != 0 or not SYSTEMD.exists(), reason="only root can run a manager of its own"
)

#: $0: the folder, $1: the cgroup's, $2: what is run. It runs only where /run/systemd/system is.
ENTER = 'echo $$ >"$1/cgroup.procs" && exec unshare --cgroup --mount sh -ec "$2" "$0"'
MANAGE = f"""
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind "$0/run" /run
mkdir -p /run/systemd/system
exec {SYSTEMD} --user --unit={UNIT.name}
"""

#: What a test's unit has otherwise: this checkout and this Python, which may lie in /tmp or a home.
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
    """Start the unit, with this Python and a command in place of its own, by a manager.

    `drop_ins` are by the names of their files. The unit's /run is FOLDER/run; what is yielded may
    be asked if the command is a daemon.
    """
    (folder / "run").mkdir()
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
            manager.terminate()  # it ends its units before itself
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
