"""A job started with nohup, while its owner has a session and afterwards: real ones, real /proc.

They run in a pid namespace of their own, whose first process is the test's story.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="becomes another user, in a pid namespace"
)

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")

STORY = """
import json, os, pty, subprocess, sys, time
from affinityd.audit import remedies
from affinityd.audit.auditor import Auditor
from affinityd.linux.processes import stat_of
from tests.support.audit_facts import Known
from tests.support.small_node import TOPOLOGY

ALICE = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups")
kind, job = sys.argv[1:]
# Its number comes from below nohup: before that a hangup would still end it.
shell = ("sh", "-c", f"(nohup sh -c 'echo $$ && exec {job} >/dev/null 2>&1' &); read line")
if kind == "let in by root":
    here, there = None, subprocess.PIPE
    command = ["sh", "-c", '"$@"; :', "sh", *ALICE, *shell]
else:
    here, there = pty.openpty()
    command = [*ALICE, "setsid", "--ctty", *shell]
login = subprocess.Popen(command, stdin=there, stdout=subprocess.PIPE, cwd="/")
pid = int(login.stdout.readline())
while stat_of(pid).parent != 1:
    time.sleep(0.01)
auditor = Auditor(Known(pid))

def look():
    scan = auditor.scan(TOPOLOGY)
    (found,) = scan.processes
    known = remedies.Remedies(TOPOLOGY, scan)
    end = known.end(found) if found.orphan else None
    return {"orphan": found.orphan, "pin": known.of(found).command, "end": str(end)}

told = {"pid": pid, "in session": look()}
login.stdin.close() if here is None else (os.close(there), os.close(here))
login.wait()
told["left behind"] = look()
remedies.IDLE = 0.5
time.sleep(0.6)
told["later"] = look()
print(json.dumps(told))
"""


@pytest.mark.parametrize(
    ("kind", "job", "is_idle"),
    [
        ("let in by root", "sleep 600", True),
        ("with a terminal", 'sh -c "while :; do :; done"', False),
    ],
)
def test_a_job_with_nohup_is_no_orphan_before_its_owner_has_left(
    kind: str, job: str, is_idle: bool
) -> None:
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", STORY, kind, job],
        env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["in session"]["orphan"] is None
    assert "its user (uid 54321) has no session" in told["left behind"]["orphan"]
    for moment in ("in session", "left behind", "later"):
        assert told[moment]["pin"].startswith("affinityd pin --gpus ")
    assert told["left behind"]["end"].startswith("it may still compute: ask its user")
    assert told["later"]["end"].endswith(f"end it: kill {told['pid']}") is is_idle
