"""The memory of real processes follows them: the real call, on the one node of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.enforce.memory_migration import (
    LEFT,
    MOVED,
    OUTCOMES,
    REFUSED,
    MemoryMigrations,
)
from affinityd.linux import syscalls
from affinityd.linux.processes import status_of
from affinityd.linux.syscalls import SYS_NICE
from tests.support.audit_facts import facts_of
from tests.support.child_python import SECCOMP, said
from tests.support.children import sleeping
from tests.support.daemons import eventually
from tests.support.machines.by_hand import made

HERE = frozenset({0})  #: a node with memory on this machine
NEAR, FAR = frozenset({0}), frozenset({4})  #: CPUs of node 0, and of one that is not here
TWO_NODES = made({0: "0-3", 1: "4-7"})

only_node_0 = pytest.mark.skipif(
    Path("/sys/devices/system/node/node1").exists(), reason="this machine has a second node"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")


def counts(migrations: MemoryMigrations, number: int) -> Mapping[str, int]:
    """Return the outcomes that there were, once there are as many."""
    eventually(lambda: sum(migrations.totals.values()) >= number, "all have been moved")
    assert tuple(migrations.totals) == OUTCOMES
    return {outcome: count for outcome, count in migrations.totals.items() if count}


def effective(thread: str) -> int:
    """Return the capabilities of a thread."""
    return int(status_of(thread, "CapEff") or "0", 16)


@only_node_0
def test_processes_are_moved_one_after_the_other_and_those_that_are_there_are_counted() -> None:
    """Not one that has ended, nor one that has its number by now; the thread has no SYS_NICE."""
    migrations = MemoryMigrations(enabled=True)
    with sleeping() as ended:
        gone = facts_of(ended.pid)
    with sleeping() as child, sleeping() as other:
        facts = facts_of(child.pid)
        for its in (gone, replace(facts, start=facts.start - 1), facts):
            migrations.add(TWO_NODES, its, NEAR)
        migrations.add(TWO_NODES, facts_of(other.pid), FAR)
        assert counts(migrations, 2) == {MOVED: 1, LEFT: 1}
    assert migrations.refusal is None
    assert migrations._thread is not None
    ours = effective("self")
    assert effective(f"self/task/{migrations._thread.native_id}") == ours & ~(1 << SYS_NICE)
    assert effective("self") == ours


#: Wants the memory of the process in argv moved, and tells what came of it.
WANT = """
import sys
from tests.processes.enforce.test_memory_migration import NEAR, TWO_NODES, counts, facts_of
from affinityd.enforce.memory_migration import MemoryMigrations
migrations = MemoryMigrations(enabled=True)
migrations.add(TWO_NODES, facts_of(int(sys.argv[1])), NEAR)
print(counts(migrations, 1), migrations.refusal)
"""

#: Python itself may be where another user reads nothing: all that is needed comes first.
AS_A_USER = "import ctypes, os, tests.processes.enforce.test_memory_migration; os.setuid(65534)"
NO_MIGRATE_PAGES = f'{SECCOMP}\nrefuse("migrate_pages")'


def confined(powers: str) -> tuple[str, ...]:
    return ("setpriv", f"--bounding-set=-all,{powers}", "--inh-caps=-all")


@only_node_0
@needs_root
@pytest.mark.parametrize(
    ("before", "within", "outcome"),
    [
        (AS_A_USER, (), REFUSED),
        (NO_MIGRATE_PAGES, (), REFUSED),
        # Of a process that may do more it takes one capability.
        ("", confined("+sys_nice"), REFUSED),
        ("", confined("+sys_nice,+sys_ptrace"), MOVED),
    ],
    ids=["user", "filter", "less", "one"],
)
def test_what_the_kernel_refuses_is_counted_and_said(
    before: str, within: tuple[str, ...], outcome: str
) -> None:
    with sleeping() as child:
        told = said(f"{before}\n{WANT}", str(child.pid), within=within)
    why = (
        f"the memory of process {child.pid} was not moved: EPERM: "
        "another user's memory needs CAP_SYS_PTRACE, and a seccomp filter must allow "
        "capset and migrate_pages: affinityd.service.d/enforce.conf for systemd"
    )
    assert told == f"{ {outcome: 1} } {why if outcome == REFUSED else None}"


def test_where_no_memory_may_be_it_says_so() -> None:
    with pytest.raises(OSError, match="nonexistent, without memory, or outside Mems_allowed"):
        syscalls.migrate_pages(0, HERE, frozenset({5000}))  # 0: the caller itself
