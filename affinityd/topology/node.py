"""The node that plans are made on."""

from __future__ import annotations

from dataclasses import dataclass

from affinityd.config.switch import ON
from affinityd.cpuset import CpuSet
from affinityd.topology.model import Topology


@dataclass(frozen=True, eq=False)  # to compare two would compare two machines, core by core
class Node:
    """What plans are made from; replaced as a whole, never changed."""

    topology: Topology
    reserved: CpuSet = frozenset()
    generation: int = 1
    replayed: bool = False  #: it is not the machine that it was read on
    switch: str = ON  #: what AFFINITYD says for the node
