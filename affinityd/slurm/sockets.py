"""Slurm's sockets: a GPU's jobs get the cores of its line where these are whole sockets.

slurmd counts packages, or by SlurmdParameters= NUMA nodes or L3 caches; slurmctld counts by the
node's line of slurm.conf. Cores of a part of a package are given if both count such parts. If not,
jobs get other cores, or the node is drained, by release: seen with 22.05, 24.11 and 26.05.

Sources: slurm.conf(5) "SlurmdParameters"; src/interfaces/gres.c (_check_core_range_matches_sock).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from affinityd.slurm.cores import CoreNumbers, SlurmCores
from affinityd.slurm.expected import ExpectedNode
from affinityd.topology.model import Core

NODES = "numa_node_as_socket"
CACHES = "l3cache_as_socket"  #: slurmd takes one of the two
OVERRIDES = "config_overrides"  #: slurmd counts by the node's line, too


@dataclass(frozen=True)
class Sockets:
    """The sockets of a node."""

    cores: SlurmCores
    expected: ExpectedNode | None = None  #: slurmctld's configuration; None: unknown

    def fit(self, cores: CoreNumbers) -> bool:
        """Return whether cores are whole sockets: packages, if the configuration is unknown."""
        is_packages = self.cores.of_packages(cores) == cores
        if self.expected is None or self.expected.cores_per_socket is None:
            return is_packages
        size, parameters = self.expected.cores_per_socket, self.expected.parameters
        is_whole = len(cores) == size * len({core // size for core in cores})
        if is_packages or OVERRIDES in parameters:
            return is_whole
        part = _node if NODES in parameters else _cache
        return is_whole and {NODES, CACHES} & parameters != set() and size == self._size(part)

    def settings(self) -> str | None:
        """Return the settings of slurm.conf for `Cores=` of NUMA nodes; None: each is a package.

        NUMA nodes with unlike numbers of cores cannot be sockets: the text names no numbers.
        """
        nodes = frozenset(core.node for core in self.cores.order)
        packages = frozenset(core.package for core in self.cores.order)
        if len(nodes) <= len(packages):
            return None
        text, size = f"SlurmdParameters={NODES}", self._size(_node)
        if size is None:
            return text
        threads = max(len(core.cpus) for core in self.cores.order)
        line = f"Sockets={len(nodes)} CoresPerSocket={size} ThreadsPerCore={threads}"
        return f"{text} and, in the node's line, {line}"

    def _size(self, part: Callable[[Core], object]) -> int | None:
        """Return how many cores each part has; None: unlike numbers."""
        sizes = {*Counter(map(part, self.cores.order)).values()}
        return sizes.pop() if len(sizes) == 1 else None


def _node(core: Core) -> object:
    return core.node


def _cache(core: Core) -> object:
    return core.llc
