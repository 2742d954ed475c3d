"""Judgment of a process's threads and memory by the places of its GPUs."""

from dataclasses import replace

import pytest

from affinityd.audit.judge import Judge
from affinityd.audit.memory import LEAST, MENTIONED, MOST, HostMemory
from affinityd.audit.verify import Verification, by_plan, with_remedy
from affinityd.cpuset import format_list, parse_list
from affinityd.linux.memory_policy import MemoryPolicy
from affinityd.linux.processes import Thread
from affinityd.linux.resident import ANONYMOUS, ResidentMemory
from affinityd.topology.model import Topology
from tests.support.asking import ask
from tests.support.audit_facts import process
from tests.support.machines.by_hand import made

GIB = 2**30
TWO = made({0: "0-3", 1: "4-7"}, gpus=[1])
LOST = made({0: "0-3", 1: "4-7"}, gpus=[None, None])

IS_ON = "GPU 0 is on node 1"
MIXED = "1 thread (first 103, worker) may run on CPUs 3-4 (mixed)"
THREADS = "(first 101, worker) may run on CPUs"


def judged(
    topology: Topology,
    *masks: str,
    gpus: str = "all",
    allowed: str | None = None,
    policy: MemoryPolicy | None = None,
    memory: HostMemory | None = None,
    asked: str | None = None,
) -> Verification:
    """Judge a process whose threads have these masks; `allowed` is its cpuset."""
    threads = tuple(
        Thread(100 + place, "python" if place == 0 else "worker", 1, parse_list(mask), 0, 0)
        for place, mask in enumerate(masks)
    )
    cpuset = allowed or format_list(topology.online)
    cpus = {"cpus": asked} if asked else {}
    ranks = ask(topology, gpus=gpus, mode="node", cpuset=cpuset, **cpus).ranks
    first, *beside = dict.fromkeys(rank.gpu.key for rank in ranks)
    facts = process(threads=threads, cpuset=cpuset, gpu=first, beside=tuple(beside))
    found = replace(by_plan(Judge(topology), facts, ranks), policy=policy, memory=memory)
    return with_remedy([found], "")[0]


MAIN = "its main thread"


@pytest.mark.parametrize(
    ("masks", "far", "pin"),
    [
        (["4-7", "4-7", "6"], [], ""),
        (["0-7", "0-7", "4"], [f"{MAIN} and 1 more may run on CPUs 0-7 (unpinned)"], "pin"),
        (["4-7", "0-7", "0-7"], [f"2 threads {THREADS} 0-7 (unpinned)"], "pin"),
        (["0-3"], [f"{MAIN} may run on CPUs 0-3 (remote)"], "pin"),
        (["4-7", "0", "1", "3-4"], [MIXED, f"2 threads {THREADS} 0-1 (remote)"], "pin --force"),
    ],
)
def test_a_thread_that_may_be_far_is_a_mismatch(masks: list[str], far: list[str], pin: str) -> None:
    said = [f"{it}, and {IS_ON}; affinityd {pin} 100 fixes that" for it in far]
    assert list(judged(TWO, *masks).mismatches) == said


@pytest.mark.parametrize(
    ("masks", "cpuset", "asked", "few"),
    [
        (["2-4", "3"], "2-4", "3", "only 1 CPU"),  # it asked for the far CPUs
        (["0-3", "0"], "0-3", None, "no CPU"),
        (["1-4"], "1-4", "2", None),  # it may run on more CPUs than it asked for
        (["2-3"], "2-4", "3", None),  # it may run only on far CPUs
    ],
)
def test_the_cause_is_the_allocation_if_no_pin_helps(
    masks: list[str], cpuset: str, asked: str | None, few: str | None
) -> None:
    (sentence,) = judged(TWO, *masks, allowed=cpuset, asked=asked).mismatches
    why = f"{IS_ON}, and its cpuset, {cpuset}, has {few} there: no pin fixes that; an allocation "
    assert sentence.startswith(why) is (few is not None)
    assert ("affinityd pin 100 fixes that" in sentence) is (few is None)


def test_gpus_of_unknown_place_cause_a_note_and_no_mismatch() -> None:
    finding = judged(LOST, "0-7", "0")
    assert [it.placement for it in finding.process.threads] == ["unknown"] * 2
    assert finding.mismatches == ()
    assert tuple(finding.notes) == ("GPUs 0-1 are on an unknown node: it cannot be judged",)


@pytest.mark.parametrize(
    ("mode", "nodes", "is_far"),
    [
        ("default", set(), False),
        ("bind", {1}, False),
        ("bind", {0}, True),
        ("preferred", {0}, True),
        ("interleave", {0, 1}, False),
    ],
)
def test_a_policy_of_far_nodes_is_a_mismatch(mode: str, nodes: set[int], is_far: bool) -> None:
    policy = MemoryPolicy(mode, frozenset(nodes))
    said = f"its memory policy is {policy}, and {IS_ON}; start it with affinityd exec --memory"
    here = judged(TWO, "4-7", policy=policy).mismatches
    assert [it.rpartition(" ")[0] for it in here] == [said] * is_far
    planned = judged(TWO, "0-3", allowed="0-3", policy=MemoryPolicy("bind", frozenset({0})))
    assert "policy" not in str(planned.mismatches)  # its cpuset has no near CPU


@pytest.mark.parametrize(
    ("far", "size", "mismatches", "notes"),
    [
        (0, 100 * GIB, 0, 0),
        (MENTIONED - 0.01, 100 * GIB, 0, 0),
        (MENTIONED, 100 * GIB, 0, 1),
        (MOST - 0.01, 100 * GIB, 0, 1),
        (MOST, 100 * GIB, 1, 0),
        (MOST, 2 * LEAST - 2, 0, 0),  # a small amount
    ],
)
def test_far_memory_is_reported(far: float, size: int, mismatches: int, notes: int) -> None:
    pages = int(far * 1000)
    resident = ResidentMemory(
        {ANONYMOUS: size}, {(ANONYMOUS, 0): pages, (ANONYMOUS, 1): 1000 - pages}
    )
    memory = HostMemory(resident, frozenset({1}), frozenset({0}), "local")
    finding = judged(TWO, "4-7", memory=memory)
    remedy = memory.remedy(100)
    said = (f"{memory}, and {IS_ON}; late: {remedy}",)
    assert (finding.mismatches, tuple(finding.notes)) == (said * mismatches, said * notes)
