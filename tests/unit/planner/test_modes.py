"""Each row of the modes' table, on machines whose answers can be checked by eye."""

from dataclasses import replace
from itertools import chain

import pytest

from affinityd.planner.modes import MODES
from affinityd.topology.model import Core, Topology
from tests.support.asking import ask, lists
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import cases, words


@pytest.mark.parametrize("mode", MODES)
def test_ranks_share_cpus_unless_the_mode_is_unique(mode: str) -> None:
    ranks = ask(machine("dgx-1v"), gpus="0,1,2", mode=mode, share="requested").ranks
    is_unique = sum(len(rank.cpus) for rank in ranks) == len({*chain(*(it.cpus for it in ranks))})
    assert is_unique == MODES[mode].unique


NODES = {
    "four": made({0: "0-7", 1: "8-15"}, gpus=[0, 0, 0, 1]),
    "seven": made({0: "0-6"}, gpus=[0, 0, 0]),
    # Four caches of four cores, two CPUs a core: CPUs 0-15, siblings 16-31.
    "caches": made({0: "0-31"}, threads=2, cores_per_llc=4),
    # One cache has the even CPUs, and another the odd CPUs.
    "odd": replace(
        made({0: "0-3"}, gpus=[0, 0]),
        cores=tuple(Core((cpu,), 0, 0, None, llc=cpu % 2) for cpu in range(4)),
    ),
}


def node(name: str) -> Topology:
    return NODES[name] if name in NODES else machine(name)


@pytest.mark.parametrize(("name", "asked", "expected"), cases("plans/modes.tsv"))
def test_each_mode_divides_a_domain_as_its_row_says(name: str, asked: str, expected: str) -> None:
    assert lists(node(name), f"share=requested {asked}") == expected


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
def test_a_parameter_that_a_mode_does_not_use_causes_a_warning(
    mode: str, heeded: str, ignored: str | None
) -> None:
    asked = words(f"gpus=0 mode={mode} {heeded} {ignored or ''}")
    warnings = ask(machine("dgx-1v"), **asked).warnings
    assert [warning.message for warning in warnings if warning.code == "parameter_ignored"] == (
        [f"{ignored} has no effect in mode {mode}"] if ignored else []
    )
