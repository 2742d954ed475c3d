"""Plans: partners, cuts, minimums, memory, home nodes, reasons, added CPUs, and what is refused."""

from dataclasses import replace

import pytest

from affinityd.errors import UnsatisfiableError
from affinityd.request.document import document
from affinityd.topology.model import Topology
from tests.support.asking import ask, cpulists, homes, lists
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import rows, words

NODES = {
    "pair": made({0: "0-3", 1: "4-7"}),
    # Three near cores, six partners: 0 brings 3 and 6, 1 brings 4 and 7, 2 brings 5 and 8.
    "three": made({0: "0-2", 1: "3-8"}, gpus=[0, 0]),
    # A package of five cores, of which two are near: 0 brings 2, 4; 1 brings 3.
    "ragged": made({0: "0-1", 1: "2-4"}, gpus=[0, 0]),
    # One node over two packages whose CPU numbers alternate; node 1 has a core of the first.
    "astride": made({0: "0-7", 1: "8"}, gpus=[0, 0], packages={0: "0-6:2,8", 1: "1-7:2"}),
    # Node 0 has a core of both packages, nodes 1 and 2 are of one package each.
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
    "no CPU 0": made({0: "0-15"}, threads=2, online="1-15"),  # CPU 8 alone names its core
    "eight threads": made({0: "0-47"}, gpus=[0, 0], threads=8, siblings="adjacent", online="8-47"),
}


def node(name: str) -> Topology:
    return NODES[name] if name in NODES else machine(name)


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    rows("""
48 other cores are dealt to 16 near | dgx-a100 | gpus=0,1 | \
0-7,16-23,32-39,48-55,128-135,144-151,160-167,176-183 \
8-15,24-31,40-47,56-63,136-143,152-159,168-175,184-191
no partner is near to a planned rank | dgx-a100 | gpus=0,2 | 32-63,160-191 0-31,128-159
a near core brings its partners | dgx-a100 | gpus=0,1 mode=unique_interleaved max_physical_cores=9 \
| 0,48,50,52,54,56,58,60,62,128,176,178,180,182,184,186,188,190 \
1,49,51,53,55,57,59,61,63,129,177,179,181,183,185,187,189,191
balanced leaves partners out, too   | three | | 0,3,6 1,4,7
parts as large as they fall | three | mode=unique_interleaved balanced=no | 0,2-3,5-6,8 1,4,7
exclusive brings partners along     | three | mode=exclusive | 0-1,3-4,6-7 2,5,8
near cores alone are balanced       | ragged | | 0,2,4 1,3
only allowed partners are dealt     | ragged | cpuset=0-2,4 | 0,2 1,4
only to allowed near cores          | ragged | cpuset=1-4 gpus=0 | 1-4
CPU order, whatever package         | astride | | 0-3,8 4-7
a package without a near core       | two packages | | 0-3
partners are of a near core's package | bridge | gpus=0,0 | 0-3 4-7
partners count                      | three | min_physical_cores=3 | 0,3,6 1,4,7
the maximum cuts near cores first   | three | mode=exclusive max_physical_cores=1 | 0 2
then partners, round by round       | three | mode=exclusive max_physical_cores=3 | 0-1,3 2,5,8
of every near core in turn          | three | mode=exclusive max_physical_cores=4 | 0-1,3-4 2,5,8
and once more                       | three | mode=exclusive max_physical_cores=5 | 0-1,3-4,6 2,5,8
"""),
)
def test_unique_modes_in_socket_scope(name: str, asked: str, expected: str) -> None:
    assert lists(node(name), f"scope=socket share=requested {asked}") == expected


