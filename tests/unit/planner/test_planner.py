"""Plans: partners, cuts, minimums, memory, and what is refused."""

from __future__ import annotations

import pytest

from affinityd.errors import UnsatisfiableError
from affinityd.topology.model import Topology
from tests.support.asking import ask, lists
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
and what is unknown          | unknown | strict=true mode=node | 0-3
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
single_unique | one core | mode=single_unique | rank 1 (GPU 1),1 allowed CPU,a wider cpuset
offline CPUs | half offline | cpuset=2-3 | no CPU is allowed,(0-1)
all reserved | half offline | reserved=0-3 | no CPU is allowed,(all are reserved)
remote | pair | cpuset=4-7 strict=true | strict,rank 0,home is node 1,strict=false
over two nodes | pair | mode=even strict=true | strict,rank 0,home is node 0,strict=false
"""),
)
def test_a_refusal_names_what_is_lacking_and_what_would_work(
    name: str, asked: str, words_of_it: str
) -> None:
    with pytest.raises(UnsatisfiableError) as refusal:
        ask(node(name), **words(asked))
    assert [part for part in words_of_it.split(",") if part not in str(refusal.value)] == []


@pytest.mark.parametrize(
    ("home", "memory_node"), [("0-3", 0), ("16-19", 0), ("8-11", 2), ("24-27", 0)]
)
def test_the_memory_node_is_the_home_node_or_the_nearest_with_memory(
    home: str, memory_node: int
) -> None:
    """Nodes 1 and 3 of this machine have none."""
    reply = ask(machine("threadripper-2990wx"), gpus="0", cpuset=home, mode="node")
    assert reply.ranks[0].memory_node == memory_node


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
