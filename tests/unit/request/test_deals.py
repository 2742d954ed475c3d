"""Which GPUs Slurm deals to the tasks of a step, by the sources of its releases."""

from __future__ import annotations

import pytest

from affinityd.cpuset import format_list, parse_list
from affinityd.request.step.deals import deals, parse_binding
from affinityd.request.step.slots import slots
from tests.support.tables import rows


@pytest.mark.parametrize(
    ("bind", "slices", "cores", "expected"),
    rows("""
22.05 by turns, 23.02 fills    | gpu:single:2      | 0 4 1 5 2 6 3 7 | 0-3 0-3 4-7 4-7 | \
0 2 1 3 0 2 1 3 ; 0 2 0 2 1 3 1 3
from 23.11 on only the latter  | gres/gpu:single:2 | 0 4 1 5 2 6 3 7 | 0-3 0-3 4-7 4-7 | \
0 2 0 2 1 3 1 3
a GPU all of whose cores it has | gres/gpu:single:1 | 0-1 0-1 | 0-7 0-1 | 1 0
no GPU is near                 | gres/gpu:single:1 | 8 9     | 0-3 4-7 | 0 1
more tasks than places         | gres/gpu:single:1 | 0 1 2   | 0-3 4-7 | 0 1 0
to 23.02 the first have the first | gpu:per_task:1 | 4 0 5 1 | 0-3 0-3 4-7 4-7 | 0 1 2 3
near ones first                | gres/gpu:per_task:1 | 4 0 5 1 | 0-3 0-3 4-7 4-7 | 2 0 3 1
then any                       | gres/gpu:per_task:1 | 0 1 2 4 | 0-3 0-3 4-7 4-7 | 0 1 2 3
two a task                     | gres/gpu:per_task:2 | 4 0   | 0-3 0-3 4-7 4-7 | 2-3 0-1
places, or the node's numbers  | gpu:map_gpu:1,2   | 0 1     | 0-3 0-3 4-7      | 1 2 ; 0 1
only places                    | gpu:map_gpu:0     | 0       | 0-3 0-3          | 0
masks                          | gres/gpu:mask:6   | 0       | 0-3 0-3 4-7      | 1-2 ; 0-1
not known here                 | gpu:of_the_future | 0 1     | 0-3 0-3          |
"""),
)
def test_gpus_are_dealt_as_by_slurm(bind: str, slices: str, cores: str, expected: str) -> None:
    """The step's GPUs are the node's from 1 on."""
    ways = [list(map(parse_list, cores.split()))]
    tasks = list(map(parse_list, slices.split()))
    found = deals(parse_binding(bind), tasks, ways, range(1, len(ways[0]) + 1))
    assert " ; ".join(" ".join(map(format_list, deal)) for deal in found) == expected


def test_tasks_that_may_have_the_same_gpu_have_no_more_slots_than_they_need() -> None:
    """In one deal neighbors share a GPU, in the other every second task does."""
    pairs = [frozenset({task // 2}) for task in range(8)]
    turns = [frozenset({task % 4}) for task in range(8)]
    found = slots([pairs, turns], 8)
    for deal in (pairs, turns):
        assert len({(*gpus, *slot) for gpus, slot in zip(deal, found, strict=True)}) == 8
    assert {most for _, most in found} == {2}