@pytest.mark.parametrize("mode", ["mode=socket", "mode=all scope=socket"])
@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    rows("""
all of the package                  | three            |                      | 0-8
all of every package of the node    | bridge           |                      | 0-7
if only one of them is allowed, too | bridge           | cpuset=0,5           | 0,5
the rank's own node first           | bridge           | max_physical_cores=2 | 0,4
then the nearest of the others      | bridge           | max_physical_cores=4 | 0,4-6
of others as near the lower number  | equally near     | max_physical_cores=3 | 2-4
another package is no neighbor      | a package a node |                      | 0-1
"""),
)
def test_sharing_modes_in_socket_scope(name: str, asked: str, expected: str, mode: str) -> None:
    assert lists(node(name), f"gpus=0 {mode} {asked}") == expected


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    rows("""
a cut in the order of interleaving | dgx-1v | gpus=0,1 mode=unique_interleaved \
max_physical_cores=2 | 0,2,40,42 1,3,41,43
single has no minimum        | dgx-1v | gpus=0 mode=single min_physical_cores=2        | 0,40
single_unique has none       | dgx-1v | gpus=0 mode=single_unique min_physical_cores=2 | 0,40
as many as there are         | dgx-1v | gpus=0,1,2,3 min_physical_cores=5 max_physical_cores=5 \
cpuset=0-19 | 0-4 5-9 10-14 15-19
shared cores count           | dgx-1v | gpus=0,1 mode=node min_physical_cores=20 | \
0-19,40-59 0-19,40-59
strict takes what is local   | pair    | strict=yes mode=node | 0-3
and what is unknown          | unknown | strict=true mode=node | 0-7
cores by their lowest CPU    | siblings | mode=single cpuset=1,4  | 4
that is online               | no CPU 0 | mode=single              | 1,9
allowed or not               | no CPU 0 | mode=single cpuset=8-15  | 9
the first CPU of each core   | eight threads | multithreading=single_logical | 8,16 24,32
that is allowed              | eight threads | multithreading=single_logical cpuset=10,12-30 | 10 16
the only one of each core    | eight threads | multithreading=single_logical cpuset=9,18 | 9 18
"""),
)
def test_minimum_maximum_and_single_threads(name: str, asked: str, expected: str) -> None:
    assert lists(node(name), f"share=requested {asked}") == expected


@pytest.mark.parametrize(
    ("name", "asked", "words_of_it"),
    rows("""
fewer than the minimum | dgx-1v | gpus=0,1,2,3 min_physical_cores=6 | \
rank 0,5 physical cores,fewer than 6,4 ranks,80 allowed CPUs,min_physical_cores=5
with partners | three | scope=socket share=requested min_physical_cores=4 | \
rank 0,3 physical cores,fewer than 4,min_physical_cores=3
any one rank | dgx-1v | mode=exclusive gpus=0,0,0 min_physical_cores=2 share=node | \
rank 2 (GPU 0),1 physical core,min_physical_cores=1
exclusive | two cores | mode=exclusive | rank 2 (GPU 2),0 physical cores,a wider cpuset
even | two cores | mode=even | rank 2 (GPU 2),0 physical cores,a wider cpuset
single_unique | one core | mode=single_unique min_physical_cores=2 | \
rank 1 (GPU 1),fewer than 1,1 allowed CPU,a wider cpuset
offline CPUs | half offline | cpuset=2-3 | no CPU is allowed,(0-1)
all reserved | half offline | reserved=0-3 | no CPU is allowed,(all are reserved)
remote | pair | cpuset=4-7 strict=true | strict,rank 0,home is node 1,strict=false
over two nodes | pair | mode=even strict=true | strict,rank 0,away from NUMA node 0,strict=false
widened | pair | mode=node cpuset=3-4 cpus=2 strict=true | strict: rank 0,CPUs 4 away from node 0
"""),
)
def test_a_refusal_names_what_is_lacking_and_what_would_work(
    name: str, asked: str, words_of_it: str
) -> None:
    with pytest.raises(UnsatisfiableError) as refusal:
        ask(node(name), **words(asked))
    assert [part for part in words_of_it.split(",") if part not in str(refusal.value)] == []


