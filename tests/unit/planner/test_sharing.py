"""Whether the requested GPUs divide the cores, or all GPUs of the node do."""

from dataclasses import replace

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from affinityd.cpuset import format_list
from affinityd.planner.modes import MODES
from affinityd.request.resolve import Reply
from affinityd.topology.model import Topology, cpus_of
from tests.support.asking import ask, codes, cpulists, lists, try_to_ask
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.strategies import (
    SHARING,
    Question,
    machines,
    options,
    questions,
    subsets,
)
from tests.support.tables import cases, words

NODES = {
    # Five cores and two GPUs on node 0, five cores and one GPU on node 1.
    "uneven": made({0: "0-4", 1: "5-9"}, gpus=[0, 0, 1]),
    "even": made({0: "0-4", 1: "5-9"}, gpus=[0, 1, 1]),
    "pair": made({0: "0-7"}, gpus=[0, 0]),
    # Node 1 is near to no GPU: its cores are partners of node 0's two cores.
    "partners": made({0: "0-1", 1: "2-5"}, gpus=[0, 0]),
    "none": made({0: "0-1", 1: "2-5"}, gpus=[0, 1]),
    "unknown": made({0: "0-3", 1: "4-7"}, gpus=[None, 0, None]),
    "wide": made({0: "0-3", 1: "4-7"}, gpus=[0, 0]),
    "four": made({0: "0-3", 1: "4-7"}, gpus=[0, 0, 1, 1]),
    "short": made({0: "0", 1: "1-8", 2: "9-14"}, gpus=[0, 0, 1, 2, 2]),
    "three": made({0: "0-3", 1: "4-7"}, gpus=[0, 0, 1]),
    # Caches of two cores.
    "caches": made({0: "0-7", 1: "8-11"}, gpus=[0, 0, 1], cores_per_llc=2),
    "few": made({0: "0-3"}, gpus=[0, 0, 0], cores_per_llc=2),
    # A balanced block is one core; GPU 1's block is not in the cpuset of CPUs 2 and 4.
    "unlike": made({0: "0-4", 1: "5-6"}, gpus=[0, 0, 1, 1]),
}


def node(name: str) -> Topology:
    return NODES[name] if name in NODES else machine(name)


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        ("", "node"),
        ("cpuset=1-79", "requested"),
        ("share=node cpuset=1-79", "node"),
        *((f"mode={mode}", "node") for mode in ("unique_interleaved", "single_unique")),
        ("mode=exclusive", "node"),
        ("mode=node", "requested"),
        *((f"mode={mode} share=node", "requested") for mode in ("all", "even")),
        *(("mode=core_complex share=node", "node"), ("mode=core_complex", "node")),
        # Ranks on one GPU divide all caches.
        ("mode=core_complex gpus=0,0", "requested"),
        # The caller's mask may lack reserved CPUs, but no other CPUs.
        ("mask=0-79", "node"),
        ("mask=2-79 reserved=0-2", "node"),
        ("mask=2-79 reserved=0", "requested"),
    ],
)
def test_share_auto_is_decided_by_mode_and_cpuset(asked: str, share: str) -> None:
    assert ask(machine("dgx-1v"), **words(f"gpus=0 {asked}")).plan.share == share


@pytest.mark.parametrize(("name", "asked", "expected"), cases("plans/blocks.tsv"))
def test_each_gpu_has_a_block_of_its_node(name: str, asked: str, expected: str) -> None:
    reply = ask(node(name), **words(f"share=node {asked}"))
    assert " ".join(cpulists(reply)) == expected
    assert "share_unavailable" not in codes(reply)


@pytest.mark.parametrize(
    "asked", ["gpus=1 cpuset=2,4-7", "gpus=0,2 cpuset=2,4-7", "gpus=0,1 cpuset=4-7"]
)
def test_only_requested_gpus_divide_cores_if_gpus_outnumber_cores(asked: str) -> None:
    how = f"mode=unique_interleaved balanced=false {asked}"
    reply = ask(NODES["three"], **words(f"share=node {how}"))
    assert reply.plan.share == "requested"
    assert "share_unavailable" in codes(reply)
    assert " ".join(cpulists(reply)) == lists(NODES["three"], f"share=requested {how}")


def test_share_auto_warns_only_if_the_machine_has_fewer_cores_than_gpus() -> None:
    reply = ask(made({0: "0-1"}, gpus=[0, 0, 0]), gpus="0,1")
    assert (cpulists(reply), reply.plan.share) == (["0", "1"], "requested")
    assert codes(reply) == ["share_unavailable"]
    assert codes(ask(made({0: "0-3"}, gpus=[0, 0, 0]), gpus="0", cpuset="0-1")) == []


