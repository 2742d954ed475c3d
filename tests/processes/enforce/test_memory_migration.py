"""Which memory follows a pinned process, and what comes of it: the real call, on the nodes here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.model import ProcessFacts
from affinityd.enforce import memory_migration
from affinityd.enforce.memory_migration import (
    DROPPED,
    LEFT,
    MOVED,
    OUTCOMES,
    REFUSED,
    MemoryMigrations,
    Nodes,
    PendingMigration,
    destination,
    migration_of,
)
from affinityd.linux import syscalls
from affinityd.linux.memory_policy import MemoryPolicy
from affinityd.linux.processes import stat_of
from affinityd.linux.syscalls import SYS_NICE
from affinityd.topology.model import Topology
from tests.processes.linux.test_memory_policy import SECCOMP
from tests.support.audit_facts import process
from tests.support.child_python import said
from tests.support.children import sleeping
from tests.support.machines.by_hand import made

HERE, NOWHERE = frozenset({0}), frozenset({1})  #: nodes with memory on this machine, and without
TWO_NODES = made({0: "0-3", 1: "4-7"})
ONE_NODE = made({0: "0-7"})
SLIT = (("0", "1", 20), ("0", "2", 12), ("1", "2", 30))

only_node_0 = pytest.mark.skipif(
    Path("/sys/devices/system/node/node1").exists(),
    reason="this machine has a second node",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")


@pytest.mark.parametrize(
    ("topology", "cpus", "far", "home"),
    [
        pytest.param(TWO_NODES, {5}, {0}, {1}, id="from the other node to its own"),
        pytest.param(
            *(made({0: "0", 1: "1", 2: "2", 3: "3"}), {1, 2}, {0, 3}, {1, 2}),
            id="of two nodes to two nodes",
        ),
        pytest.param(
            *(made({0: "0-3", 1: "4-7", 2: ""}), {0}, {1}, {0}),
            id="a node without CPUs is a GPU's memory and let alone",
        ),
        pytest.param(
            *(made({0: "0-3", 1: "4-7", 2: ""}, memoryless=[0], distances=SLIT), {0}, {1}, {2}),
            id="a node without memory has that of the nearest",
        ),
    ],
)
def test_where_from_and_where_to(
    topology: Topology, cpus: set[int], far: set[int], home: set[int]
) -> None:
    facts = process("0-7", pid=77)
    wish = migration_of(topology, facts, frozenset(cpus))
    assert wish == PendingMigration(77, facts.start, frozenset(far), frozenset(home))


@pytest.mark.parametrize(
    ("topology", "cpus"),
    [
        pytest.param(ONE_NODE, {0}, id="a machine of one node"),
        pytest.param(TWO_NODES, {0, 4}, id="it runs on every node"),
        pytest.param(TWO_NODES, {99}, id="it runs on CPUs that are not there"),
        pytest.param(made({0: "0-3", 1: "4-7"}, memoryless=[0, 1]), {0}, id="there is no memory"),
    ],
)
def test_there_is_nothing_to_move(topology: Topology, cpus: set[int]) -> None:
    assert migration_of(topology, process("0"), frozenset(cpus)) is None


BOTH = frozenset({0, 1})


@pytest.mark.parametrize(
    ("home", "allowed", "policy", "expected"),
    [
        (HERE, BOTH, MemoryPolicy("default", frozenset()), HERE),
        (HERE, BOTH, MemoryPolicy("local", frozenset()), HERE),
        (HERE, BOTH, None, HERE),
        (BOTH, HERE, None, HERE),
        (NOWHERE, HERE, None, frozenset()),
        (HERE, BOTH, MemoryPolicy("bind", HERE), HERE),
        (HERE, BOTH, MemoryPolicy("bind", NOWHERE), frozenset()),
        (HERE, BOTH, MemoryPolicy("interleave", BOTH), frozenset()),
        (BOTH, HERE, MemoryPolicy("interleave", BOTH), frozenset()),
        (BOTH, BOTH, MemoryPolicy("interleave", BOTH), BOTH),
    ],
)
def test_nobody_is_moved_to_what_it_may_not_use_or_from_what_it_has_chosen(
    home: Nodes, allowed: Nodes, policy: MemoryPolicy | None, expected: Nodes
) -> None:
    assert destination(home, allowed, policy) == expected


def facts_of(pid: int) -> ProcessFacts:
    stat = stat_of(pid)
    assert stat is not None
    return replace(process("0", pid=pid), start=stat.start)


def counts(migrations: MemoryMigrations, number: int) -> Mapping[str, int]:
    """Return the outcomes that there were, once there are as many."""
    end = time.monotonic() + 10
    while sum(migrations.totals.values()) < number:
        assert time.monotonic() < end, migrations.totals
        time.sleep(0.001)
    assert tuple(migrations.totals) == OUTCOMES
    return {outcome: count for outcome, count in migrations.totals.items() if count}


@only_node_0
def test_processes_are_moved_one_after_the_other_and_counted() -> None:
    """Node 1 of the plan is none of this machine's: nothing of a process is there, or may be."""
    migrations = MemoryMigrations(enabled=True)
    with sleeping() as child, sleeping() as other:
        migrations.add(TWO_NODES, facts_of(child.pid), frozenset({0}))
        migrations.add(TWO_NODES, facts_of(other.pid), frozenset({4}))
        assert counts(migrations, 2) == {MOVED: 1, LEFT: 1}
    assert migrations.refusal is None


