"""A measurement as tables."""

from __future__ import annotations

from affinityd.cli.render.measure import lines
from affinityd.measure.document import LATENCY
from tests.support.measurements import GPU, UNPLACED, copies, measurement, memory

FOUND = measurement(
    [
        memory(0, 0, 38e9),
        memory(0, 0, 95e-9, LATENCY),
        memory(1, 0, 15.2e9),
        memory(1, 0, 1.4e-7, LATENCY),
        copies(1, 45.9e9),
        copies(1, None, UNPLACED, why="it is used"),
        copies(0, None, UNPLACED, why="it is used"),
        copies(0, 55.04e9),
        copies(2, None, why="outside"),
        memory(2, 0, None, why="outside"),
    ],
    gpus=[GPU, UNPLACED],
    notices=["virtual"],
)

TABLE = """\
memory, read by one thread, GB/s (*: near)
CPUs of  memory 0
 node 0     38.0*
 node 1     15.2

memory, latency of a load, ns (*: near)
CPUs of  memory 0
 node 0       95*
 node 1      140

host to device, pinned, GB/s (*: near)
CPUs of  GPU 0
 node 0  55.0*
 node 1  45.9

note: GPU 1 from nodes 0-1: it is used
note: memory of node 0, GPU 0 from node 2: outside
note: virtual
it is so"""


def test_the_tables_come_first_then_missing_figures_then_the_sentence() -> None:
    assert "\n".join(lines(FOUND, color=False)) == TABLE
