"""Tasks of a Slurm step exchange far CPUs, and each task keeps its number of CPUs."""

from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.errors import UnsatisfiableError
from affinityd.planner import Options
from affinityd.planner.slices import deal, plan_within
from affinityd.topology.model import Core, cpus_of
from affinityd.topology.nearness import vicinity
from tests.support.machines.facts import machine
from tests.support.machines.strategies import machines

SLURM_VM = machine("slurm-vm")  # node 0 has CPUs 0-15, node 1 16-31; cores are pairs
NEAR = {"0": parse_list("0-15"), "1": parse_list("16-31"), "-": None}


@pytest.mark.parametrize(
    ("nodes", "slices", "expected"),
    [
        pytest.param("0 0", "0-3 4-7", "0-3 4-7", id="near slices stay"),
        pytest.param("1 0", "0-3 16-19", "16-19 0-3", id="whole slices are exchanged"),
        pytest.param("1 1 0", "0-3 4-7 16-19", "16-19 4-7 0-3", id="the first task chooses first"),
        pytest.param("1 0", "0-3 16-17", "2-3,16-17 0-1", id="as many CPUs as are near"),
        pytest.param("1 0", "0-1,16 2,18-19", "16,18-19 0-2", id="the near part is kept"),
        pytest.param("1 1 0 0", "0-5 6-7 16-17 18-23", "18-23 16-17 6-7 0-5", id="equal sizes"),
        pytest.param("1 - 0", "0-1 2-3 16-17", "16-17 2-3 0-1", id="an unknown place stays out"),
        pytest.param("1 0 0", "0-3 4-5 16-19", "16-19 4-5 0-3", id="a near task stays out"),
        pytest.param("1 1", "0-3 4-7", "0-3 4-7", id="no slice has near CPUs"),
        pytest.param("1 1", "3,5 4", "4-5 3", id="a whole core before halves of two"),
        pytest.param("1 1 0", "4-7 0-3 16-17", "4-5,16-17 2-3,6-7 0-1", id="far CPUs become near"),
        pytest.param(
            "1 1 0 0", "0-3 4-7 16-17 18-19", "4-5,16-17 6-7,18-19 0-1 2-3", id="tasks take turns"
        ),
    ],
)
def test_tasks_exchange_far_cpus(nodes: str, slices: str, expected: str) -> None:
    near = [NEAR[node] for node in nodes.split()]
    dealt = deal([parse_list(cpus) for cpus in slices.split()], near, SLURM_VM.cores)
    assert " ".join(map(format_list, dealt)) == expected


def test_a_reserved_cpu_is_not_exchanged() -> None:
    slices = [parse_list("0-3"), parse_list("16-19")]
    dealt = deal(slices, [NEAR["1"], NEAR["0"]], SLURM_VM.cores, parse_list("0"))
    assert [format_list(cpus) for cpus in dealt] == ["0-1,16-17", "2-3,18-19"]


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param("0-1 16", "0-1 16", id="an exchange would split a core"),
        pytest.param("0-1 16 2-3 18-19", "18-19 16 2-3 0-1", id="tasks with whole cores exchange"),
    ],
)
def test_a_core_stays_with_one_task_if_cores_differ_in_size(slices: str, expected: str) -> None:
    small = Core(cpus=(16,), node=1, package=1, die=None, llc=16)
    cores = [core for core in SLURM_VM.cores if core.cpus != (16, 17)]
    cores = sorted([*cores, small], key=lambda core: core.cpus)
    near = [NEAR["1"], NEAR["0"], NEAR["0"], NEAR["0"]]
    listed = [parse_list(cpus) for cpus in slices.split()]
    dealt = deal(listed, near[: len(listed)], cores)
    assert " ".join(map(format_list, dealt)) == expected


