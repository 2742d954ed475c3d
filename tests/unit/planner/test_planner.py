"""Plans on small machines: their CPUs, home nodes, threads, reasons, warnings and refusals."""

from dataclasses import replace

import pytest

from affinityd.errors import UnsatisfiableError
from affinityd.topology.model import Topology
from tests.support.asking import ask, cpulists, homes, lists
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import cases, rows, words

NODES = {
    "pair": made({0: "0-3", 1: "4-7"}),
    # Three near and six far cores: core 0 brings 3 and 6, 1 brings 4 and 7, 2 brings 5 and 8.
    "three": made({0: "0-2", 1: "3-8"}, gpus=[0, 0]),
    # A package of five cores, two of them near: core 0 brings 2 and 4, core 1 brings 3.
    "ragged": made({0: "0-1", 1: "2-4"}, gpus=[0, 0]),
    # Node 0 is on two packages whose CPU numbers alternate; node 1 has a core of package 0.
    "astride": made({0: "0-7", 1: "8"}, gpus=[0, 0], packages={0: "0-6:2,8", 1: "1-7:2"}),
    # Node 0 has a core of each package; nodes 1 and 2 are on one package each.
    "bridge": made(
        {0: "0,4", 1: "1-3", 2: "5-7"},
        packages={0: "0-3", 1: "4-7"},
        distances=[("0", "1", 30), ("0", "2", 20)],
    ),
    "two packages": made({0: "0-1", 1: "2-3", 2: "4-5"}, packages={0: "0-3", 1: "4-5"}),
    "equally near": made({0: "2-3", 1: "4-5", 2: "0-1"}, distances=[("0", "1-2", 20)]),
    "a package a node": made({0: "0-1", 1: "2-3"}, packages={0: "0-1", 1: "2-3"}),
    "two cores": made({0: "0-1"}, gpus=[0, 0, 0]),
    "one core": made({0: "0"}, gpus=[0, 0]),
    "half offline": made({0: "0-3"}, online="0-1"),
    "unknown": made({0: "0-3", 1: "4-7"}, gpus=[None]),
    "siblings": made({0: "0-7"}, threads=2),  # 0 and 4, 1 and 5, …
    "no CPU 0": made({0: "0-15"}, threads=2, online="1-15"),  # CPU 8 is alone in its core
    "eight threads": made({0: "0-47"}, gpus=[0, 0], threads=8, siblings="adjacent", online="8-47"),
}


def node(name: str) -> Topology:
    return NODES[name] if name in NODES else machine(name)


@pytest.mark.parametrize(("name", "asked", "expected"), cases("plans/socket_scope.tsv"))
def test_unique_modes_may_use_the_package(name: str, asked: str, expected: str) -> None:
    assert lists(node(name), f"scope=socket share=requested {asked}") == expected


@pytest.mark.parametrize("mode", ["mode=socket", "mode=all scope=socket"])
@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    rows("""
all of the package                  | three            |                      | 0-8
all of every package of the node    | bridge           |                      | 0-7
if only one package is allowed, too | bridge           | cpuset=0,5           | 0,5
a maximum: the rank's node first    | bridge           | max_physical_cores=2 | 0,4
a maximum: then the nearest node    | bridge           | max_physical_cores=4 | 0,4-6
a maximum: the lower of near nodes  | equally near     | max_physical_cores=3 | 2-4
another package is no neighbor      | a package a node |                      | 0-1
"""),
)
def test_sharing_modes_may_use_the_package(name: str, asked: str, expected: str, mode: str) -> None:
    assert lists(node(name), f"gpus=0 {mode} {asked}") == expected


@pytest.mark.parametrize(("name", "asked", "expected"), cases("plans/minimum_and_maximum.tsv"))
def test_minimum_maximum_and_threads_limit_a_rank(name: str, asked: str, expected: str) -> None:
    assert lists(node(name), f"share=requested {asked}") == expected


@pytest.mark.parametrize(("name", "asked", "words_of_it"), cases("plans/refusals.tsv"))
def test_a_refusal_names_the_shortage_and_the_possible_number(
    name: str, asked: str, words_of_it: str
) -> None:
    with pytest.raises(UnsatisfiableError) as refusal:
        ask(node(name), **words(asked))
    assert [part for part in words_of_it.split(",") if part not in str(refusal.value)] == []