@pytest.mark.parametrize(
    ("asked", "threads"),
    rows("""
cores of its own             | gpus=0,1                                   | 10 10
shared by two and by one     | gpus=0,1,4 mode=node                       | 10 10 20
at least one                 | gpus=0,1 mode=single                       | 1 1
rounded down                 | gpus=0,0,0 mode=node                       | 6 6 6
after the cut                | gpus=0,1,2 mode=node max_physical_cores=3  | 1 1 1
"""),
)
def test_threads_are_cores_divided_by_the_ranks_that_share_them(asked: str, threads: str) -> None:
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
        (made(TWO, gpus=[1, 0]), "", [1, 0]),  # a GPU's own node
        (made(TWO, gpus=[0, 1]), "cpuset=3-7", [0, 1]),  # one allowed CPU is enough
        (made({**TWO, 2: "8-11"}, distances=ODD_ROWS), "cpuset=4-11", [1]),  # else the nearest
        (made(BARREN, gpus=[2], distances=ODD_ROWS), "", [1]),  # a node without CPUs has distances
        # Of nodes as near the one that is home to fewer, then the lower.
        (made(BARREN, gpus=[2] * 4, distances=EVEN_ROWS), "", [0, 1, 0, 1]),
        # Ranks without a choice are placed first.
        (made(BARREN, gpus=[2, 0, 0], distances=EVEN_ROWS), "", [1, 0, 0]),
        (made(BARREN, gpus=[2, 2], distances=EVEN_ROWS), "gpus=1,0", [0, 1]),  # in ranks' order
        (made(BARREN, gpus=[2, 2], distances=[("0", "2", 30)]), "", [0, 0]),  # missing: farthest
        (made(BARREN, gpus=[2, 2]), "", [0, 1]),  # missing distances are as far
        (made(TWO, gpus=[None] * 3), "", [0, 1, 0]),  # unknown GPUs are spread
        (made(TWO, gpus=[None, 0, None]), "", [1, 0, 0]),  # to where fewest are
        (made(TWO, gpus=[None, None]), "cpuset=4-7", [1, 1]),  # of those with allowed CPUs
        (made(TWO, gpus=[0, None]), "gpus=0,0,1,1,1,1,1", [0, 0, 1, 1, 0, 1, 0]),  # repeats count
        # The CPUs of no node are a node for unknown GPUs, last among the farthest, and home where
        # nothing else is allowed.
        (made({0: "0-3"}, gpus=[0, None], packages=OUTSIDE), "", [0, None]),
        (
            made(BARREN, gpus=[2], packages={0: "0-11"}, distances=[("1", "2", 99)]),
            *("cpuset=0-3,8-11", [0]),
        ),
        (made({0: "0-3"}, packages=OUTSIDE), "cpuset=4-7", [None]),
        # Node 4 is 65 from all, node 7 is 65 from 0 and 1 and 79 from 3.
        (machine("uv2000"), "cpuset=0-15,24-31", [0, 1]),
    ],
)
def test_ranks_that_divide_cores_have_one_home_node_each(
    topology: Topology, asked: str, expected: list[int | None]
) -> None:
    assert homes(ask(topology, **words(f"share=requested mode=single {asked}"))) == expected


FOUR = {0: "0-3", 1: "4-7", 2: "8-11", 3: ""}
#: Nodes 1 and 2 are as near to node 0; nodes 0 and 1 are the nearest to node 3.
FAR_ROWS = [("0", "1-2", 20), ("1", "2", 30), ("0-1", "3", 20), ("2", "3", 40)]
TIED = {
    "own": made(FOUR, gpus=[0], distances=FAR_ROWS),
    "no CPUs": made(FOUR, gpus=[3], distances=FAR_ROWS),
    "both": made(FOUR, gpus=[0, 3], distances=FAR_ROWS),
    "nowhere": made({0: "0-3", 1: "4-7", 2: ""}, gpus=[2, 2]),
    "unknown": made(FOUR, gpus=[None, 0], distances=FAR_ROWS),
    # CPU numbers alternate between the nodes; each has a package of its own.
    "odd": made({0: "0-6:2", 1: "1-7:2"}, gpus=[None], packages={0: "0-6:2", 1: "1-7:2"}),
    "packages": made(FOUR, gpus=[3], packages={0: "0-3,8-9", 1: "4-7,10-11"}, distances=FAR_ROWS),
}


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    rows("""
its own node is no tie               | own      |                    | 0-3 0 local
two nodes tie as the nearest allowed | own      | cpuset=4-11        | 4-11 1 remote
one of them is left                  | own      | cpuset=8-11        | 8-11 2 remote
of a node without CPUs: all are near | no CPUs  |                    | 0-7 0 local
one of them is allowed               | no CPUs  | cpuset=5-11        | 5-7 1 local
none is                              | no CPUs  | cpuset=8-11        | 8-11 2 remote
without distances all tie            | nowhere  |                    | 0-7 0 local 0-7 0 local
other ranks change nothing           | both     |                    | 0-3 0 local 0-7 0 local
unknown ties with all                | unknown  |                    | 0-11 0 unknown 0-3 0 local
of the allowed                       | unknown  | cpuset=6-9 gpus=0  | 6-9 1 unknown
a maximum takes one node first       | odd      | max_physical_cores=5 | 0-2,4,6 0 unknown
sockets of all of them               | packages | mode=socket        | 0-11 0 mixed
their own nodes first                | packages | mode=socket max_physical_cores=8 | 0-7 0 local
more are added beyond all of them    | no CPUs  | cpus=10            | 0-9 0 mixed
what was asked for is near           | no CPUs  | cpus=8             | 0-7 0 local
in a unique mode, too                | no CPUs  | mode=exclusive cpus=6 | 0-5 0 local
and beyond                           | no CPUs  | mode=exclusive cpus=9 | 0-8 0 mixed
"""),
)
def test_ranks_that_share_have_all_nodes_that_are_equally_near(
    name: str, asked: str, expected: str
) -> None:
    """Each rank's CPUs, home node and locality."""
    reply = ask(TIED[name], **words(f"mode=node {asked}"))
    ranks = zip(cpulists(reply), reply.ranks, strict=True)
    assert " ".join(f"{cpus} {rank.home_node} {rank.locality}" for cpus, rank in ranks) == expected