@given(questions(), st.data())
def test_a_rank_with_only_slow_cores_is_warned_if_faster_ones_are_allowed(
    question: Question, data: st.DataObject
) -> None:
    slow = data.draw(st.frozensets(st.sampled_from(question.topology.cores)))
    cores = tuple(core._replace(is_slow=core in slow) for core in question.topology.cores)
    reply = replace(question, topology=replace(question.topology, cores=cores)).try_to_ask()
    if isinstance(reply, Reply):
        cpus = cpus_of(slow)
        expected = {rank.rank for rank in reply.ranks if rank.cpus <= cpus and reply.allowed - cpus}
        warned = {each.rank for each in reply.warnings if each.code == "slow_cores"}
        assert warned == expected


# Two jobs that do not know of each other.


Jobs = tuple[Question, Question]


@given(machines(), options(("unique_interleaved", "single_unique", "exclusive")))
def test_a_plan_of_all_gpus_is_the_same_with_and_without_blocks(
    topology: Topology, chosen: dict[str, str]
) -> None:
    """Therefore a plan of a whole machine equals gpu_affinity's plan."""
    assume(len({gpu.vendor for gpu in topology.gpus}) == 1)
    in_blocks = try_to_ask(topology, **{**chosen, "share": "node"})
    assume(isinstance(in_blocks, Reply) and in_blocks.plan.share == "node")
    assert isinstance(in_blocks, Reply)
    assert cpulists(in_blocks) == cpulists(ask(topology, **{**chosen, "share": "requested"}))


@st.composite
def two_jobs(draw: st.DrawFn) -> Jobs:
    """Return requests for different GPUs of a machine; their modes divide its cores alike."""
    topology = draw(machines().filter(lambda it: len(it.gpus) > 1))
    reserved = draw(st.frozensets(st.sampled_from(sorted(topology.online)), max_size=3))
    order = list(map(str, draw(st.permutations(range(len(topology.gpus))))))
    cut = draw(st.sampled_from([MODES[mode].cut for mode in SHARING]))
    modes = tuple(mode for mode in SHARING if MODES[mode].cut == cut)
    first = draw(st.integers(1, len(order) - 1))
    one, other = (
        Question(topology, reserved, {**draw(options(modes)), "gpus": ",".join(gpus)})
        for gpus in (order[:first], order[first:])
    )
    return one, other


def assert_disjoint_unless_warned(one: Reply, other: Reply) -> None:
    if "share_unavailable" in {*codes(one), *codes(other)}:
        event("share_unavailable")
    else:
        assert one.plan.share == other.plan.share == "node"
        assert not one.cpus & other.cpus


@given(two_jobs(), st.data())
def test_jobs_with_equal_cpusets_have_disjoint_cpus(jobs: Jobs, data: st.DataObject) -> None:
    one, other = jobs
    cpus = data.draw(subsets(one.whole or one.topology.online))
    within = {"share": "node", "cpuset": format_list(cpus)}
    assert_disjoint_unless_warned(one.answered(**within), other.answered(**within))
    assert_disjoint_unless_warned(one.answered(share="node"), other.answered(share="auto"))


@given(two_jobs(), st.data())
def test_jobs_with_disjoint_cpusets_have_disjoint_cpus(jobs: Jobs, data: st.DataObject) -> None:
    online = jobs[0].topology.online
    cpus = data.draw(subsets(online).filter(lambda cpus: cpus != online))
    halves = (format_list(cpus), format_list(online - cpus))
    replies = [job.try_to_ask(cpuset=half) for job, half in zip(jobs, halves, strict=True)]
    cpu_sets = [reply.cpus for reply in replies if isinstance(reply, Reply)]
    event(f"{len(cpu_sets)} of the jobs have CPUs")
    assert len(frozenset().union(*cpu_sets)) == sum(map(len, cpu_sets))


@given(questions((*SHARING, "core_complex")))
def test_a_gpu_s_block_does_not_depend_on_the_other_requested_gpus(question: Question) -> None:
    every = question.answered(gpus="all", share="node", balanced="false")
    assume(every.plan.share == "node")
    for rank in every.ranks:
        alone = question.ask(gpus=str(rank.gpu.index), share="node", balanced="false")
        assert [one.cpus for one in alone.ranks] == [rank.cpus]
