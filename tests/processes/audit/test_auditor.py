"""Whole scans of real processes, on a node of two NUMA nodes whose CPUs 0 and 1 are this machine's.

The test says which processes hold a GPU.
All other facts are the kernel's.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.auditor import HIDDEN_PROCESSES, Auditor
from affinityd.audit.model import GpuHolders, Holding, Scan
from affinityd.audit.remedies import Remedies
from affinityd.linux.processes import since_boot, stat_of
from affinityd.linux.scheduling import TICKS
from affinityd.topology.model import GpuKey
from tests.support.audit_facts import GPU, Known
from tests.support.children import CHURN, children_of, compute, program, sleeping
from tests.support.daemons import eventually
from tests.support.machines.by_hand import made
from tests.support.small_node import ALL, FAR, NEAR, TOPOLOGY

OTHER = ("nvidia", 1)
ABSENT = 10**7  #: above any kernel's pid_max

#: Uses a CPU until the test ends it.
BUSY = "print('ready', flush=True)\nwhile True: pass"

#: A holder, and a worker of the holder's DataLoader; argv has the names of both.
WITH_WORKER = """
import os, sys
is_worker = os.fork() == 0
if sys.argv[1:]:
    open('/proc/self/comm', 'w').write(sys.argv[1 + is_worker])
if is_worker:
    print('ready', flush=True)
os.read(0, 1)
"""

#: Starts a thread and a child that each compute for 20 ms, again and again.
SHORT_LIVED = """
import os, threading, time
def burn():
    end = time.thread_time() + 0.02
    while time.thread_time() < end: pass
print('ready', flush=True)
while True:
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
    if os.fork() == 0:
        burn()
        os._exit(0)
    os.wait()
"""


def placed(scan: Scan) -> list[tuple[str, str | None]]:
    return [(process.placement, process.cause) for process in scan.processes]


@pytest.fixture
def far() -> Iterator[int]:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        yield child.pid


def test_at_each_scan_a_process_is_judged_by_its_current_mask_and_machine(far: int) -> None:
    auditor, before = Auditor(Known(far).held), (time.time(), since_boot())
    scans = []
    for mask in (FAR, NEAR, ALL):
        os.sched_setaffinity(far, mask)
        scans.append(auditor.scan(TOPOLOGY))
    first, _, third = scans
    assert before < (first.time, first.boot) < (third.time, third.boot)
    assert first.boot + first.seconds <= since_boot()
    expected = [("remote", "mask")], [("local", None)], [("mixed", "mask")]
    assert [placed(it) for it in scans] == [*expected]
    assert [it.since for it in scans] == [{GPU: first.time}, {}, {GPU: third.time}]
    assert first.near == {GPU: frozenset({1, 1023}), OTHER: frozenset({0, 1022})}
    narrow = made({0: "0", 1: "1"}, gpus=[1])  # a machine that has only the mask's CPUs
    os.sched_setaffinity(far, {0, 1})
    assert placed(auditor.scan(narrow)) == [("unpinned", "unpinned")]


def test_cpu_time_of_ended_threads_and_children_counts() -> None:
    with program(SHORT_LIVED) as child:
        os.sched_setaffinity(child.pid, FAR)

        def spent() -> float:
            stat = stat_of(child.pid)
            assert stat is not None
            return (stat.cpu_ticks + stat.children_ticks) / TICKS

        auditor, begin = Auditor(Known(child.pid).held), spent()
        auditor.scan(TOPOLOGY)
        first = spent()
        for _ in range(3):
            compute(child.pid)
            before = spent()
            last = auditor.scan(TOPOLOGY).gpu_time[GPU]
        slack = 0.05  # of a child that runs during a scan
        assert before - first - slack <= last.total <= spent() - begin + slack
        assert last.remote == pytest.approx(last.total)


def test_counters_history_and_start_times_follow_a_gpu_whose_index_changes() -> None:
    first, second = TOPOLOGY.gpus
    swapped = replace(TOPOLOGY, gpus=(replace(second, index=0), replace(first, index=1)))
    with program(BUSY) as child:
        os.sched_setaffinity(child.pid, FAR)
        known = Known(child.pid)
        auditor = Auditor(known.held)
        auditor.scan(TOPOLOGY)
        compute(child.pid)
        before = auditor.scan(TOPOLOGY)
        known.now = GpuHolders((Holding(child.pid, OTHER),))
        after = auditor.scan(swapped)
    assert after.gpu_time[GPU] == before.gpu_time[OTHER]
    assert after.gpu_time[OTHER].total >= before.gpu_time[GPU].total > 0
    assert (after.history[GPU][-1], after.history[OTHER][-1]) == ("i", "r")
    assert after.since == {OTHER: before.since[GPU]}


#: A server with helpers starts an engine, prints the engine's pid, and may give it a group.
SERVER = """
import os, sys
mask, helpers, has_group = map(eval, sys.argv[1:])
os.sched_setaffinity(0, mask)
for _ in range(helpers):
    helper = os.fork()
    if helper == 0:
        os.read(0, 1)
        os._exit(0)
    os.setpgid(helper, 0)
