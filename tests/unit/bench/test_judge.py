from __future__ import annotations

import pytest

from affinityd.cpuset import parse_list
from bench.compare.judge import Answer, judge
from tests.support.reports import asked

#: Sentence: machine, allowed CPUs, GPUs, each rank's CPUs (-: left as it was), unique, verdict.
CASES = {
    "near": ("two nodes", "0-15", "0,1", "0-3,8-11 4-7,12-15", True, "right"),
    "a part of what is near": ("two nodes", "0-15", "0,1", "0,8 4,12", True, "right"),
    "one CPU is far": ("two nodes", "0-15", "0,1", "0-4,8-11 5-7,13-15", True, "far"),
    "exchanged": ("two nodes", "0-15", "1,0", "0-3,8-11 4-7,12-15", True, "far"),
    "no CPU at all": ("two nodes", "0-15", "0", "", True, "far"),
    "one core for two": ("two nodes", "0-15", "0,2", "0-1,8-9 1-2,9-10", True, "overlapping"),
    "a core's halves": ("two nodes", "0-15", "0,2", "0 8", True, "overlapping"),
    "shared, and no promise": ("two nodes", "0-15", "0,2", "0-3,8-11 0-3,8-11", False, "right"),
    "half a core": ("two nodes", "0-15", "0,1", "0,8 4", True, "split"),
    "half a core, which is all": ("two nodes", "0-7", "0,1", "0 4", True, "right"),
    "left on two nodes": ("two nodes", "0-15", "0", "-", False, "unpinned"),
    "left on its node": ("two nodes", "0-3", "0", "-", False, "right"),
    "left, and cores promised": ("two nodes", "0-3", "0", "-", True, "unpinned"),
    "left on one node": ("one node", "0-15", "0,1", "- -", False, "right"),
    "no CPU is near": ("two nodes", "0-3", "1", "0-3", False, "right"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_answer_is_judged(case: tuple[str, str, str, str, bool, str]) -> None:
    machine, allowed, gpus, ranks, unique, verdict = case
    given = [None if it == "-" else parse_list(it) for it in ranks.split(" ")]
    assert judge(asked(machine, allowed, gpus), Answer(given), unique=unique) == verdict
