"""A job started with nohup, while its owner has a session and afterwards: real ones, real /proc.

They run in a pid namespace of their own, whose first process is the test's story.
"""

from __future__ import annotations

import os

import pytest

from tests.support.child_python import said

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="becomes another user, in a pid namespace"
)

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")

STORY = """
import os, pty, subprocess, sys, time
from affinityd.audit.auditor import Auditor
from affinityd.linux.processes import stat_of
from tests.support.audit_facts import Known
from tests.support.small_node import TOPOLOGY

ALICE = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups")
# Its number comes from below nohup: before that a hangup would still end it.
job = "nohup sh -c 'echo $$ && exec sleep 600 >/dev/null 2>&1'"
shell = ("sh", "-c", f"({job} &); read line")
if sys.argv[1] == "let in by root":
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
in_session, = auditor.scan(TOPOLOGY).processes
login.stdin.close() if here is None else (os.close(there), os.close(here))
login.wait()
left_behind, = auditor.scan(TOPOLOGY).processes
print(in_session.orphan, left_behind.orphan, sep="; ")
"""


@pytest.mark.parametrize("kind", ["let in by root", "with a terminal"])
def test_a_job_with_nohup_is_no_orphan_before_its_owner_has_left(kind: str) -> None:
    why = "its user (uid 54321) has no session, and it is in no job, container or service"
    assert said(STORY, kind, within=NAMESPACE) == f"None; its parent has ended, {why}"