@pytest.mark.parametrize(
    ("asked", "reason"),
    rows("""
where the GPU is    |                     | GPU 0 is on NUMA node 0
how many cores      |                     | unique_contiguous: 8 cores of the 8 of node 0
reserved CPUs       | reserved=0-1,8      | CPUs 0-1,8 of node 0 are reserved
the cpuset          | cpuset=0-5          | CPUs 6-15 of node 0 are outside the cpuset or mask
of a socket         | cpuset=0-15 mode=socket | \
CPUs 16-31 of the socket of node 0 are outside the cpuset or mask
of the machine      | cpuset=0-15 mode=even | \
CPUs 16-31 of the machine are outside the cpuset or mask
the maximum         | max_physical_cores=3 | max_physical_cores leaves out 5 cores
one CPU a core      | multithreading=single_logical | \
single_logical leaves out the siblings 1,3,5,7,9,11,13,15
below the maximum   | multithreading=single_logical max_physical_cores=1 | \
single_logical leaves out the siblings 1
balanced            | gpus=0,0,0          | balanced leaves 2 cores of node 0 unused
a remainder         | gpus=0,0,0 balanced=false | an equal division leaves 2 cores of node 0 unused
blocks              | share=node          | \
share=node: each GPU of node 0 has its own block; balanced may leave cores of it unused
also where it fits  | share=auto          | \
share=node: each GPU of node 0 has its own block; balanced may leave cores of it unused
not balanced        | share=node mode=exclusive | share=node: each GPU of node 0 has its own block
other ranks         | gpus=0,0 mode=node  | node: 8 cores of the 8 of node 0, shared by 2 ranks
another home        | cpuset=16-31        | \
that node has no allowed CPU; node 1 is the nearest that has one (distance 20)
unknown             | gpus=1              | \
the machine does not say on which NUMA node GPU 1 is
spread              | gpus=0,1            | node 1 was home to the fewest ranks
where it may be     | gpus=1 mode=node    | any allowed CPU may be near: those of nodes 0-1
equally near nodes  | gpus=2 mode=node    | \
that node has no CPU; nodes 0-1 are the nearest that have one (distance unknown)
of both             | gpus=2 mode=node reserved=0 | CPUs 0 of nodes 0-1 are reserved
of both sockets     | gpus=2 mode=socket reserved=0 | \
CPUs 0 of the socket of nodes 0-1 are reserved
no CPUs             | gpus=2              | \
that node has no CPU; node 0 is the nearest that has one (distance unknown)
even                | mode=even           | even: 16 cores of the 16 of nodes 0-1
even, elsewhere     | mode=even gpus=0,2  | its block begins on node 1
"""),
)
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


def test_a_maximum_that_leaves_out_no_core_is_no_reason() -> None:
    (rank,) = ask(made({0: "0-7"}, gpus=[0]), gpus="0", max_physical_cores="8").ranks
    assert [reason for reason in rank.reasons if "max_physical_cores" in reason] == []


