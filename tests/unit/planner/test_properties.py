"""What holds for every plan, on random machines."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest
from hypothesis import assume, event, given, reject
from hypothesis import strategies as st

from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import AffinityError, UnsatisfiableError
from affinityd.planner.domains import usable
from affinityd.planner.model import RankPlan
from affinityd.planner.modes import MODES
from affinityd.request.formats import Reply
from affinityd.topology.model import Core, Topology
from tests.support.asking import codes, is_one_short_line
from tests.support.machines.strategies import (
    SHARING,
    UNIQUE,
    Question,
    machines,
    options,
    questions,
    subsets,
)

#: Those that give each rank the same number of near cores where balanced is said.
BALANCING = tuple(name for name, mode in MODES.items() if mode.balances)


def asked(question: Question, **parameters: str) -> Reply:
    """Return a reply; what cannot be satisfied says so in one line, and is no example."""
    reply = question.try_to_ask(**parameters)
    if isinstance(reply, AffinityError):
        assert isinstance(reply, UnsatisfiableError)
        assert is_one_short_line(reply)
        reject()
    return reply


def cores_of(rank: RankPlan, topology: Topology) -> list[Core]:
    """Return the cores of which a rank has a CPU."""
    return [core for core in topology.cores if not rank.cpus.isdisjoint(core.cpus)]


@given(questions())
def test_a_rank_has_cpus_and_only_allowed_ones(question: Question) -> None:
    reply = asked(question)
    for rank in reply.ranks:
        assert rank.cpus
        assert rank.cpus <= reply.allowed <= question.whole


@given(questions())
def test_cores_are_given_whole_as_far_as_they_are_allowed(question: Question) -> None:
    reply = asked(question)
    single = reply.request.options.multithreading == "single_logical"
    for rank in reply.ranks:
        cores = usable(cores_of(rank, question.topology), reply.allowed)
        whole = {cpu for core in cores for cpu in (core.cpus[:1] if single else core.cpus)}
        assert rank.cpus == whole
        assert rank.physical_cores == len(cores)


@given(questions(UNIQUE))
def test_no_two_ranks_of_a_unique_mode_have_cpus_of_one_core(question: Question) -> None:
    reply = asked(question)
    for one, other in combinations(reply.ranks, 2):
        assert not {*cores_of(one, question.topology)} & {*cores_of(other, question.topology)}


@given(questions(BALANCING))
def test_balanced_ranks_have_as_many_near_cores(question: Question) -> None:
    reply = asked(question, balanced="true")
    near = {
        sum(core.node == rank.home_node for core in cores_of(rank, question.topology))
        for rank in reply.ranks
    }
    assert len(near) == 1


@given(questions(("exclusive", "even")))
def test_exclusive_and_even_ranks_differ_by_one_core(question: Question) -> None:
    reply = asked(question, share="requested", scope="node")
    assume(reply.request.options.max_physical_cores is None)
    of_home: dict[int | None, list[int]] = {}
    for rank in reply.ranks:
        home = rank.home_node if reply.request.options.mode == "exclusive" else None
        of_home.setdefault(home, []).append(rank.physical_cores)
    for home, sizes in of_home.items():
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1
        node = question.topology.node_cores[home] if home in question.topology.node_of else ()
        every = node if reply.request.options.mode == "exclusive" else question.topology.cores
        assert sum(sizes) == len(usable(every, reply.allowed))


@given(questions())
def test_a_home_node_is_nearest_of_those_with_an_allowed_cpu(question: Question) -> None:
    topology = question.topology
    reply = asked(question)
    assume(reply.request.options.mode != "even")
    candidates = [
        number
        for number in topology.node_of
        if not reply.allowed.isdisjoint(topology.cpus_of_node(number))
    ]
    for rank in reply.ranks:
        assert rank.home_node in candidates
        own = rank.gpu.numa_node
        if own in candidates and own is not None:
            assert rank.home_node == own
        elif own is not None:
            row = topology.node_of[own].distances
            assert row.get(rank.home_node or 0, 256) == min(
                row.get(number, 256) if number is not None else 256 for number in candidates
            ) or (rank.home_node is None and not row.keys() & {*candidates})


@given(questions())
def test_near_modes_stay_on_the_home_node(question: Question) -> None:
    reply = asked(question)
    name = reply.request.options.mode
    assume(name not in {"even", "socket"})
    assume(MODES[name].scope == "node" or reply.request.options.scope == "node")
    for rank in reply.ranks:
        assert rank.cpus <= question.topology.cpus_of_node(rank.home_node)


@given(questions())
def test_socket_scope_stays_in_the_packages_of_the_home_node(question: Question) -> None:
    reply = asked(question, scope="socket")
    assume(reply.request.options.mode != "even")
    for rank in reply.ranks:
        packages = {core.package for core in question.topology.node_cores[rank.home_node]}
        assert {core.package for core in cores_of(rank, question.topology)} <= packages
        assert rank.cpus & question.topology.cpus_of_node(rank.home_node)


@given(questions(("unique_contiguous", "exclusive")))
def test_contiguous_ranks_follow_each_other_in_core_order(question: Question) -> None:
    reply = asked(question, share="requested")
    last: dict[int | None, tuple[int, ...]] = {}
    for rank in reply.ranks:
        near = [c.cpus for c in cores_of(rank, question.topology) if c.node == rank.home_node]
        assert last.get(rank.home_node, ()) < near[0]
        last[rank.home_node] = near[-1]


@given(questions())
def test_the_maximum_is_kept(question: Question) -> None:
    most = question.parameters.get("max_physical_cores")
    assume(most is not None)
    for rank in asked(question).ranks:
        assert rank.physical_cores <= int(most or 0)


@given(questions(), st.integers(1, 4))
def test_the_maximum_takes_nothing_that_a_greater_one_would_not(
    question: Question, most: int
) -> None:
    smaller = asked(question, min_physical_cores="1", max_physical_cores=str(most))
    greater = asked(question, min_physical_cores="1", max_physical_cores=str(most + 1))
    for one, other in zip(smaller.ranks, greater.ranks, strict=True):
        assert one.cpus <= other.cpus
        assert one.home_node == other.home_node


@given(questions())
def test_the_minimum_is_kept_or_refused_and_changes_nothing(question: Question) -> None:
    plain = question.but(min_physical_cores="1", max_physical_cores="99")
    reply = asked(plain)
    mode = MODES[reply.request.options.mode]
    least = min(rank.physical_cores for rank in reply.ranks)
    assert asked(plain, min_physical_cores=str(least)).plan.ranks == reply.plan.ranks
    if mode.counts:
        with pytest.raises(UnsatisfiableError):
            plain.ask(min_physical_cores=str(least + 1))


@given(questions())
def test_locality_is_what_the_nodes_say(question: Question) -> None:
    reply = asked(question)
    running = {core.node for core in question.topology.cores}
    for rank in reply.ranks:
        nodes = {rank.home_node}
        if reply.request.options.mode == "even":
            nodes = {core.node for core in cores_of(rank, question.topology)}
        if len(running) == 1:
            assert rank.locality == "local"
        elif rank.gpu.numa_node is None:
            assert rank.locality == "unknown"
        else:
            assert rank.locality == ("local" if nodes == {rank.gpu.numa_node} else "remote")


@given(questions())
def test_strict_refuses_what_is_remote_and_changes_nothing_else(question: Question) -> None:
    reply = asked(question)
    if any(rank.locality == "remote" for rank in reply.ranks):
        with pytest.raises(UnsatisfiableError, match=r"\Astrict: "):
            question.ask(strict="true")
    else:
        assert question.ask(strict="true").plan == reply.plan


@given(questions())
def test_every_odd_rank_is_warned_of(question: Question) -> None:
    reply = asked(question)
    warned = codes(reply)
    localities = [rank.locality for rank in reply.ranks]
    assert warned.count("remote_home") == localities.count("remote")
    assert warned.count("unknown_locality") == localities.count("unknown")
    gpus = [rank.gpu.index for rank in reply.ranks]
    assert warned.count("shared_gpu") == sum(gpus.count(gpu) > 1 for gpu in gpus)


@given(questions())
def test_memory_is_near_and_threads_fit(question: Question) -> None:
    for rank in asked(question).ranks:
        home = question.topology.node_of[rank.home_node]
        if home.memory_bytes != 0:
            assert rank.memory_node == rank.home_node
        assert 1 <= rank.threads <= rank.physical_cores


@given(questions())
def test_the_same_question_has_the_same_answer(question: Question) -> None:
    assert asked(question) == question.ask()


@given(questions())
def test_a_rank_s_own_answer_is_its_part_of_the_whole(question: Question) -> None:
    reply = asked(question)
    for rank in reply.ranks:
        own = question.ask(rank=str(rank.rank))
        assert own.ranks == (rank,)
        assert {*own.warnings} <= {*reply.warnings}


@given(questions())
def test_how_a_gpu_is_named_does_not_matter(question: Question) -> None:
    reply = asked(question)
    for name in "uuid", "pci_bus_id":
        names = ",".join(getattr(rank.gpu, name) for rank in reply.ranks)
        assert question.ask(gpus=names).plan == reply.plan


@given(questions())
def test_a_wider_cpuset_than_the_machine_s_is_the_machine_s(question: Question) -> None:
    reply = asked(question, cpuset=format_list(question.topology.online))
    assert question.ask(cpuset="0-4095").plan == reply.plan


def gpus_of(replies: Iterable[Reply]) -> list[set[int]]:
    """Return the GPUs of each reply."""
    return [{rank.gpu.index for rank in reply.ranks} for reply in replies]


def assert_disjoint_unless_warned(replies: list[Reply]) -> None:
    """Check plans of share=node on different GPUs."""
    if any("share_unavailable" in codes(reply) for reply in replies):
        event("share_unavailable")
    else:
        one, other = replies
        assert one.plan.share == other.plan.share == "node"
        assert not one.cpus & other.cpus


@st.composite
def two_jobs(draw: st.DrawFn) -> tuple[Topology, list[str]]:
    """Return a machine and two lists of its GPUs that have none in common."""
    topology = draw(machines())
    assume(len(topology.gpus) > 1)
    order = draw(st.permutations(range(len(topology.gpus))))
    cut = draw(st.integers(1, len(order) - 1))
    return topology, [",".join(map(str, part)) for part in (order[:cut], order[cut:])]


@given(two_jobs(), options(SHARING), options(SHARING), st.data())
def test_jobs_that_may_use_the_whole_node_are_disjoint_however_they_ask(
    jobs: tuple[Topology, list[str]],
    one: dict[str, str],
    other: dict[str, str],
    data: st.DataObject,
) -> None:
    topology, gpus = jobs
    reserved = data.draw(st.frozensets(st.sampled_from(sorted(topology.online)), max_size=3))
    replies = [
        asked(Question(topology, reserved, {**how, "gpus": mine, "share": share}))
        for how, mine, share in zip((one, other), gpus, ("node", "auto"), strict=True)
    ]
    assert_disjoint_unless_warned(replies)


@given(two_jobs(), options(SHARING), options(SHARING), st.data())
def test_jobs_of_one_cpuset_are_disjoint(
    jobs: tuple[Topology, list[str]],
    one: dict[str, str],
    other: dict[str, str],
    data: st.DataObject,
) -> None:
    topology, gpus = jobs
    cpuset = format_list(data.draw(subsets(topology.online)))
    assert_disjoint_unless_warned(
        [
            asked(
                Question(
                    topology, frozenset(), {**how, "share": "node", "cpuset": cpuset, "gpus": mine}
                )
            )
            for how, mine in zip((one, other), gpus, strict=True)
        ]
    )


@given(two_jobs(), options(SHARING), options(SHARING), st.data())
def test_jobs_of_disjoint_cpusets_are_disjoint(
    jobs: tuple[Topology, list[str]],
    one: dict[str, str],
    other: dict[str, str],
    data: st.DataObject,
) -> None:
    topology, gpus = jobs
    cpuset: CpuSet = data.draw(subsets(topology.online))
    assume(cpuset != topology.online)
    halves = (cpuset, topology.online - cpuset)
    questions = [
        Question(topology, frozenset(), {**how, "gpus": mine, "cpuset": format_list(cpus)})
        for how, mine, cpus in zip((one, other), gpus, halves, strict=True)
    ]
    given = [reply.cpus for q in questions if isinstance(reply := q.try_to_ask(), Reply)]
    event(f"{len(given)} of them were given CPUs")
    assert len(frozenset().union(*given)) == sum(map(len, given))


@given(questions(SHARING))
def test_a_gpu_s_block_is_the_same_whoever_asks_with_it(question: Question) -> None:
    every = asked(question.but(gpus="all", share="node", balanced="false"))
    assume(every.plan.share == "node")
    for rank in every.ranks:
        alone = question.ask(gpus=str(rank.gpu.index), share="node", balanced="false")
        assert [one.cpus for one in alone.ranks] == [rank.cpus]