@only_node_0
def test_one_that_has_ended_and_one_that_has_its_number_by_now_are_not_counted() -> None:
    migrations = MemoryMigrations(enabled=True)
    with sleeping() as ended:
        gone = facts_of(ended.pid)
    with sleeping() as child:
        facts = facts_of(child.pid)
        for it in (gone, replace(facts, start=facts.start - 1)):
            migrations.add(TWO_NODES, it, frozenset({0}))
        migrations.add(TWO_NODES, facts, frozenset({4}))
        assert counts(migrations, 1) == {LEFT: 1}


def test_the_memory_of_another_process_by_the_same_number_is_not_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[int]()

    def note(pid: int, *_: object) -> int:
        asked.append(pid)
        return 0

    monkeypatch.setattr(syscalls, "migrate_pages", note)
    monkeypatch.setattr(syscalls, "lay_down", lambda _: None)  # this thread is the tests' own
    with sleeping() as child:
        start = facts_of(child.pid).start
        for began in (start - 1, start):
            wish = PendingMigration(child.pid, began, far=frozenset({1}), home=frozenset({0}))
            MemoryMigrations(enabled=True)._outcome(wish)
        assert asked == [child.pid]


def test_where_nothing_is_to_be_moved_nothing_is_and_there_are_no_counts() -> None:
    migrations = MemoryMigrations(enabled=False)
    migrations.add(TWO_NODES, process("0"), frozenset({0}))
    assert migrations.totals == {}
    assert migrations._thread is None


def test_who_wants_more_than_can_wait_is_not_held_up_and_the_rest_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_migration, "WAITING", 2)
    migrations = MemoryMigrations(enabled=True)
    migrations._thread = threading.current_thread()  # so that none is started, and all wait
    for _ in range(5):
        migrations.add(TWO_NODES, process("0"), frozenset({0}))
    assert migrations.totals == dict.fromkeys(OUTCOMES, 0) | {DROPPED: 3}


#: Wants the memory of the process in argv moved, and tells what came of it.
WANT = """
import sys, time
from tests.processes.enforce.test_memory_migration import (
    MemoryMigrations, TWO_NODES, counts, facts_of
)
migrations = MemoryMigrations(enabled=True)
migrations.add(TWO_NODES, facts_of(int(sys.argv[1])), frozenset({0}))
print(counts(migrations, 1), migrations.refusal)
"""

#: Python itself may be where another user reads nothing: all that is needed comes first.
AS_A_USER = "import ctypes, os, tests.processes.enforce.test_memory_migration; os.setuid(65534)"
NO_MIGRATE_PAGES = f"{SECCOMP}\nrefuse(NUMBERS[os.uname().machine][2], errno.EPERM)"


@only_node_0
@needs_root
@pytest.mark.parametrize("before", [AS_A_USER, NO_MIGRATE_PAGES], ids=["user", "filter"])
def test_what_the_kernel_refuses_is_counted_and_said(before: str) -> None:
    with sleeping() as child:
        told = said(f"{before}\n{WANT}", str(child.pid))
        assert told == (
            f"{ {REFUSED: 1} } the memory of process {child.pid} was not moved: EPERM: another "
            "user's memory takes CAP_SYS_PTRACE, and a seccomp filter has to allow capset and "
            "migrate_pages: affinityd.service.d/enforce.conf for systemd"
        )


@only_node_0
@needs_root
@pytest.mark.parametrize(
    ("powers", "outcome"), [("+sys_nice", REFUSED), ("+sys_nice,+sys_ptrace", MOVED)]
)
def test_the_memory_of_who_may_do_more_takes_one_capability(powers: str, outcome: str) -> None:
    confined = ("setpriv", f"--bounding-set=-all,{powers}", "--inh-caps=-all")
    with sleeping() as child:
        told = said(WANT, str(child.pid), within=confined)
    assert told.startswith(f"{ {outcome: 1} } ")


@only_node_0
def test_who_moves_has_laid_down_what_would_move_other_processes_pages() -> None:
    migrations = MemoryMigrations(enabled=True)
    with sleeping() as child:
        migrations.add(TWO_NODES, facts_of(child.pid), frozenset({0}))
        assert counts(migrations, 1) == {MOVED: 1}
    assert migrations._thread is not None
    status = Path(f"/proc/self/task/{migrations._thread.native_id}/status").read_text()
    (effective,) = (line[7:] for line in status.splitlines() if line.startswith("CapEff:"))
    assert not int(effective, 16) >> SYS_NICE & 1


@pytest.mark.parametrize(
    ("pid", "new", "error"),
    [
        (2**22 + 1, HERE, "No such process"),
        (os.getpid(), frozenset(), "Invalid argument"),
        (os.getpid(), frozenset({5000}), "nonexistent, without memory, or outside Mems_allowed"),
    ],
    ids=["no process", "no node", "no node of any kernel"],
)
def test_what_cannot_be_moved_is_an_error(pid: int, new: Nodes, error: str) -> None:
    with pytest.raises(OSError, match=error):
        syscalls.migrate_pages(pid, HERE, new)


def test_of_a_process_all_of_whose_pages_are_there_none_is_left_over() -> None:
    with sleeping() as child:
        assert syscalls.migrate_pages(child.pid, HERE, HERE) == 0