@pytest.mark.parametrize(
    ("asked", "threads"),
    rows("""
cores of its own             | gpus=0,1                                   | 10 10
cores shared by two ranks    | gpus=0,1,4 mode=node                       | 10 10 20
at least one thread          | gpus=0,1 mode=single                       | 1 1
a number rounded down        | gpus=0,0,0 mode=node                       | 6 6 6
cores after a maximum        | gpus=0,1,2 mode=node max_physical_cores=3  | 1 1 1
"""),
)
def test_ranks_that_share_cores_divide_their_threads(asked: str, threads: str) -> None:
    reply = ask(machine("dgx-1v"), **words(f"share=requested {asked}"))
    assert " ".join(str(rank.threads) for rank in reply.ranks) == threads


TWO = {0: "0-3", 1: "4-7"}
#: Node 2 has no CPUs.
BARREN = {0: "0-3", 1: "4-7", 2: ""}
EVEN_ROWS = [("0", "1", 20), ("0-1", "2", 30)]
ODD_ROWS = [("0", "1", 20), ("0", "2", 40), ("1", "2", 30)]
#: CPUs 4-7 are of no node.
OUTSIDE = {0: "0-7"}


@pytest.mark.parametrize(
    ("topology", "asked", "expected"),
    [
        (made(BARREN, gpus=[2], distances=ODD_ROWS), "", [1]),  # a node without CPUs has distances
        # Of equally near nodes, the home of fewer ranks is chosen, then the lower number.
        (made(BARREN, gpus=[2] * 4, distances=EVEN_ROWS), "", [0, 1, 0, 1]),
        # Ranks without a choice are placed first.
        (made(BARREN, gpus=[2, 0, 0], distances=EVEN_ROWS), "", [1, 0, 0]),
        (made(BARREN, gpus=[2, 2], distances=EVEN_ROWS), "gpus=1,0", [0, 1]),  # in rank order
        (made(BARREN, gpus=[2, 2], distances=[("0", "2", 30)]), "", [0, 0]),  # missing: farthest
        (made(BARREN, gpus=[2, 2]), "", [0, 1]),  # all distances are missing: equally far
        (made(TWO, gpus=[None] * 3), "", [0, 1, 0]),  # GPUs of unknown place are spread
        (made(TWO, gpus=[None, 0, None]), "", [1, 0, 0]),  # to the node with fewest ranks
        (made(TWO, gpus=[None, None]), "cpuset=4-7", [1, 1]),  # only nodes with allowed CPUs
        (made(TWO, gpus=[0, None]), "gpus=0,0,1,1,1,1,1", [0, 0, 1, 1, 0, 1, 0]),  # repeats count
        # For GPUs of unknown place the CPUs in no node count as a node, the last of the farthest
        # nodes. That node is a home if no other CPU is allowed.
        (made({0: "0-3"}, gpus=[0, None], packages=OUTSIDE), "", [0, None]),
        (
            made(BARREN, gpus=[2], packages={0: "0-11"}, distances=[("1", "2", 99)]),
            *("cpuset=0-3,8-11", [0]),
        ),
        (made({0: "0-3"}, packages=OUTSIDE), "cpuset=4-7", [None]),
        # Node 4 is 65 from all nodes; node 7 is 65 from nodes 0 and 1, and 79 from node 3.
        (machine("uv2000"), "cpuset=0-15,24-31", [0, 1]),
    ],
)
def test_ranks_that_divide_cores_have_one_home_node_each(
    topology: Topology, asked: str, expected: list[int | None]
) -> None:
    assert homes(ask(topology, **words(f"share=requested mode=single {asked}"))) == expected


FOUR = {0: "0-3", 1: "4-7", 2: "8-11", 3: ""}
#: Nodes 1 and 2 are equally near to node 0; nodes 0 and 1 are the nearest to node 3.
FAR_ROWS = [("0", "1-2", 20), ("1", "2", 30), ("0-1", "3", 20), ("2", "3", 40)]
TIED = {
    "own": made(FOUR, gpus=[0], distances=FAR_ROWS),
    "no CPUs": made(FOUR, gpus=[3], distances=FAR_ROWS),
    "both": made(FOUR, gpus=[0, 3], distances=FAR_ROWS),
    "nowhere": made({0: "0-3", 1: "4-7", 2: ""}, gpus=[2, 2]),
    "unknown": made(FOUR, gpus=[None, 0], distances=FAR_ROWS),
    # CPU numbers alternate between the nodes; each node has a package of its own.
    "odd": made({0: "0-6:2", 1: "1-7:2"}, gpus=[None], packages={0: "0-6:2", 1: "1-7:2"}),
    "packages": made(FOUR, gpus=[3], packages={0: "0-3,8-9", 1: "4-7,10-11"}, distances=FAR_ROWS),
}


