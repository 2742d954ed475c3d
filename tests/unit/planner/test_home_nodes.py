"""Home nodes and locality in an answer."""

from __future__ import annotations

import pytest

from affinityd.topology.model import Topology
from tests.support.asking import ask, codes, homes
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import words

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
def test_home_nodes(topology: Topology, asked: str, expected: list[int | None]) -> None:
    assert homes(ask(topology, **words(f"share=requested mode=node {asked}"))) == expected


@pytest.mark.parametrize(
    ("topology", "asked", "expected"),
    [
        (made(TWO, gpus=[0]), "", "local"),
        (made(TWO, gpus=[0]), "cpuset=4-7", "remote"),
        (made(TWO, gpus=[None]), "", "unknown"),
        (made(BARREN, gpus=[2]), "", "remote"),
        (made({0: "0-3"}, gpus=[None]), "", "local"),  # the only node
        (made({0: "0-3", 1: ""}, gpus=[1]), "", "local"),  # the only one with CPUs
        (made(TWO, gpus=[1], online="0-3"), "", "local"),  # that are online
        (made({0: "0-3"}, packages=OUTSIDE), "cpuset=4-7", "remote"),  # CPUs of no node
    ],
)
def test_locality(topology: Topology, asked: str, expected: str) -> None:
    reply = ask(topology, **words(f"mode=node {asked}"))
    assert reply.ranks[0].locality == expected
    warned = {"local": [], "remote": ["remote_home"], "unknown": ["unknown_locality"]}
    assert codes(reply) == warned[expected]