engine = os.fork()
if engine:
    if has_group:
        os.setpgid(engine, 0)
    print('ready', engine, sep='\\n', flush=True)
os.read(0, 1)
"""


@pytest.mark.parametrize(
    ("mask", "helpers", "has_group", "unknown", "is_moved"),
    [
        (FAR, 1, False, {}, True),
        (NEAR, 1, False, {}, False),
        (ALL, 1, False, {}, False),  # its mask differs: to move both would need --force
        (FAR, 2, False, {}, False),  # two engines may be ranks of other GPUs, or a pool
        (FAR, 1, True, {}, False),  # the server may be a shell or a notebook server
        (FAR, 1, False, {OTHER: "NVML: timeout"}, False),  # the helper may use that GPU
    ],
)
def test_the_remedy_of_a_far_engine_also_moves_its_far_server(
    mask: frozenset[int], helpers: int, has_group: bool, unknown: dict[GpuKey, str], is_moved: bool
) -> None:
    with program(SERVER, repr({*mask}), str(helpers), str(has_group)) as server:
        assert server.stdout is not None
        engine = int(server.stdout.readline())
        os.sched_setaffinity(engine, FAR)
        known = Known(engine)
        known.now = replace(known.now, unknown=unknown)
        scan = Auditor(known.held).scan(TOPOLOGY)
        (process,) = scan.processes
        remedy = Remedies(TOPOLOGY, scan).of(process)
        options, pid = ("--tree ", server.pid) if is_moved else ("", engine)
        assert remedy is not None
        pin = f"affinityd pin {options}--gpus 0000:10:00.0 {pid} fixes it now"
        assert remedy.endswith(f"; {pin}")
        helper = min(children_of(server.pid))
        both = GpuHolders((Holding(helper, OTHER), Holding(engine, GPU)))
        assert Auditor(lambda _: both).scan(TOPOLOGY).tree_tops == {}


def test_a_known_daemon_and_its_children_are_no_mismatch_unless_a_child_holds_a_gpu() -> None:
    with program(WITH_WORKER, "nv-hostengine", "python") as daemon:
        (child,) = children_of(daemon.pid)
        for pid in (daemon.pid, child):
            os.sched_setaffinity(pid, FAR)
        comm = Path(f"/proc/{daemon.pid}/comm")
        eventually(lambda: comm.read_text() == "nv-hostengine\n", "it has its name")
        for held in ([], [child]):
            found = Auditor(Known(daemon.pid, *held).held).scan(TOPOLOGY).processes
            assert [it.placement for it in found] == ["remote", "remote"]
            assert [it.is_daemon for it in found] == [True, not held]
            assert [it.is_mismatch for it in found] == [False, bool(held)]


def test_a_mismatch_continues_through_a_scan_that_did_not_see_it(far: int, tmp_path: Path) -> None:
    known = Known(far)
    auditor = Auditor(known.held)
    first, seen = auditor.scan(TOPOLOGY), known.now
    known.now = GpuHolders(unknown={GPU: "NVML is silent"})
    blind = auditor.scan(TOPOLOGY)
    assert (blind.unknown, blind.processes, blind.since) == (known.now.unknown, (), {})
    assert set(blind.gpu_time) == {GPU, OTHER}
    known.now = seen
    assert auditor.scan(TOPOLOGY).since == {GPU: first.time}
    auditor._proc = str(tmp_path)
    hidden = auditor.scan(TOPOLOGY)
    assert (hidden.unknown, hidden.since) == ({GPU: HIDDEN_PROCESSES}, {})
    known.now = replace(seen, unknown={GPU: "NVML is silent"})
    assert auditor.scan(TOPOLOGY).unknown == known.now.unknown


def test_a_gpu_with_processes_that_were_not_reached_is_unknown(
    far: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("affinityd.audit.auditor.PROC_SECONDS", -1.0)
    known = Known(far, os.getpid())
    known.now = replace(known.now, skipped=5)
    scan = Auditor(known.held).scan(TOPOLOGY)
    assert (scan.processes, scan.skipped) == ((), 7)
    assert scan.unknown == {GPU: "2 of its processes were not scanned: the time limit was reached"}


def test_a_process_that_constantly_starts_threads_has_consistent_facts(far: int) -> None:
    with program(CHURN) as churn:
        auditor = Auditor(Known(churn.pid, far, ABSENT).held)
        scans = [auditor.scan(TOPOLOGY) for _ in range(30)]
    for scan in scans:
        assert far in {process.facts.pid for process in scan.processes}
        for process in scan.processes:
            tids = [thread.tid for thread in process.facts.threads]
            assert [placed.thread for placed in process.threads] == [*process.facts.threads]
            assert len(set(tids)) == len(tids)
            assert process.facts.state == "X" or tids[0] == process.facts.pid
