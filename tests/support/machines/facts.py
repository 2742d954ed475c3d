"""The named machines of all tests: built-in ones, and those of tests/data/machines."""

import json
from functools import cache

from affinityd.machines import NAMES, build, load
from affinityd.topology.model import Topology
from tests.support.paths import DATA

HERE = DATA / "machines"

#: Machines only for tests; each file says what is odd about its machine, and its source.
TEST_NAMES = tuple(sorted(path.stem for path in HERE.glob("*.json")))

ALL_NAMES = (*NAMES, *TEST_NAMES)


@cache
def machine(name: str) -> Topology:
    """Return a named machine, which is frozen, so that all tests can share it."""
    if name in NAMES:
        return load(name)
    return build(json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")))