@pytest.mark.parametrize(("name", "asked", "expected"), cases("plans/equally_near_nodes.tsv"))
def test_ranks_in_sharing_modes_have_the_cpus_of_all_equally_near_nodes(
    name: str, asked: str, expected: str
) -> None:
    reply = ask(TIED[name], **words(f"mode=node {asked}"))
    ranks = zip(cpulists(reply), reply.ranks, strict=True)
    assert " ".join(f"{cpus} {rank.home_node} {rank.locality}" for cpus, rank in ranks) == expected


@pytest.mark.parametrize(("asked", "reason"), cases("plans/reasons.tsv"))
def test_reasons_explain_the_cpus_and_what_was_left_out(asked: str, reason: str) -> None:
    topology = made(
        {0: "0-15", 1: "16-31", 2: ""},
        gpus=[0, None, 2],
        threads=2,
        siblings="adjacent",
        distances=[("0", "1", 20)],
    )
    reply = ask(topology, **words(f"gpus=0 share=requested {asked}"))
    assert reason in reply.ranks[-1].reasons


def test_the_threads_of_a_rank_follow_its_most_shared_core() -> None:
    reply = ask(
        made({0: "0-7", 1: "8-15"}, gpus=[0, 1], packages={0: "0-15"}),
        gpus="0,1",
        mode="socket",
        max_physical_cores="12",
        share="requested",
    )
    assert cpulists(reply) == ["0-11", "0-3,8-15"]
    assert [rank.threads for rank in reply.ranks] == [6, 6]


def test_a_reason_names_the_source_of_the_gpu_s_node() -> None:
    topology = made({0: "", 1: "0-3"}, gpus=[0])
    gpu = replace(topology.gpus[0], numa_source="NVML")
    (rank,) = ask(replace(topology, gpus=(gpu,))).ranks
    assert rank.reasons[:2] == ("GPU 0 is on NUMA node 0 (by NVML)", "only node 1 has CPUs")


#: Two nodes of four CPUs; the first has a GPU.
PAIR = made({0: "0-3", 1: "4-7"})
WIDENED = {
    "pair": PAIR,
    "both": made({0: "0-3", 1: "4-7"}, gpus=[0, 1]),
    # Node 2 is nearer to node 0 than node 1 is. Each core has two CPUs: 0 and 6, 1 and 7, …
    "chain": made(
        {0: "0-1,6-7", 1: "2-3,8-9", 2: "4-5,10-11"},
        threads=2,
        distances=[("0", "1", 40), ("0", "2", 20), ("1", "2", 20)],
    ),
    "caches": made({0: "0-3", 1: "4-7"}, cores_per_llc=2),
    "socket": made({0: "0-1", 1: "2-3", 2: "4-5"}, packages={0: "0-3", 1: "4-5"}),
    "dgx": machine("dgx-a100"),  # 128 cores of two CPUs, 8 GPUs
    "lone": made({0: "0-1"}, gpus=[0, 0]),
}


@pytest.mark.parametrize(("node", "asked", "expected"), cases("plans/widened.tsv"))
def test_the_nearest_other_cpus_are_added_if_too_few_are_near(
    node: str, asked: str, expected: str
) -> None:
    ranks = zip(cpulists(reply := ask(WIDENED[node], **words(asked))), reply.ranks, strict=True)
    marks = {"local": "", "mixed": "~", "remote": "!"}
    assert " ".join(f"{cpus}{marks[rank.locality]}" for cpus, rank in ranks) == expected


@pytest.mark.parametrize(("node", "asked", "code", "part"), cases("plans/warnings.tsv"))
def test_missing_or_idle_cpus_cause_a_warning(node: str, asked: str, code: str, part: str) -> None:
    warnings = ask(WIDENED[node], **words(asked)).warnings
    messages = [warning.message for warning in warnings if warning.code == code]
    assert len(messages) == bool(part)
    assert all(part in message for message in messages)


@pytest.mark.parametrize(("node", "asked", "each"), cases("plans/asked_cpus.tsv"))
def test_each_rank_asks_for_its_part_of_a_task_s_cpus(node: str, asked: str, each: str) -> None:
    how = words(f"gpus=0 mode=node {asked}" if node == "dgx" else asked)
    assert str(ask(WIDENED[node], **how).request.options.cpus) == each
