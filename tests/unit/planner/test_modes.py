"""Each row of the modes' table, on machines whose answers can be checked by eye."""

from dataclasses import replace
from itertools import chain

import pytest

from affinityd.planner.modes import MODES
from affinityd.topology.model import Core, Topology
from tests.support.asking import ask, cpulists, homes, lists
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import rows, words


@pytest.mark.parametrize("mode", MODES)
def test_ranks_share_no_cpu_in_a_unique_mode_alone(mode: str) -> None:
    ranks = ask(machine("dgx-1v"), gpus="0,1,2", mode=mode, share="requested").ranks
    is_unique = sum(len(rank.cpus) for rank in ranks) == len({*chain(*(it.cpus for it in ranks))})
    assert is_unique == MODES[mode].unique


NODES = {
    "four": made({0: "0-7", 1: "8-15"}, gpus=[0, 0, 0, 1]),
    "seven": made({0: "0-6"}, gpus=[0, 0, 0]),
    # Four caches of four cores, two CPUs a core: CPUs 0-15, siblings 16-31.
    "caches": made({0: "0-31"}, threads=2, cores_per_llc=4),
    # Two caches: of the even CPUs, and of the odd ones.
    "odd": replace(
        made({0: "0-3"}, gpus=[0, 0]),
        cores=tuple(Core((cpu,), 0, 0, None, llc=cpu % 2) for cpu in range(4)),
    ),
}


def node(name: str) -> Topology:
    return NODES[name] if name in NODES else machine(name)


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    rows("""
all heeds scope node            | dgx-a100 | gpus=0 mode=all scope=node            | 48-63,176-191
all heeds scope socket          | dgx-a100 | gpus=0 mode=all scope=socket          | 0-63,128-191
node is of scope node           | dgx-a100 | gpus=0 mode=node scope=socket         | 48-63,176-191
socket is of scope socket       | dgx-a100 | gpus=0 mode=socket scope=node         | 0-63,128-191
single stays near               | dgx-a100 | gpus=0 mode=single scope=socket       | 48,176
single_unique stays near        | dgx-a100 | gpus=0 mode=single_unique scope=socket | 48,176
core_complex stays near         | dgx-a100 | gpus=0 mode=core_complex scope=socket | 48-51,176-179
even is of the whole machine    | dgx-a100 | gpus=0 mode=even scope=socket         | 0-255
exclusive brings partners       | dgx-a100 | gpus=0 mode=exclusive scope=socket    | 0-63,128-191
single: first core of each home | dgx-1v | gpus=0,4,5 mode=single            | 0,40 20,60 20,60
with any share                  | dgx-1v | gpus=0,4 mode=single share=node   | 0,40 20,60
single_unique on each home      | dgx-1v | gpus=0,4,1 mode=single_unique     | 0,40 20,60 1,41
in the request's order          | dgx-1v | gpus=1,0                          | 0-9,40-49 10-19,50-59
contiguous, balanced         | four | balanced=true                          | 0-1 2-3 4-5 8-9
contiguous, as it falls      | four | balanced=false                         | 0-1 2-3 4-5 8-15
interleaved, balanced        | four | mode=unique_interleaved balanced=true  | 0,3 1,4 2,5 8-9
interleaved, as it falls     | four | mode=unique_interleaved balanced=false | 0,3,6 1,4,7 2,5 8-15
exclusive is never balanced  | four | mode=exclusive balanced=true           | 0-2 3-5 6-7 8-15
even: the rest to the first  | seven | mode=even                             | 0-2 3-4 5-6
the lowest cache first       | caches | mode=core_complex gpus=0,0 cpuset=0-31 | 0-3,16-19 4-7,20-23
the fifth rank begins anew   | caches | mode=core_complex gpus=0,0,0,0,0    | \
0-3,16-19 4-7,20-23 8-11,24-27 12-15,28-31 0-3,16-19
one with a CPU less: last | caches | mode=core_complex cpuset=1-31 gpus=0,0 | 4-7,20-23 8-11,24-27
CPUs count, not cores        | caches | mode=core_complex gpus=0,0,0 cpuset=0-11,16-17 | \
0-3,16-17 4-7 8-11
one that is left is for all  | caches | mode=core_complex gpus=0,0 cpuset=2,17 | 2,17 2,17
by their lowest CPU, allowed or not | odd | mode=core_complex cpuset=1-2         | 2 1
caches of each home node     | dgx-a100 | mode=core_complex gpus=0,2,1           | \
48-51,176-179 16-19,144-147 52-55,180-183
"""),
)
def test_how_ranks_divide(name: str, asked: str, expected: str) -> None:
    assert lists(node(name), f"share=requested {asked}") == expected


def test_even_is_what_nproc_divided_by_ranks_gives() -> None:
    reply = ask(machine("ascend-910b"), mode="even")
    assert cpulists(reply) == [f"{24 * rank}-{24 * rank + 23}" for rank in range(8)]
    assert homes(reply) == list(range(8))


@pytest.mark.parametrize(
    ("mode", "heeded", "ignored"),
    [
        ("node", "max_physical_cores=2 share=requested", "scope=socket"),
        ("all", "scope=socket", "balanced=false"),
        ("socket", "scope=node", "share=node"),
        ("exclusive", "share=node", "balanced=false"),
        ("unique_interleaved", "balanced=false", None),
        ("single", "multithreading=single_logical", "min_physical_cores=2"),
        ("single_unique", "share=node", "max_physical_cores=2"),
        ("core_complex", "min_physical_cores=2 share=node", "balanced=false"),
        ("even", "max_physical_cores=2", "share=node"),
    ],
)
def test_a_parameter_that_a_mode_does_not_use_is_warned_of(
    mode: str, heeded: str, ignored: str | None
) -> None:
    asked = words(f"gpus=0 mode={mode} {heeded} {ignored or ''}")
    warnings = ask(machine("dgx-1v"), **asked).warnings
    assert [warning.message for warning in warnings if warning.code == "parameter_ignored"] == (
        [f"{ignored} has no effect in mode {mode}"] if ignored else []
    )
