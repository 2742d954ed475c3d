"""Judgement of processes that use GPUs, as tables and as properties."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.audit.judge import Judge, is_known_daemon
from affinityd.audit.model import Membership, ProcessFacts
from affinityd.audit.remedies import Remedies
from affinityd.cpuset import format_list, parse_list
from affinityd.topology.model import Topology
from affinityd.topology.nearness import PLACEMENTS, placement, vicinity
from tests.support.audit_facts import GPU, KUBERNETES_POD, SLURM_JOB, process, scan_of
from tests.support.machines.by_hand import made
from tests.support.machines.facts import ALL_NAMES, machine
from tests.support.machines.strategies import machines

TWO = made({0: "0-3", 1: "4-7"}, gpus=[1], threads=2, siblings="adjacent")
FOUR = machine("mi250x")  # GPU 0 is on node 3, CPUs 48-63 and 112-127: core 48 is 48 and 112
ON_FOUR = ("amd", 0)
LOST = made({0: "0-3", 1: "4-7"}, gpus=[None])
ONE = made({0: "0-7"}, gpus=[0])


@pytest.mark.parametrize(
    ("masks", "placement", "itself"),
    [
        pytest.param(["4-7", "4-7"], "local", [], id="all near"),
        pytest.param(["0-3", "0-3"], "remote", [], id="all far"),
        pytest.param(["3-4", "3-4"], "mixed", [], id="each on both sides"),
        pytest.param(["0-7", "0-7"], "unpinned", [], id="none is pinned"),
        pytest.param(["4-7", "0-7"], "unpinned", [], id="taskset without -a: one is pinned"),
        pytest.param(["4-7", "0-3"], "mixed", [], id="a thread far, by a mask of its own"),
        pytest.param(["0-3", "2-5"], "mixed", [], id="far and mixed"),
        pytest.param(["4-7", "5-6"], "local", [1], id="a library took a part, near"),
        pytest.param(["0-7", "0-3"], "unpinned", [1], id="and far, where nothing is pinned"),
        pytest.param(["4-7", "2-3"], "local", [1], id="NCCL took a core elsewhere"),
        pytest.param(["4-7", "1"], "local", [1], id="or a CPU"),
        pytest.param(["4", "5", "6-7"], "local", [1, 2], id="OpenMP has a core for each thread"),
        pytest.param(
            ["4", "6", "0-7"], "unpinned", [1], id="and the threads from before it are judged"
        ),
        pytest.param(["4-7", "1-2"], "mixed", [], id="two CPUs of two cores are no library's"),
    ],
)
def test_a_process_is_where_those_of_its_threads_are_that_no_library_pinned(
    masks: list[str], placement: str, itself: list[int]
) -> None:
    judged = Judge(TWO).judge(process(*masks))
    assert judged.placement == placement
    assert [at for at, own in enumerate(judged.pinned_itself) if own] == itself


@pytest.mark.parametrize(
    ("mask", "placement"),
    [
        pytest.param("48-63,112-127", "local", id="the GPU's node, both threads of each core"),
        pytest.param("48,112", "local", id="one core of it"),
        pytest.param("48-63,112-126", "local", id="all of it but a CPU"),
        pytest.param("32-63,96-127", "mixed", id="its own node and the next"),
        pytest.param("0-47,64-111", "remote", id="the three other nodes"),
        pytest.param("0-127", "unpinned", id="the machine"),
        pytest.param("0-126", "mixed", id="the machine but a CPU"),
    ],
)
def test_on_a_machine_of_four_nodes_near_is_one_of_them(mask: str, placement: str) -> None:
    assert Judge(FOUR).judge(process(mask, gpu=ON_FOUR)).placement == placement


def test_every_thread_has_the_placement_of_its_own_mask() -> None:
    judged = Judge(TWO).judge(process("4-7", "0", "0-7", "3-4"))
    assert judged.placements == ("local", "remote", "unpinned", "mixed")


@pytest.mark.parametrize(
    ("mask", "cpuset", "cause"),
    [
        pytest.param("4-7", "0-7", None, id="none: it is near"),
        pytest.param("0-3", "0-3", "allocation", id="its cpuset has no near CPU"),
        pytest.param("0", "0-3", "allocation", id="whatever part of that its mask is"),
        pytest.param("0-3", "0-4", "mask", id="its cpuset has one, and its mask has none"),
        pytest.param("0-4", "0-4", "mask", id="its mask is all that it may use, on both sides"),
        pytest.param("0-3", None, "mask", id="nobody knows its cpuset"),
        pytest.param("0-7", "0-7", "unpinned", id="it may run everywhere"),
        pytest.param("0-7", None, "unpinned", id="everywhere, and nobody knows its cpuset"),
    ],
)
def test_the_cause_is_who_keeps_it_from_its_gpu(
    mask: str, cpuset: str | None, cause: str | None
) -> None:
    judged = Judge(TWO).judge(process(mask, cpuset=cpuset))
    assert judged.cause == cause


THREE = made({0: "0-3", 1: "4-7", 2: "8-11"}, gpus=[1, 2, 1])
SECOND = ("nvidia", 1)


@pytest.mark.parametrize(
    ("mask", "cpuset", "placement", "cause"),
    [
        pytest.param("4-11", "0-11", "local", None, id="both nodes"),
        pytest.param("4-7", "0-11", "local", None, id="one of the two"),
        pytest.param("8", "0-11", "local", None, id="a CPU of the other"),
        pytest.param("6-9", "0-11", "local", None, id="some of each"),
        pytest.param("0-3", "0-11", "remote", "mask", id="far from both"),
        pytest.param("0-3", "0-8", "remote", "mask", id="though its cpuset is near one of them"),
        pytest.param("0-3", "0-3", "remote", "allocation", id="and its cpuset far from both"),
        pytest.param("0-7", "0-11", "mixed", "mask", id="near one, and far from both"),
        pytest.param("0-11", "0-11", "unpinned", "unpinned", id="nobody pinned it"),
    ],
)
@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(process(beside=(SECOND,)), id="it holds both"),
        pytest.param(process(gpu=SECOND, beside=(GPU,)), id="the other first"),
        pytest.param(process(beside=(SECOND,), holder=50), id="it works for who holds both"),
    ],
)
def test_near_several_gpus_is_what_is_near_any_of_them(
    facts: ProcessFacts, mask: str, cpuset: str, placement: str, cause: str | None
) -> None:
    facts = replace(facts, threads=process(mask).threads, cpuset=parse_list(cpuset))
    judged = Judge(THREE).judge(facts)
    assert (judged.placement, judged.cause) == (placement, cause)
    assert judged.near == parse_list("4-11")


def test_whose_gpus_are_on_all_nodes_is_local_anywhere() -> None:
    judged = Judge(made({0: "0-3", 1: "4-7"}, gpus=[0, 1])).judge(process("3", beside=(SECOND,)))
    assert (judged.placement, judged.near) == ("local", parse_list("0-7"))


@pytest.mark.parametrize("mask", ["0-3", "4-7", "0-7"])
def test_who_works_on_one_gpu_whose_place_nobody_knows_is_not_judged_by_the_others(
    mask: str,
) -> None:
    half_known = made({0: "0-3", 1: "4-7"}, gpus=[1, None])
    judged = Judge(half_known).judge(process(mask, beside=(SECOND,), cpuset="0-3"))
    assert (judged.placement, judged.cause, judged.near) == ("unknown", None, None)


@pytest.mark.parametrize("masks", [["0"], ["0-7"], ["0-3", "4", "2-5"]])
def test_on_a_machine_of_one_node_all_is_local(masks: list[str]) -> None:
    judged = Judge(ONE).judge(process(*masks, cpuset="0-7"))
    assert (judged.placement, judged.cause) == ("local", None)


@pytest.mark.parametrize("masks", [["0"], ["0-7"], ["0-3", "4", "2-5"]])
def test_of_a_gpu_whose_place_nobody_knows_nothing_is_known(masks: list[str]) -> None:
    judge = Judge(LOST)
    judged = judge.judge(process(*masks, cpuset="0-3"))
    assert (judged.placement, judged.cause) == ("unknown", None)
    assert judged.near is None
    assert judge.near == {("nvidia", 0): None}


def test_a_main_thread_that_has_ended_is_not_judged_and_the_others_are() -> None:
    judge = Judge(TWO)
    assert judge.judge(process("0-3", "4-7", state="Z")).placement == "local"
    assert judge.judge(process("0-3", state="Z")).placement == "unknown"


def test_what_is_not_there_is_unknown() -> None:
    assert Judge(TWO).judge(process(state="X")).placement == "unknown"


@pytest.mark.parametrize(
    ("name", "uid", "membership", "is_known"),
    [
        pytest.param("nv-hostengine", 0, Membership(), True, id="DCGM"),
        pytest.param("nvidia-persiste", 999, Membership(), True, id="the kernel keeps 15 letters"),
        pytest.param("dcgm-exporter", 0, KUBERNETES_POD, True, id="an exporter in a pod"),
        pytest.param("dcgm-exporter", 0, SLURM_JOB, False, id="a name that a job has chosen"),
        pytest.param("nv-hostengine", 1000, Membership(), False, id="or a user"),
        pytest.param("nv-hostengine", None, Membership(), False, id="or nobody knows who"),
        pytest.param("python3", 0, Membership(), False, id="a program"),
    ],
)
def test_known_daemons_are_known_by_their_names(
    name: str, uid: int | None, membership: Membership, is_known: bool
) -> None:
    facts = process("0-7", name=name, uid=uid, membership=membership)
    assert is_known_daemon(facts) is is_known


def test_a_known_daemon_is_judged_and_is_no_mismatch() -> None:
    judged = Judge(TWO).judge(process("0-7", name="nv-hostengine", uid=0))
    assert (judged.is_daemon, judged.placement, judged.cause) == (True, "unpinned", "unpinned")
    assert not judged.is_mismatch


def test_what_a_known_daemon_starts_is_a_part_of_it() -> None:
    helper = process("0-7", name="sh", holds=False)
    assert Judge(TWO).judge(helper, of_daemon=True).is_daemon
    assert not Judge(TWO).judge(helper).is_daemon


@st.composite
def running(draw: st.DrawFn) -> tuple[Topology, ProcessFacts]:
    """Return a machine, and a process on it with any masks and any cpuset."""
    topology = draw(machines())
    cpus = sorted(topology.online)
    mask = st.sets(st.sampled_from(cpus), min_size=1).map(format_list)
    masks = draw(st.lists(mask | st.just(format_list(cpus)), min_size=1, max_size=5))
    cpuset = draw(st.none() | mask)
    first, *beside = draw(
        st.lists(st.sampled_from([gpu.key for gpu in topology.gpus]), min_size=1, unique=True)
    )
    return topology, process(*masks, gpu=first, cpuset=cpuset, beside=tuple(beside))


@given(running())
def test_a_judgement_agrees_with_the_masks_that_count(
    known: tuple[Topology, ProcessFacts],
) -> None:
    topology, facts = known
    judged = Judge(topology).judge(facts)
    gpus = [it for it in topology.gpus if it.key in facts.gpus]
    lost = [gpu for gpu in gpus if gpu.numa_node is None]
    near = vicinity(topology, lost or gpus)
    counted = [
        thread.mask
        for thread, itself in zip(facts.threads, judged.pinned_itself, strict=True)
        if not itself
    ]
    places = {placement(topology, near, mask) for mask in counted}
    assert facts.threads[0].mask in counted
    assert judged.placement in PLACEMENTS
    assert (judged.placement == "local") == (places == {"local"})
    assert (judged.placement == "remote") == (places == {"remote"})
    assert (judged.placement == "unpinned") == ("unpinned" in places)
    assert (judged.placement == "unknown") == (not near.nodes)
    assert (judged.cause is None) == (judged.placement in {"local", "unknown"})
    remedy = Remedies(topology, scan_of(topology, judged)).of(judged)
    assert (remedy is None) == (judged.cause is None)
    if judged.cause == "allocation":
        assert facts.cpuset is not None
        assert facts.cpuset.isdisjoint(near.cpus)


@given(running(), st.randoms(use_true_random=False))
def test_a_thread_that_a_library_pinned_changes_nothing(
    known: tuple[Topology, ProcessFacts], chance: Random
) -> None:
    topology, facts = known
    main = facts.threads[0]
    cpu = chance.choice(sorted(topology.online))
    worker = replace(main, tid=9999, mask=frozenset({cpu}))
    judge = Judge(topology)
    before = judge.judge(facts)
    after = judge.judge(replace(facts, threads=(*facts.threads, worker)))
    assert (after.placement, after.cause) == (before.placement, before.cause)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_on_every_machine_a_process_on_the_near_cpus_is_local(name: str) -> None:
    topology = machine(name)
    judge = Judge(topology)
    for key, near in judge.near.items():
        judged = judge.judge(process(format_list(near or topology.online), gpu=key))
        assert judged.placement == ("unknown" if near is None else "local")
