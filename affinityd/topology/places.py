"""The packages of a machine with their NUMA nodes, as pictures show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from affinityd.topology.model import Topology


@dataclass(frozen=True)
class Place:
    """Packages, and the NUMA nodes that have CPUs there: of one of the two there is only one."""

    packages: tuple[int, ...]  #: (): not known
    nodes: tuple[int | None, ...]  #: None: the CPUs that no node lists


def places(topology: Topology) -> Iterator[Place]:
    """Yield packages by number, then the nodes that are on several, or on unknown ones."""
    owners = {
        number: {core.package for core in topology.node_cores[number]}
        for number in topology.nodes_with_cpus
    }
    # A core of no package belongs beneath none.
    torn = {None}.union(*(packages for packages in owners.values() if len(packages) > 1))
    for package in sorted(_known({core.package for core in topology.cores} - torn)):
        yield Place((package,), tuple(node for node in owners if package in owners[node]))
    for node, packages in owners.items():
        if packages & torn:
            yield Place(tuple(sorted(_known(packages))), (node,))


def _known(packages: set[int | None]) -> set[int]:
    return {package for package in packages if package is not None}
