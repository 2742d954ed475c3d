"""The masks of real processes are set, and what comes of it is what the kernel holds."""

from __future__ import annotations

import time
from dataclasses import replace

from affinityd.audit.model import ProcessFacts
from affinityd.enforce import enforcer
from affinityd.enforce.model import PinOutcome, TargetCpus
from tests.processes.linux.test_pinning import ALL, FAMILY, FIRST, SECOND, masks
from tests.support.audit_facts import facts_of
from tests.support.children import program, sleeping
from tests.support.cpusets import cpuset, needs_cpuset

TO_FIRST = TargetCpus(cpus=FIRST, cpuset=ALL, usual=frozenset({ALL}))


def pin(facts: ProcessFacts, target: TargetCpus = TO_FIRST, seconds: float = 10) -> PinOutcome:
    return enforcer.pin_process(facts, target, time.monotonic() + seconds)


def test_drifted_threads_are_pinned_once_and_threads_pinned_on_purpose_stay() -> None:
    with program(FAMILY, str(max(SECOND))) as child:
        facts = facts_of(child.pid)
        assert pin(facts) == PinOutcome(pinned=2)
        assert masks(child.pid) == [FIRST, SECOND, FIRST]
        assert pin(facts) == PinOutcome()


def test_an_ended_process_or_another_with_its_pid_is_reported_as_gone() -> None:
    with sleeping() as child:
        facts = facts_of(child.pid)
        assert pin(replace(facts, start=facts.start - 1)) == PinOutcome(is_gone=True)
        assert masks(child.pid) == [ALL]
        child.kill()
        child.wait()
        assert pin(facts) == PinOutcome(is_gone=True)


def test_a_mask_that_the_kernel_narrows_is_reported_as_read_back() -> None:
    target = replace(TO_FIRST, cpus=FIRST | {1023})  # which no machine has that runs this
    with sleeping() as child:
        assert pin(facts_of(child.pid), target) == PinOutcome(pinned=1, cut=FIRST)


@needs_cpuset
def test_a_cpuset_rewritten_since_the_scan_is_a_refusal() -> None:
    with cpuset() as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        facts = facts_of(child.pid)
        (folder / "cpuset.cpus").write_text(str(min(SECOND)))
        error = "EINVAL: its cpuset has none of these CPUs"
        usual = replace(TO_FIRST, usual=frozenset({SECOND}))
        assert pin(facts, usual) == PinOutcome(refused=1, error=error)
        assert masks(child.pid) == [SECOND]


def test_after_the_deadline_no_mask_is_set() -> None:
    with sleeping() as child:
        assert pin(facts_of(child.pid), seconds=0) == PinOutcome(is_settled=False, is_late=True)
        assert masks(child.pid) == [ALL]
