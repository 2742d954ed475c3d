"""GPUs chosen for given CPUs, compared with all possible assignments on small machines."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.cpuset import CpuSet
from affinityd.errors import InvalidRequestError
from affinityd.planner.choose import FARTHEST, OWN_DISTANCE, choose_gpus, gpus_of_each
from affinityd.topology.model import Gpu, Topology
from tests.support.machines.facts import machine
from tests.support.machines.strategies import machines, subsets

Chosen = tuple[tuple[int, ...], ...]


def distances(
    topology: Topology, ranks: Sequence[CpuSet], gpus: Sequence[Gpu]
) -> list[list[Fraction]]:
    """Return each rank's distance to each GPU, by the definition of distance."""
    rows: list[list[Fraction]] = []
    for cpus in ranks:
        rows.append([])
        for gpu in gpus:
            total = 0
            for core in topology.cores:
                apart = OWN_DISTANCE
                if gpu.numa_node not in {None, core.node}:
                    known = topology.node_of[gpu.numa_node].distances
                    apart = FARTHEST if core.node is None else known.get(core.node, FARTHEST)
                total += apart * len(cpus & {*core.cpus})
            rows[-1].append(Fraction(total, len(cpus)))
    return rows


def cost(apart: list[list[Fraction]], chosen: Chosen) -> tuple[Fraction, int, Chosen]:
    """Return a key that is lower for a better answer: distance, then crowding, then the list."""
    pairs = [(rank, place) for rank, places in enumerate(chosen) for place in places]
    used = [place for _, place in pairs]
    total = sum((apart[rank][place] for rank, place in pairs), Fraction(0))
    return total, sum(map(used.count, used)), chosen


def assignments(ranks: int, gpus: int, each: int) -> list[Chosen]:
    """Return every possible answer."""
    most = -(-ranks // gpus)
    own = list(combinations(range(gpus), each))
    every = product(own, repeat=ranks) if each == 1 else permutations(own, ranks)
    answers = []
    for chosen in every:
        places = [place for places in chosen for place in places]
        if max(map(places.count, places)) <= most:
            answers.append(chosen)
    return answers


@st.composite
def ranks_on(draw: st.DrawFn, topology: Topology, most: int) -> list[CpuSet]:
    return draw(st.lists(subsets(topology.online), min_size=1, max_size=most))


@given(st.data(), machines(gpus=4))
def test_the_answer_is_the_best_of_all_assignments(data: st.DataObject, topology: Topology) -> None:
    ranks = data.draw(ranks_on(topology, 5))
    each = max(1, len(topology.gpus) // len(ranks))
    chosen = choose_gpus(topology, ranks, topology.gpus, None)
    apart = distances(topology, ranks, topology.gpus)
    answers = assignments(len(ranks), len(topology.gpus), each)
    assert chosen == min(answers, key=lambda answer: cost(apart, answer))


CORES = [frozenset(range(core, core + 8)) for core in range(0, 64, 8)]


@pytest.mark.parametrize(
    ("ranks", "each", "chosen"),
    [
        (CORES, None, "4 5 2 3 6 7 0 1"),
        (CORES[::-1], None, "0 1 6 7 2 3 4 5"),
        (CORES[:3], None, "0,1 4,5 2,3"),
        (CORES[:3], 1, "4 5 2"),
        (CORES[:1], None, "0,1,2,3,4,5,6,7"),
        ([core for core in CORES for _ in range(2)], None, "4 4 5 5 2 2 3 3 6 6 7 7 0 0 1 1"),
        ([*CORES, CORES[0]], None, "4 4 2 3 6 7 0 1 5"),
        ([frozenset(range(64))] * 8, None, "0 1 2 3 4 5 6 7"),
        ([frozenset(range(64))] * 9, None, "0 0 1 2 3 4 5 6 7"),
    ],
)
def test_ranks_of_an_mi250x_node_get_the_gpus_of_their_caches(
    ranks: list[CpuSet], each: int | None, chosen: str
) -> None:
    topology = machine("mi250x")
    answer = choose_gpus(topology, ranks, topology.gpus, each)
    assert " ".join(",".join(map(str, places)) for places in answer) == chosen


@pytest.mark.parametrize(("ranks", "gpus"), [(257, 64), (0, 64), (256, 65), (256, 0)])
def test_at_most_256_ranks_and_64_gpus_are_assigned(ranks: int, gpus: int) -> None:
    assert gpus_of_each(256, 64, None) == 1
    with pytest.raises(InvalidRequestError, match=r"it takes 1 to (256|64)$"):
        gpus_of_each(ranks, gpus, None)