@dataclass(frozen=True)
class Step:
    """The tasks of a step on a random machine."""

    cores: tuple[Core, ...]
    slices: list[CpuSet]
    near: list[CpuSet | None]
    fixed: CpuSet


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Draw a step whose tasks have whole cores, or any CPUs; places of GPUs may be unknown."""
    topology = draw(machines())
    is_by_core = draw(st.booleans())
    if is_by_core:
        parts = [core.cpus for core in topology.cores]
    else:
        parts = [(cpu,) for cpu in sorted(topology.online)]
    parts = draw(st.permutations(parts))
    tasks = draw(st.integers(1, min(8, len(parts))))
    each = draw(st.integers(1, len(parts) // tasks))
    slices = []
    near: list[CpuSet | None] = []
    for task in range(tasks):
        slices.append(frozenset(sum(parts[task * each : (task + 1) * each], ())))
        gpus = draw(st.lists(st.sampled_from(topology.gpus), min_size=1, max_size=2))
        around = vicinity(topology, gpus)
        near.append(around.cpus if around.nodes else None)
    fixed = draw(st.sets(st.sampled_from(sorted(topology.online)), max_size=3))
    return Step(topology.cores, slices, near, frozenset(fixed))


@given(steps())
def test_every_task_keeps_its_number_of_cpus_and_no_cpu_is_shared(step: Step) -> None:
    dealt = deal(step.slices, step.near, step.cores, step.fixed)
    assert [len(cpus) for cpus in dealt] == [len(cpus) for cpus in step.slices]
    assert frozenset().union(*dealt) == frozenset().union(*step.slices)


@given(steps())
def test_near_cpus_fixed_cpus_and_tasks_of_unknown_place_are_left_alone(step: Step) -> None:
    dealt = deal(step.slices, step.near, step.cores, step.fixed)
    for before, after, near in zip(step.slices, dealt, step.near, strict=True):
        if near is None or before <= near:
            assert after == before
        else:
            assert before & near <= after
        assert before & step.fixed == after & step.fixed


@given(steps())
def test_no_two_tasks_could_both_gain_by_another_exchange(step: Step) -> None:
    dealt = deal(step.slices, step.near, step.cores, step.fixed)
    sizes = {len(core.cpus) for core in step.cores}
    if len(sizes) > 1:
        return  # an exchange could divide a core
    kept = cpus_of(core for core in step.cores if not step.fixed.isdisjoint(core.cpus))
    wanted = []
    for cpus, near in zip(dealt, step.near, strict=True):
        if near is not None:
            wanted.append((cpus - near - kept, near))
    for (far, near), (other_far, other_near) in combinations(wanted, 2):
        assert far.isdisjoint(other_near) or other_far.isdisjoint(near)


@given(steps())
def test_no_core_is_divided_by_the_exchange(step: Step) -> None:
    def divided(slices: list[CpuSet]) -> list[Core]:
        return [
            core
            for core in step.cores
            for cpus in slices
            if 0 < len(cpus.intersection(core.cpus)) < len(core.cpus)
        ]

    if not divided(step.slices):
        assert not divided(list(deal(step.slices, step.near, step.cores, step.fixed)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(Options(), "14-19", id="node gives all CPUs"),
        pytest.param(Options(mode="unique_contiguous"), "14-19", id="a unique mode gives all CPUs"),
        pytest.param(Options(mode="even"), "14-19", id="even gives all CPUs"),
        pytest.param(Options(mode="single"), "16-17", id="single is the first near core"),
        pytest.param(Options(mode="single_unique"), "16-17", id="single_unique is the same"),
        pytest.param(Options(mode="core_complex"), "16-19", id="core_complex is the larger part"),
        pytest.param(Options(multithreading="single_logical"), "14,16,18", id="one CPU a core"),
        pytest.param(Options(max_physical_cores=2), "16-19", id="near cores first"),
    ],
)
def test_a_mode_chooses_within_the_cpus_of_a_process(options: Options, expected: str) -> None:
    plan = plan_within(SLURM_VM, SLURM_VM.gpus[:1], parse_list("14-19"), options, because="so")
    assert [format_list(rank.cpus) for rank in plan.ranks] == [expected]


def test_several_gpus_of_one_process_divide_its_threads() -> None:
    cpus = parse_list("14-19")
    plan = plan_within(SLURM_VM, SLURM_VM.gpus[:2], cpus, Options(), because="so it is")
    assert [(rank.physical_cores, rank.threads) for rank in plan.ranks] == [(3, 1), (3, 1)]


@pytest.mark.parametrize("options", [Options(min_physical_cores=4), Options(strict=True)])
def test_options_that_a_process_s_cpus_cannot_meet_are_refused(options: Options) -> None:
    with pytest.raises(UnsatisfiableError):
        plan_within(SLURM_VM, SLURM_VM.gpus[:1], parse_list("14-19"), options, because="so")
