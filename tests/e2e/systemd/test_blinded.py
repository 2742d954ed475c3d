"""What `affinityd doctor` says of a daemon that its unit blinds, by a real systemd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.systemd.unit_manager import needs_manager, started
from tests.support.daemons import Daemon, eventually, is_ready
from tests.support.paths import REPOSITORY

pytestmark = needs_manager

#: A PCI device of this machine as an NPU, and the hierarchy of version 1 that has the cpuset.
MOUNTS = """
device=$(ls -d /sys/bus/pci/devices/* | head -n 1)
echo 0x120000 >"$0/class" && mount --bind "$0/class" "$device/class"
echo 0x19e5 >"$0/vendor" && mount --bind "$0/vendor" "$device/vendor"
mkdir "$0/cpuset"
[ ! -d /sys/fs/cgroup/cpuset ] || mount -t cgroup -o cpuset cpuset "$0/cpuset"
"""

#: argv: a uid, then what doctor takes. Python may lie in root's home: all is imported before.
DOCTOR = """
import os, sys
from affinityd.cli import entry
import affinityd.cli.commands.doctor
uid = int(sys.argv.pop(1))
os.setgroups([]); os.setgid(uid); os.setuid(uid)
entry()
"""
ROOT, ANY_USER = 0, 1234
UNKNOWN = "cannot identify callers"


@contextmanager
def blinded(directives: str) -> Iterator[Daemon]:
    """Run the unit with a few more lines."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        lines = directives.replace("FOLDER", name)
        asked = f"[Service]\nEnvironment=AFFINITYD_LISTEN=none\n{lines}\n"
        with started(folder, "-m affinityd serve", {"asked.conf": asked}, MOUNTS) as daemon:
            eventually(lambda: is_ready(daemon), "the daemon is ready")
            yield daemon


def found(daemon: Daemon, uid: int) -> list[str]:
    """Return what the check of the daemon finds that is not well."""
    command = ["doctor", "--json", "daemon", "--socket", os.fspath(daemon.socket)]
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR, str(uid), *command],
        env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    findings = [it for it in json.loads(done.stdout)["checks"] if it["status"] != "ok"]
    # The daemon alone sees the device as an NPU: node.json differs from the machine here.
    return [f"{it['found']} → {it['remedy']}" for it in findings if "node.json" not in it["found"]]


@pytest.mark.parametrize(
    ("directives", "expected"),
    [
        ("ProtectProc=invisible", []),  # root's group sees through that
        (
            "ProtectProc=ptraceable\nPrivateDevices=yes",
            ["remove ProtectProc= from its unit", "remove PrivateDevices=", UNKNOWN],
        ),
        ("ProcSubset=pid", ["remove ProcSubset=pid"]),
        ("PrivateUsers=yes", ["remove PrivateUsers="]),
        ("InaccessiblePaths=/sys/fs/cgroup FOLDER/cpuset", ["and not its cpuset"]),
    ],
)
def test_what_blinds_the_daemon_is_named_with_its_remedy(
    directives: str, expected: list[str]
) -> None:
    with blinded(directives) as daemon:
        for uid in (ROOT, ANY_USER):
            findings = found(daemon, uid)
            assert len(findings) == len(expected), findings
            assert all(part in text for part, text in zip(expected, findings, strict=True))
