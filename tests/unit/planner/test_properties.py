"""Properties of every plan, on random machines."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import UnsatisfiableError
from affinityd.planner import RankPlan
from affinityd.planner.domains import usable_cores
from affinityd.planner.modes import MODES
from affinityd.request.resolve import Reply
from affinityd.topology.model import Core, Gpu, Topology
from affinityd.topology.nearness import placement, vicinity
from tests.support.asking import codes
from tests.support.machines.strategies import UNIQUE, Question, questions


def cores_of(rank: RankPlan, topology: Topology) -> list[Core]:
    return [core for core in topology.cores if not rank.cpus.isdisjoint(core.cpus)]


def are_disjoint(cores: list[list[Core]]) -> bool:
    return not any({*one} & {*other} for one, other in combinations(cores, 2))


@given(questions())
def test_a_rank_has_allowed_cpus_of_whole_cores_of_its_domain(question: Question) -> None:
    topology, reply = question.topology, question.answered()
    options, mode = reply.request.options, MODES[reply.request.options.mode]
    threads = slice(1) if options.multithreading == "single_logical" else slice(None)
    for rank in reply.ranks:
        assert rank.cpus
        assert rank.cpus <= reply.allowed <= question.whole
        cores = usable_cores(cores_of(rank, topology), reply.allowed)
        assert rank.cpus == {cpu for core in cores for cpu in core.cpus[threads]}
        assert rank.physical_cores == len(cores) <= (options.max_physical_cores or 999)
        assert 1 <= rank.threads <= rank.physical_cores
        if not mode.everywhere:
            nearest = nearest_to(topology, rank.gpu, reply.allowed)
            homes = nearest if mode.shares else {rank.home_node}
            packages = {core.package for node in homes for core in topology.node_cores[node]}
            assert rank.cpus & topology.cpus_of_node(rank.home_node)
            assert {core.package for core in cores} <= packages
            assert {core.node for core in cores} <= homes or (
                (mode.scope or options.scope) == "socket"
            )


def nearest_to(topology: Topology, gpu: Gpu, cpus: CpuSet) -> set[int | None]:
    """Return the nodes of these CPUs that are nearest to a GPU, or all if its place is unknown."""
    nodes = {core.node for core in topology.cores if not cpus.isdisjoint(core.cpus)}
    if gpu.numa_node is None:
        return nodes
    if gpu.numa_node in nodes:
        return {gpu.numa_node}
    distances = topology.node_of[gpu.numa_node].distances
    far = {node: distances.get(-1 if node is None else node, 256) for node in nodes}
    return {node for node in nodes if far[node] == min(far.values())}


@given(questions())
def test_home_nodes_are_nearest_and_sharing_modes_use_all_nearest_nodes(question: Question) -> None:
    topology, reply = question.topology, question.answered()
    mode, options = MODES[reply.request.options.mode], reply.request.options
    for rank in reply.ranks:
        nearest = nearest_to(topology, rank.gpu, reply.allowed)
        assert rank.memory_node == topology.memory_node(rank.home_node)
        if not mode.everywhere:
            assert rank.home_node in nearest
        if mode.shares:
            near = [core for core in topology.cores if core.node in nearest]
            assert rank.home_node == min(nearest, key=lambda node: topology.node_of[node].order)
            if options.max_physical_cores is None:
                assert {*usable_cores(near, reply.allowed)} <= {
                    *usable_cores(cores_of(rank, topology), reply.allowed)
                }


@given(questions(), st.integers(1, 9).map(str) | st.none())
def test_locality_says_how_many_of_the_cpus_are_near(question: Question, cpus: str | None) -> None:
    topology = question.topology
    reply = question.answered(**({} if cpus is None else {"cpus": cpus}))
    for rank in reply.ranks:
        near = vicinity(topology, [rank.gpu])
        nodes = nearest_to(topology, rank.gpu, topology.online)
        is_nowhere = rank.gpu.numa_node is None and len(topology.nodes_with_cpus) > 1
        if is_nowhere or topology.hides_nodes:
            assert (rank.locality, near.nodes) == ("unknown", ())
        else:
            near_cpus = {cpu for node in nodes for cpu in topology.cpus_of_node(node)}
            assert near.cpus == near_cpus
            assert (rank.locality == "local") == (rank.cpus <= near_cpus)
            assert (rank.locality == "remote") == rank.cpus.isdisjoint(near_cpus)
        is_unpinned = rank.locality == "mixed" and rank.cpus == topology.online
        place = "unpinned" if is_unpinned else rank.locality
        assert placement(topology, near, rank.cpus) == place


@given(questions(UNIQUE))
def test_ranks_of_a_unique_mode_have_no_core_in_common(question: Question) -> None:
    reply = question.answered(balanced="true")
    cores = [cores_of(rank, question.topology) for rank in reply.ranks]
    assert are_disjoint(cores)
    if MODES[reply.request.options.mode].balances:
        pairs = zip(reply.ranks, cores, strict=True)
        assert len({sum(it.node == rank.home_node for it in own) for rank, own in pairs}) == 1


@given(questions(), st.integers(1, 4))
def test_a_maximum_cuts_cores_and_a_minimum_only_refuses(question: Question, most: int) -> None:
    smaller, greater, plain = (
        question.answered(min_physical_cores="1", max_physical_cores=f"{number}")
        for number in (most, most + 1, 99)
    )
    for one, other in zip(smaller.ranks, greater.ranks, strict=True):
        assert one.cpus <= other.cpus
        assert one.home_node == other.home_node
    least = min(rank.physical_cores for rank in plain.ranks)
    limits = {"min_physical_cores": f"{least}", "max_physical_cores": "99"}
    assert question.ask(**limits).plan.ranks == plain.plan.ranks
    if MODES[plain.request.options.mode].counts:
        with pytest.raises(UnsatisfiableError):
            question.ask(**{**limits, "min_physical_cores": f"{least + 1}"})


@given(questions())
def test_the_same_request_has_the_same_answer(question: Question) -> None:
    reply = question.answered()
    assert question.ask() == reply
    for name in "uuid", "pci_bus_id":
        names = ",".join(getattr(rank.gpu, name) for rank in reply.ranks)
        assert question.ask(gpus=names).plan == reply.plan
    for rank in reply.ranks:
        own = question.ask(rank=str(rank.rank))
        assert own.ranks == (rank,)
        assert {*own.warnings} <= {*reply.warnings}
    online = question.but(cpuset=format_list(question.topology.online)).try_to_ask()
    if isinstance(online, Reply):
        assert question.ask(cpuset="0-4095").plan == online.plan


CPUS = st.integers(1, 9).map(str)  #: the number that each rank asks for


@given(questions(), CPUS | st.none())
def test_far_and_shared_ranks_are_warned_of_and_strict_refuses_far_ones(
    question: Question, cpus: str | None
) -> None:
    more = {} if cpus is None else {"cpus": cpus}
    reply = question.answered(**more)
    everywhere = MODES[reply.request.options.mode].everywhere
    localities = [rank.locality for rank in reply.ranks]
    gpus = [rank.gpu.index for rank in reply.ranks]
    widened = [rank for rank in reply.ranks if rank.widening]
    warned = codes(reply)
    far = localities.count("remote") + localities.count("mixed") * everywhere
    assert warned.count("remote_home") == far
    assert warned.count("unknown_locality") == localities.count("unknown")
    assert warned.count("shared_gpu") == sum(gpus.count(gpu) > 1 for gpu in gpus)
    assert [warning.rank for warning in reply.warnings if warning.code == "widened"] == [
        rank.rank for rank in widened
    ]
    assert all(len(warning.message.splitlines()) == 1 for warning in reply.warnings)
    for rank in widened:
        assert rank.widening is not None
        assert rank.locality != "local"
        assert rank.widening.cpus <= rank.cpus - question.topology.cpus_of_node(rank.home_node)
    strict = question.try_to_ask(**more, strict="true")
    if widened or far:
        assert str(strict).startswith("strict: ")
    else:
        assert isinstance(strict, Reply)
        assert strict.plan == reply.plan


@given(questions(UNIQUE), CPUS)
def test_no_rank_lacks_requested_cpus_while_cores_are_idle(question: Question, cpus: str) -> None:
    wide, narrow = question.answered(cpus=cpus), question.try_to_ask()
    held = [cores_of(rank, question.topology) for rank in wide.ranks]
    assert are_disjoint(held)
    is_idle = len(usable_cores(question.topology.cores, wide.allowed)) > sum(map(len, held))
    mode, options = question.parameters["mode"], wide.request.options
    keeps_to_block = mode == "single_unique" or wide.plan.share == "node"
    if is_idle and not keeps_to_block and options.max_physical_cores is None:
        assert all(len(rank.cpus) >= int(cpus) for rank in wide.ranks)
    if mode != "even" and isinstance(narrow, Reply) and narrow.plan.share == wide.plan.share:
        pairs = zip(narrow.ranks, wide.ranks, strict=True)
        assert all(before.cpus <= after.cpus for before, after in pairs)


@given(questions(("node", "all", "socket")), CPUS)
def test_widening_takes_no_cpu_from_ranks_that_share(question: Question, cpus: str) -> None:
    limits = {"min_physical_cores": "1", "max_physical_cores": "999"}
    reply, narrow = question.answered(cpus=cpus, **limits), question.ask(**limits)
    for rank, had in zip(reply.ranks, narrow.ranks, strict=True):
        assert had.cpus <= rank.cpus <= reply.allowed
        assert (rank.cpus > had.cpus) == (rank.widening is not None)
