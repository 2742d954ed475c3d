"""The masks of real processes are set; who these are, and which privileges that takes."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.model import ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.enforce import enforcer
from affinityd.enforce.enforcer import (
    CALL_REFUSED,
    NO_SYS_NICE,
    NOT_ALL_PIDS,
    NOT_ALL_USERS,
    lacking,
)
from affinityd.enforce.model import TargetCpus
from affinityd.enforce.policy.identity import ProcessIdentities
from affinityd.linux.pinning import PinResult
from tests.processes.linux.test_pinning import ALL, FAMILY, FIRST, SECOND, masks
from tests.support.audit_facts import facts_of
from tests.support.child_python import SECCOMP, said
from tests.support.children import children_of, program, sleeping

TO_FIRST = TargetCpus(cpus=FIRST, cpuset=ALL, usual=frozenset({ALL}))


def pin(facts: ProcessFacts, target: TargetCpus = TO_FIRST, seconds: float = 10) -> PinResult:
    return enforcer.pin_process(facts, target, time.monotonic() + seconds)


def was_set(result: PinResult) -> list[CpuSet]:
    return [thread.held for thread in result.threads if thread.was_set]


def test_drifted_threads_are_pinned_once_and_threads_pinned_on_purpose_stay() -> None:
    with program(FAMILY, str(max(SECOND))) as child:
        facts = facts_of(child.pid)
        assert was_set(pin(facts)) == [FIRST, FIRST]
        assert masks(child.pid) == [FIRST, SECOND, FIRST]
        again = pin(facts)
        assert (was_set(again), again.is_settled, again.is_gone) == ([], True, False)


def test_an_ended_process_or_another_with_its_pid_is_reported_as_gone() -> None:
    with sleeping() as child:
        facts = facts_of(child.pid)
        assert pin(replace(facts, start=facts.start - 1)).is_gone
        assert masks(child.pid) == [ALL]
        child.kill()
        child.wait()
        assert pin(facts).is_gone


def test_a_mask_is_reported_as_read_back_and_after_the_deadline_none_is_set() -> None:
    target = replace(TO_FIRST, cpus=FIRST | {1023})  # which no machine has that runs this
    with sleeping() as child:
        facts = facts_of(child.pid)
        late = pin(facts, seconds=0)
        assert (was_set(late), late.is_settled, late.is_late) == ([], False, True)
        assert masks(child.pid) == [ALL]
        assert was_set(pin(facts, target)) == [FIRST]


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


EPERM = "EPERM: Operation not permitted"
ASK = "from affinityd.enforce.enforcer import lacking; print(lacking())"

needs_freedom = pytest.mark.skipif(
    lacking() is not None, reason="this process may not pin others itself"
)


@needs_freedom
@pytest.mark.parametrize(
    ("before", "within", "expected"),
    [
        ("", (), "None"),
        ("", ("setpriv", "--bounding-set=-all,+sys_nice"), "None"),
        ("", ("setpriv", "--bounding-set=-sys_nice"), NO_SYS_NICE),
        ("", ("setpriv", "--reuid=65534"), NO_SYS_NICE),
        ("", ("unshare", "--pid", "--fork", "--mount-proc"), NOT_ALL_PIDS),
        ("", ("unshare", "--user", "--map-root-user"), NOT_ALL_USERS),
        (f'{SECCOMP}\nrefuse("sched_setaffinity")', (), CALL_REFUSED.format(error=EPERM)),
    ],
    ids=["root", "one capability", "all but that", "user", "own pids", "own users", "filter"],
)
def test_a_confined_process_lacks_the_privileges(
    before: str, within: tuple[str, ...], expected: str
) -> None:
    if within and subprocess.run([*within, "true"], check=False).returncode != 0:
        pytest.skip(f"{within[0]} is refused here")
    assert said(f"{before}\n{ASK}", within=within) == expected