def test_a_rank_that_shares_some_of_its_cores_has_threads_for_the_most_shared_one() -> None:
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


#: Two nodes of four CPUs, a GPU on the first.
PAIR = made({0: "0-3", 1: "4-7"})
WIDENED = {
    "pair": PAIR,
    "both": made({0: "0-3", 1: "4-7"}, gpus=[0, 1]),
    # Node 1 is nearer to node 0 than node 2 is; cores of two CPUs: 0 and 6, 1 and 7, …
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


@pytest.mark.parametrize(
    ("node", "asked", "expected"),
    rows("""
tasks on CPUs of two nodes share both  | pair | gpus=0,0 mode=node cpuset=3-4 cpus=1  | 3-4~ 3-4~
in a unique mode each has one          | pair | gpus=0,0 cpuset=3-4 cpus=1            | 3 4!
no more are added than were asked for  | pair | mode=node cpuset=3-6 cpus=2           | 3-4~
where enough are near nothing changes  | pair | mode=node cpuset=0-7 cpus=2           | 0-3
or as many as there are                | pair | mode=node cpus=99                     | 0-7~
each core counts once                  | pair | mode=node cpus=7                      | 0-6~
the nearest node's cores, whole ones   | chain | mode=node cpus=5                    | 0-1,4,6-7,10~
CPUs that are given count | chain | mode=node cpus=4 multithreading=single_logical    | 0-1,4-5~
ranks that share leave others' near CPUs | both | mode=node cpuset=0-1,4-7 cpus=4     | 0-1 4-7
as ranks that do not, while these use them | both | cpuset=0-1,4-7 cpus=3 balanced=no | 0-1 4-7
what balanced leaves idle is taken     | both | cpuset=0-1,4-7 cpus=3                 | 0-1,6~ 4-5,7
so is the rest of an equal division    | pair | gpus=0,0 cpuset=0-2 cpus=2            | 0,2 1
cores are not cut in two               | chain | gpus=0,0 cpus=3             | 0,4,6,10~ 1,5,7,11~
near cores stay with the rank of old   | chain | gpus=0,0 cpus=4             | 0,4,6,10~ 1,5,7,11~
one core a rank | pair | gpus=0,0 mode=single_unique cpuset=3-5 cpus=2                | 3 4!
the maximum cuts all the same          | pair | cpus=6 max_physical_cores=5           | 0-4~
caches do not grow | caches | gpus=0,0 mode=core_complex cpuset=2,4-7 cpus=2          | 2 2
all is far: remote, not widened        | pair | cpuset=4-7 mode=node cpus=2           | 4-7!
a socket is widened beyond itself      | socket | mode=socket cpus=5                  | 0-4~
what a socket has anyway is no widening | socket | mode=socket cpus=4                | 0-3~
a GPU's block is enough                | dgx | gpus=0 cpus=16                        | 48-55,176-183
it is left where it is too small       | dgx | gpus=0 cpus=20                        | 48-63,176-191
but not by ranks that plan by themselves | dgx | gpus=0 cpus=40 share=node           | 48-55,176-183
"""),
)
def test_where_too_few_cpus_are_near_the_nearest_others_are_added(
    node: str, asked: str, expected: str
) -> None:
    """`~` marks ranks that are mixed, `!` those that are remote."""
    ranks = zip(cpulists(reply := ask(WIDENED[node], **words(asked))), reply.ranks, strict=True)
    marks = {"local": "", "mixed": "~", "remote": "!"}
    assert " ".join(f"{cpus}{marks[rank.locality]}" for cpus, rank in ranks) == expected


@pytest.mark.parametrize(
    ("node", "asked", "code", "part"),
    rows("""
all ranks of a node together | pair | gpus=0,0 rank=1 mode=node cpuset=2-5 cpus=2 | widened | \
rank 1 has CPUs 4-5 away from node 0, its home: 2 allowed CPUs are there, and 4 were asked for
also those that a rank does not see | dgx | LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 mode=node \
CUDA_VISIBLE_DEVICES=0 cpuset=16-23,48-49 AFFINITYD_ALLOWED=16-23,48-49 | widened | \
2 allowed CPUs are there, and 10 were asked for
none near | pair | gpus=0,0 cpuset=3-4 cpus=1 | remote_home | \
rank 1 has CPUs away from NUMA node 0, where its GPU 0 is
of a socket | socket | mode=socket cpus=4 | widened |
enough        | dgx | gpus=0 cpus=16            | parameter_ignored |
a small block | dgx | gpus=0 cpus=40 share=node | parameter_ignored | cpus=40 is more than the 16
no more are allowed | pair | mode=node cpus=99 | parameter_ignored |
left          | dgx | gpus=0 cpus=20            | share_unavailable | fewer allowed cores than GPUs
idle: of no GPU's node | pair | mode=node cpuset=2-7 cpus=2 | idle_cpus | 4 allowed CPUs (4-7)
less those that came in | pair | mode=node cpuset=2-7 cpus=3 | idle_cpus | 3 allowed CPUs (5-7)
not where nothing was asked for | pair | mode=node cpuset=2-7        | idle_cpus |
nor near ones                   | pair | mode=single cpuset=0-3 cpus=1 | idle_cpus |
"""),
)
def test_cpus_that_are_lacking_or_stay_idle_are_warned_of(
    node: str, asked: str, code: str, part: str
) -> None:
    warnings = ask(WIDENED[node], **words(asked)).warnings
    messages = [warning.message for warning in warnings if warning.code == code]
    assert len(messages) == bool(part)
    assert all(part in message for message in messages)


def test_a_widened_rank_s_reason_counts_near_and_requested_cpus() -> None:
    reply = ask(PAIR, gpus="0,0", mode="node", cpuset="2-5", cpus="2")
    added = "2 allowed CPUs, and 4 were asked for: CPUs 4-5 of other nodes were added"
    assert all(f"node 0 has {added}" in rank.reasons for rank in reply.ranks)
    assert document(reply).request.cpus == 2


@pytest.mark.parametrize(
    ("node", "asked", "each"),
    rows("""
a task with one GPU              | pair | AFFINITYD_CPUS=4 cpuset=0-7                    | 4
a task's GPUs divide them        | pair | gpus=0,0 AFFINITYD_CPUS=4                      | 2
none gets less than its part     | pair | gpus=0,0 AFFINITYD_CPUS=3                      | 2
two tasks on a GPU               | pair | gpus=0 ranks=2 rank=1 AFFINITYD_CPUS=2         | 2
tasks on a GPU of the job's        | pair | job=0 ranks=2 rank=1 AFFINITYD_CPUS=2          | 2
a lone task: all it may use      | pair | SLURM_JOB_ID=1 cpuset=2-7                  | 6
whole CPUs                       | pair | ranks=4 rank=0 SLURM_JOB_ID=1 cpuset=2-7   | 1
no more than the job's           | pair | SLURM_JOB_ID=1 cpuset=2-7 SLURM_CPUS_ON_NODE=3       | 3
nor than there are               | pair | AFFINITYD_CPUS=9 cpuset=2-7                    | 6
a node of its own, by a number   | pair | AFFINITYD_CPUS=8                               | 8
by a part: the node's cores a GPU | pair | SLURM_JOB_ID=1                            | 8
a rank of an unknown number      | pair | gpus=0,0 rank=1 AFFINITYD_CPUS=4               | 4
cpus is each rank's as it stands | pair | cpus=3                                    | 3
nothing                          | pair |                                           | None
all of a node: its GPU's part    | dgx | SLURM_JOB_ID=1                              | 16
all but a core that Slurm keeps  | dgx | SLURM_JOB_ID=1 cpuset=1-127,129-255         | 16
one thread of each core          | dgx | SLURM_JOB_ID=1 cpuset=0-127                 | 16
as many cores as GPUs            | lone | gpus=0 SLURM_JOB_ID=1                      | 1
a number that was asked for      | dgx | AFFINITYD_CPUS=64                               | 64
a pod's request, among others    | dgx | SLURM_JOB_ID=1 SLURM_CPUS_ON_NODE=64                  | 64
a part of a node was counted out | dgx | SLURM_JOB_ID=1 cpuset=0-63                  | 64
"""),
)
def test_each_rank_asks_for_its_part_of_a_task_s_cpus(node: str, asked: str, each: str) -> None:
    how = words(f"gpus=0 mode=node {asked}" if node == "dgx" else asked)
    assert str(ask(WIDENED[node], **how).request.options.cpus) == each
