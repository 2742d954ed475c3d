"""Which memory follows a pinned process, and to where."""

from __future__ import annotations

import threading

import pytest

from affinityd.enforce import memory_migration
from affinityd.enforce.memory_migration import (
    DROPPED,
    OUTCOMES,
    MemoryMigrations,
    Nodes,
    PendingMigration,
    destination,
    migration_of,
)
from affinityd.linux.memory_policy import MemoryPolicy
from affinityd.topology.model import Topology
from tests.support.audit_facts import process
from tests.support.machines.by_hand import made

TWO_NODES = made({0: "0-3", 1: "4-7"})
FOUR_NODES = made({0: "0", 1: "1", 2: "2", 3: "3"})
SLIT = (("0", "1", 20), ("0", "2", 12), ("1", "2", 30))
OF_A_GPU = made({0: "0-3", 1: "4-7", 2: ""})  #: its node 2
CXL = made({0: "0-3", 1: "4-7", 2: ""}, memoryless=[0], distances=SLIT)
NO_MEMORY = made({0: "0", 1: "1"}, memoryless=[0, 1])


@pytest.mark.parametrize(
    ("topology", "cpus", "moves"),
    [
        (TWO_NODES, {5}, ({0}, {1})),
        (FOUR_NODES, {1, 2}, ({0, 3}, {1, 2})),
        (OF_A_GPU, {0}, ({1}, {0})),  # a node without CPUs is no source
        (CXL, {0}, ({1}, {2})),  # a node without memory has that of the nearest
        (made({0: "0-7"}), {0}, None),
        (TWO_NODES, {0, 4}, None),  # it runs on every node
        (TWO_NODES, {99}, None),
        (NO_MEMORY, {0}, None),
    ],
)
def test_where_from_and_where_to(
    topology: Topology, cpus: set[int], moves: tuple[set[int], set[int]] | None
) -> None:
    facts = process("0-7", pid=77)
    wish = moves and PendingMigration(77, facts.start, *map(frozenset, moves))
    assert migration_of(topology, facts, frozenset(cpus)) == wish


HERE, NOWHERE, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


@pytest.mark.parametrize(
    ("home", "allowed", "policy", "expected"),
    [
        (HERE, BOTH, MemoryPolicy("local", frozenset()), HERE),
        (BOTH, HERE, None, HERE),
        (NOWHERE, HERE, None, frozenset()),
        (HERE, BOTH, MemoryPolicy("bind", HERE), HERE),
        (HERE, BOTH, MemoryPolicy("bind", NOWHERE), frozenset()),
        (BOTH, HERE, MemoryPolicy("interleave", BOTH), frozenset()),
        (BOTH, BOTH, MemoryPolicy("interleave", BOTH), BOTH),
    ],
)
def test_no_memory_is_moved_to_what_may_not_be_used_or_from_what_was_chosen(
    home: Nodes, allowed: Nodes, policy: MemoryPolicy | None, expected: Nodes
) -> None:
    assert destination(home, allowed, policy) == expected


def test_where_nothing_is_to_be_moved_nothing_is_and_there_are_no_counts() -> None:
    migrations = MemoryMigrations(enabled=False)
    migrations.add(TWO_NODES, process("0"), frozenset({0}))
    assert (migrations.totals, migrations._thread) == ({}, None)


def test_when_more_wait_than_can_the_rest_is_dropped_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_migration, "WAITING", 2)
    migrations = MemoryMigrations(enabled=True)
    migrations._thread = threading.current_thread()  # so that none is started, and all wait
    for _ in range(5):
        migrations.add(TWO_NODES, process("0"), frozenset({0}))
    assert migrations.totals == dict.fromkeys(OUTCOMES, 0) | {DROPPED: 3}
