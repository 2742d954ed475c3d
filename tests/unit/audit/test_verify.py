"""Judgement: where a process may run and what it holds, against its GPUs, on named machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.audit.judge import Judge
from affinityd.audit.verify import MENTIONED, MOST, Verification, by_plan, with_remedy
from affinityd.cpuset import format_list, parse_list
from affinityd.linux.memory_policy import MemoryPolicy
from affinityd.linux.processes import Thread
from affinityd.machines import NAMES
from affinityd.topology.model import Topology
from tests.support.asking import ask
from tests.support.audit_facts import process
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

GIB = 2**30
TWO = made({0: "0-3", 1: "4-7"}, gpus=[1])
LOST = made({0: "0-3", 1: "4-7"}, gpus=[None])

NEAR = "and GPU 0 is on node 1"
MEND = "affinityd"
NAMED = "(first 101, worker)"


def judged(
    topology: Topology,
    *masks: str,
    gpus: str = "all",
    allowed: str | None = None,
    policy: MemoryPolicy | None = None,
    resident: dict[int, int] | None = None,
    asked: dict[str, str] | None = None,
) -> Verification:
    """Judge a process whose threads have these masks; `allowed` is its cpuset."""
    threads = tuple(
        Thread(100 + place, "python" if place == 0 else "worker", 1, parse_list(mask), 0, 0)
        for place, mask in enumerate(masks)
    )
    cpuset = allowed or format_list(topology.online)
    ranks = ask(topology, gpus=gpus, mode="node", cpuset=cpuset, **(asked or {})).ranks
    first, *beside = dict.fromkeys(rank.gpu.key for rank in ranks)
    facts = process(threads=threads, cpuset=cpuset, gpu=first, beside=tuple(beside))
    found = replace(by_plan(Judge(topology), facts, ranks), policy=policy, resident=resident)
    return with_remedy([found], "")[0]


@pytest.mark.parametrize("name", NAMES)
def test_on_every_shipped_machine_a_plan_is_local_and_no_plan_is_not(name: str) -> None:
    topology = machine(name)
    for gpu in topology.gpus:
        planned = ask(topology, gpus=str(gpu.index), mode="node").cpus
        assert judged(topology, format_list(planned), gpus=str(gpu.index)).mismatches == ()
        whole = judged(topology, format_list(topology.online), gpus=str(gpu.index))
        assert whole.process.placements == ("unpinned",)
        assert len(whole.mismatches) == 1


@pytest.mark.parametrize(
    ("masks", "beginnings"),
    [
        pytest.param(["4-7", "4-7", "6"], [], id="a thread on some of the near CPUs is none"),
        pytest.param(
            ["0-7", "0-7", "4"],
            [f"its main thread and 1 more may run on CPUs 0-7 (unpinned), {NEAR}; {MEND} pin 100"],
            id="nothing was pinned",
        ),
        pytest.param(
            ["4-7", "0-7", "0-7"],
            [f"2 threads {NAMED} may run on CPUs 0-7 (unpinned), {NEAR}; {MEND} pin --force 100"],
            id="taskset without -a: the others differ from the main thread",
        ),
        pytest.param(
            ["0-3"],
            [f"its main thread may run on CPUs 0-3 (remote), {NEAR}; {MEND} pin 100"],
            id="the wrong node",
        ),
        pytest.param(
            ["4-7", "0", "1", "3-4"],
            [
                "1 thread (first 103, worker) may run on CPUs 3-4 (mixed)",
                f"2 threads {NAMED} may run on CPUs 0-1 (remote)",
            ],
            id="threads that pinned themselves far, a line each kind",
        ),
    ],
)
def test_a_thread_that_may_run_far_is_a_mismatch(masks: list[str], beginnings: list[str]) -> None:
    mismatches = judged(TWO, *masks).mismatches
    assert len(mismatches) == len(beginnings)
    for sentence, beginning in zip(mismatches, beginnings, strict=True):
        assert sentence.startswith(beginning)


def test_far_cpus_that_were_asked_for_are_the_allocation_s_fault() -> None:
    (sentence,) = judged(TWO, "2-4", "3", allowed="2-4", asked={"cpus": "3"}).mismatches
    assert sentence.startswith("GPU 0 is on node 1, and its cpuset, 2-4, has only 1 CPU there")
    assert "affinityd pin" not in sentence
    (sentence,) = judged(TWO, "1-4", allowed="1-4", asked={"cpus": "2"}).mismatches
    assert "affinityd pin" in sentence  # it may run on more than it asked for


def test_where_the_cpuset_has_no_near_cpu_the_allocation_is_the_cause() -> None:
    (sentence,) = judged(TWO, "0-3", "0", allowed="0-3").mismatches
    assert sentence.startswith("GPU 0 is on node 1, and its cpuset, 0-3, has no CPU there")
    assert "affinityd pin" not in sentence


def test_where_the_cpuset_has_one_near_cpu_the_mask_is_the_cause() -> None:
    (sentence,) = judged(TWO, "0-3", allowed="0-4").mismatches
    assert "affinityd pin 100 mends" in sentence


def test_an_unknown_place_is_noted_and_no_mismatch() -> None:
    finding = judged(made({0: "0-3", 1: "4-7"}, gpus=[None, None]), "0-7", "0")
    assert finding.process.placements == ("unknown", "unknown")
    assert finding.mismatches == ()
    assert finding.notes == ("GPUs 0-1 are on an unknown node: it cannot be judged",)


@pytest.mark.parametrize(
    ("topology", "policy", "is_mismatch"),
    [
        pytest.param(TWO, None, False, id="one that cannot be read"),
        pytest.param(TWO, MemoryPolicy("default", frozenset()), False, id="the kernel's own"),
        pytest.param(TWO, MemoryPolicy("local", frozenset()), False, id="local"),
        pytest.param(
            TWO, MemoryPolicy("bind", frozenset({1})), False, id="bound to the GPU's node"
        ),
        pytest.param(TWO, MemoryPolicy("bind", frozenset({0})), True, id="bound to another"),
        pytest.param(
            TWO, MemoryPolicy("preferred", frozenset({0})), True, id="another one is preferred"
        ),
        pytest.param(
            TWO, MemoryPolicy("interleave", frozenset({0, 1})), False, id="interleaved over both"
        ),
        pytest.param(
            LOST,
            MemoryPolicy("bind", frozenset({0})),
            False,
            id="of an unknown GPU nothing is far",
        ),
        pytest.param(
            made({0: "0-3", 1: "4-7"}, [1], memoryless=[1]),
            MemoryPolicy("bind", frozenset({0})),
            False,
            id="the near node has no memory, and this one is next to it",
        ),
        pytest.param(
            made({0: "0-3", 1: "4-7", 2: ""}, [1]),
            MemoryPolicy("bind", frozenset({2})),
            False,
            id="a node without CPUs: a GPU's memory, or an expansion",
        ),
        pytest.param(
            made({0: "0-3", 1: ""}, [0]),
            MemoryPolicy("bind", frozenset({1})),
            False,
            id="with CPUs in one node only nothing is far",
        ),
    ],
)
def test_a_policy_without_any_near_node_is_a_mismatch(
    topology: Topology, policy: MemoryPolicy | None, is_mismatch: bool
) -> None:
    mismatches = judged(topology, "4-7", policy=policy).mismatches
    mask_s = judged(topology, "4-7").mismatches
    assert len(mismatches) - len(mask_s) == int(is_mismatch)
    if is_mismatch:
        assert mismatches[0] == (
            f"its memory policy is {policy}, {NEAR}; "
            "start it with affinityd exec --memory preferred"
        )


def test_a_policy_on_the_node_that_was_planned_is_none_where_the_cpuset_has_no_near_cpu() -> None:
    policy = MemoryPolicy("bind", frozenset({0}))
    assert len(judged(TWO, "0-3", allowed="0-3", policy=policy).mismatches) == 1


@pytest.mark.parametrize(
    ("far", "mismatches", "notes"),
    [(0, 0, 0), (MENTIONED - 0.01, 0, 0), (MENTIONED, 0, 1), (MOST - 0.01, 0, 1), (MOST, 1, 0)],
)
def test_resident_memory_that_is_far_is_noted_and_most_of_it_is_a_mismatch(
    far: float, mismatches: int, notes: int
) -> None:
    resident = {0: int(far * 100) * GIB, 1: (100 - int(far * 100)) * GIB}
    finding = judged(TWO, "4-7", resident=resident)
    assert (len(finding.mismatches), len(finding.notes)) == (mismatches, notes)
    for sentence in (*finding.mismatches, *finding.notes):
        assert sentence == (
            f"{far:.0%} of its resident memory is on node 0, {NEAR}; migratepages 100 0 1 moves it"
        )


@pytest.mark.parametrize(
    ("topology", "resident"),
    [
        pytest.param(TWO, {}, id="there is none"),
        pytest.param(TWO, {0: 0, 1: 0}, id="none of it is resident"),
        pytest.param(made({0: "0-3", 1: "4-7", 2: ""}, [1]), {1: 1, 2: 99}, id="in a GPU's memory"),
        pytest.param(made({0: "0-3", 1: ""}, [0]), {1: 99}, id="CPUs are in one node only"),
        pytest.param(LOST, {0: 99}, id="nobody knows where it is far"),
    ],
)
def test_resident_memory_is_not_far_where(topology: Topology, resident: dict[int, int]) -> None:
    finding = judged(topology, "4-7", resident=resident)
    assert not [text for text in (*finding.mismatches, *finding.notes) if "resident" in text]


def test_a_gpu_that_two_ranks_share_is_named_once() -> None:
    assert str(judged(TWO, "4-7", gpus="0,0").near) == "GPU 0 is on node 1"


def test_a_process_that_is_near_has_no_mismatch_and_no_note() -> None:
    finding = judged(
        machine("dgx-a100"),
        *3 * ["48-63,176-191"],
        gpus="0,1",
        policy=MemoryPolicy("preferred", frozenset({3})),
        resident={3: 10 * GIB, 0: 1 * GIB},
    )
    assert finding.process.placements == ("local", "local", "local")
    assert (finding.mismatches, finding.notes) == ((), ())
    assert str(finding.near) == "GPUs 0-1 are on node 3"
