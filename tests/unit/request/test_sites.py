"""GPUs and CPUs that sites assign to each other by hand."""

from dataclasses import replace

import pytest

from affinityd.cpuset import CpuSet, parse_list
from affinityd.request.parameters import parse_request
from affinityd.request.resolve import answer
from affinityd.topology.model import Node, Topology
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import cases, words


def topology_of(described: str) -> Topology:
    """Return a named machine, or one with facts like `threads=2 nodes=0-7/8-15 gpus=1,0`."""
    if "=" not in described:
        return machine(described)
    facts = words(described)
    topology = made(
        dict(enumerate(facts["nodes"].split("/"))),
        [int(node) for node in facts["gpus"].split(",")],
        threads=int(facts["threads"]),
        distances=[
            (one, other, int(distance))
            for one, other, distance in (row.split(":") for row in facts["distances"].split(";"))
        ],
    )
    vendor, pci_id = facts.get("vendor", "nvidia"), facts.get("pci_id")
    gpus = tuple(replace(gpu, vendor=vendor, pci_id=pci_id) for gpu in topology.gpus)
    return replace(topology, gpus=gpus)


def cpus_of_ranks(listed: str) -> tuple[CpuSet, ...]:
    every, is_equal, each = listed.partition("/")
    if not is_equal:
        return tuple(map(parse_list, listed.split()))
    cpus, size = sorted(parse_list(every)), int(each)
    return tuple(frozenset(cpus[i : i + size]) for i in range(0, len(cpus), size))


@pytest.mark.parametrize(("source", "name", "options", "cpus", "gpus"), cases("sites.tsv"))
def test_a_site_s_assignment_of_gpus_and_cpus_is_found_in_both_directions(
    source: str, name: str, options: str, cpus: str, gpus: str
) -> None:
    topology, given, ranks = topology_of(name), words(options), cpus_of_ranks(cpus)
    node = Node(topology, parse_list(given.pop("reserved", "")))
    request = parse_request([("choose", "gpu"), *given.items()])
    reply = answer(node, request._replace(task=replace(request.task, masks=ranks)))
    chosen: dict[int, list[str]] = {rank: [] for rank in range(len(ranks))}
    for rank, entry in zip(reply.ranks, reply.entries, strict=True):
        chosen[rank.rank].append(entry)
    assert " ".join(map(",".join, chosen.values())) == gpus, source
    assert [rank.cpus for rank in reply.ranks] == [ranks[rank.rank] for rank in reply.ranks]

    listed = gpus.replace(" ", ",")
    planned = answer(node, parse_request([("gpus", listed), *given.items()]))
    owners = [rank for rank, names in chosen.items() for _ in names]
    for owner, place in zip(owners, planned.ranks, strict=True):
        assert place.cpus & ranks[owner], source
        assert ranks[owner] <= place.cpus or len(chosen[owner]) > 1
        assert place.locality in {"local", "mixed"}
