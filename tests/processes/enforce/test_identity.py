"""Who a process is, of real ones: what they were started with, and what they wrote over it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from affinityd.enforce.policy.identity import ProcessIdentities
from tests.support.audit_facts import facts_of
from tests.support.children import children_of, program, sleeping

#: Starts a child that writes zeros over what it was started with, as setproctitle does: fields 48
#: to 51 of proc_pid_stat(5) say where that is.
LAUNCHER = """
import ctypes, os, sys
if len(sys.argv) > 1:
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', sys.argv[1]])
else:
    fields = open('/proc/self/stat').read().rpartition(')')[2].split()
    arguments, _, environment, end = map(int, fields[45:49])
    ctypes.memset(arguments, 0, end - arguments)
    print('ready', flush=True)
sys.stdin.read()
"""


def test_a_process_is_identified_by_its_initial_environment_while_it_runs() -> None:
    with sleeping({"TEAM": "vision"}) as child:
        facts = facts_of(child.pid)
        found = ProcessIdentities().of(facts, ("TEAM",))
        assert found.environment == {"TEAM": "vision"}
        assert found.cgroups
        assert all(f":{path}\n" in facts.cgroups for path in found.cgroups)
        assert ProcessIdentities().of(replace(facts, start=facts.start + 1), ()).environment is None
    assert ProcessIdentities().of(facts, ()).environment is None


def test_an_overwritten_environment_is_read_from_the_parent() -> None:
    with program(LAUNCHER, LAUNCHER, env={"TEAM": "vision"}) as launcher:
        (worker,) = children_of(launcher.pid)
        assert set(Path(f"/proc/{worker}/environ").read_bytes()) == {0}
        facts = facts_of(worker)
        assert ProcessIdentities().of(facts, ("TEAM",)).environment == {"TEAM": "vision"}
        elsewhere = replace(facts, cgroups="0::/another/job\n")
        assert ProcessIdentities().of(elsewhere, ("TEAM",)).environment is None
