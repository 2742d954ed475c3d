"""Whole scans of real processes, on a node of two NUMA nodes whose CPUs 0 and 1 are this machine's.

What holds a GPU is known to the test; everything else is the kernel's.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.auditor import HIDDEN, Auditor
from affinityd.audit.model import AuditedProcess, GpuHolders, Holding, Scan
from affinityd.linux.processes import since_boot, thread_ids
from tests.support.audit_facts import GPU, Known
from tests.support.children import CHURN, children_of, compute, program, sleeping
from tests.support.daemons import eventually
from tests.support.machines.by_hand import made
from tests.support.small_node import ALL, FAR, NEAR, TOPOLOGY

OTHER = ("nvidia", 1)
ABSENT = 10**7  #: above any kernel's pid_max

#: What uses a CPU until it is ended.
BUSY = "print('ready', flush=True)\nwhile True: pass"

#: A holder and its DataLoader's worker; both have the names in argv.
WITH_WORKER = """
import os, sys
is_worker = os.fork() == 0
if sys.argv[1:]:
    open('/proc/self/comm', 'w').write(sys.argv[1 + is_worker])
if is_worker:
    print('ready', flush=True)
os.read(0, 1)
"""

#: Four threads: two pinned by a library, to a CPU each.
WITH_LIBRARY = """
import os, threading
started = threading.Barrier(4)
def work(cpu):
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    started.wait()
    os.read(0, 1)
for cpu in (0, 1, None):
    threading.Thread(target=work, args=(cpu,), daemon=True).start()
started.wait()
print('ready', flush=True)
os.read(0, 1)
"""

#: Forks, and has the children change their masks, start others and end, for ever.
STORM = """
import os, random, sys
print('ready', flush=True)
while True:
    if os.fork() == 0:
        for _ in range(3):
            os.sched_setaffinity(0, {random.randrange(2)})
            if os.fork() == 0:
                os._exit(0)
        os._exit(0)
    if random.random() < 0.5:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]: pass
        except ChildProcessError:
            pass
"""


def placed(scan: Scan) -> list[tuple[str, str | None]]:
    return [(process.placement, process.cause) for process in scan.processes]


def knowing(*holdings: Holding) -> Known:
    known = Known()
    known.now = GpuHolders(holdings)
    return known


@pytest.fixture
def far() -> Iterator[int]:
    """Run a process far from GPU 0."""
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        yield child.pid


def test_a_process_is_judged_by_its_mask_at_each_scan(far: int) -> None:
    auditor = Auditor(Known(far))
    scans = []
    for mask in (FAR, NEAR, ALL):
        os.sched_setaffinity(far, mask)
        scans.append(auditor.scan(TOPOLOGY))
    first, _, third = scans
    assert [placed(it) for it in scans] == [
        *([("remote", "mask")], [("local", None)], [("mixed", "mask")])
    ]
    assert [it.since for it in scans] == [{GPU: first.time}, {}, {GPU: third.time}]
    assert first.near == {GPU: frozenset({1, 3}), OTHER: frozenset({0, 2})}


def test_what_a_library_pinned_is_shown_and_makes_no_mismatch() -> None:
    topology = made({0: "0-2", 1: "3"}, gpus=[0])
    with program(WITH_LIBRARY) as child:
        (process,) = Auditor(Known(child.pid)).scan(topology).processes
    assert process.placement == "local"
    assert sorted(process.pinned_itself) == [False, False, True, True]
    assert process.placements == ("local",) * 4


def test_cpu_time_is_remote_while_it_is_spent_far_away() -> None:
    with program(BUSY) as child:
        auditor = Auditor(Known(child.pid))
        assert auditor.scan(TOPOLOGY).gpu_time[GPU].total == 0
        for mask in (FAR, NEAR):
            os.sched_setaffinity(child.pid, mask)
            before = auditor.scan(TOPOLOGY).gpu_time[GPU]
            compute(child.pid)
            after = auditor.scan(TOPOLOGY).gpu_time[GPU]
            assert after.total > before.total
            assert (after.remote > before.remote) is (mask == FAR)


def test_pins_of_two_sessions_that_overlap_are_told() -> None:
    code = "import os; os.setsid(); print('ready', flush=True); os.read(0, 1)"
    topology = made({0: "2-3", 1: "0-1"}, gpus=[1])
    with program(code) as one, program(code) as other:
        os.sched_setaffinity(one.pid, {0})
        os.sched_setaffinity(other.pid, {1})
        auditor = Auditor(Known(one.pid, other.pid))
        assert auditor.scan(topology).overlap == {}
        os.sched_setaffinity(other.pid, {0})
        sessions = sorted((f"session {one.pid}", f"session {other.pid}"))
        assert auditor.scan(topology).overlap == {tuple(sessions): {0}}


def test_what_the_driver_names_and_is_not_there_is_an_orphan_at_the_second_scan() -> None:
    known = Known(ABSENT)
    auditor = Auditor(known)
    for asked in (1, 1, 2):
        known.now = replace(known.now, asked=asked)
        scan = auditor.scan(TOPOLOGY)
        assert (scan.unknown, len(scan.processes)) == ({}, asked - 1)
    (process,) = scan.processes
    assert (process.facts.pid, process.orphan is None) == (ABSENT, False)


@pytest.mark.parametrize("is_holder", [False, True])
def test_a_known_daemon_and_what_it_starts_are_no_mismatch_unless_that_holds_a_gpu(
    is_holder: bool,
) -> None:
    with program(WITH_WORKER, "nv-hostengine", "python") as daemon:
        (child,) = children_of(daemon.pid)
        auditor = Auditor(Known(daemon.pid, *([child] if is_holder else [])))
        for pid in (daemon.pid, child):
            os.sched_setaffinity(pid, FAR)
        eventually(lambda: auditor.scan(TOPOLOGY).processes[0].is_daemon, "it has its name")
        scan = auditor.scan(TOPOLOGY)
    assert [it.placement for it in scan.processes] == ["remote", "remote"]
    assert [it.is_daemon for it in scan.processes] == [True, not is_holder]
    assert [it.is_mismatch for it in scan.processes] == [False, is_holder]
    assert set(scan.since) == ({GPU} if is_holder else set())


def test_processes_come_by_gpu_and_pid_and_descendants_follow_their_holder() -> None:
    """The second holder, and its worker, have pids between the first one's and its worker's."""
    late = f"import os\nprint('ready', flush=True)\nos.read(0, 1)\n{WITH_WORKER}"
    with program(late) as first, program(WITH_WORKER) as second, sleeping() as third:
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdin.write("x")
        first.stdin.flush()
        first.stdout.readline()
        holdings = ((third, GPU), (second, OTHER), (first, OTHER))
        known = knowing(*(Holding(child.pid, gpu) for child, gpu in holdings))
        scan = Auditor(known).scan(TOPOLOGY)
    holders = [it.facts.holder or it.facts.pid for it in scan.processes]
    assert holders == [third.pid, *[first.pid] * 2, *[second.pid] * 2]
    assert [it.facts.holder is None for it in scan.processes] == [True, *[True, False] * 2]
    assert scan.divided == frozenset()


def test_a_holder_below_a_holder_of_another_gpu_divides_its_family() -> None:
    with program(WITH_WORKER) as child:
        (worker,) = children_of(child.pid)
        known = knowing(Holding(child.pid, GPU), Holding(worker, OTHER))
        assert Auditor(known).scan(TOPOLOGY).divided == {child.pid}


def test_a_topology_that_was_read_anew_is_judged_by(far: int) -> None:
    auditor = Auditor(Known(far))
    assert placed(auditor.scan(TOPOLOGY)) == [("remote", "mask")]
    moved = replace(TOPOLOGY, gpus=(replace(TOPOLOGY.gpus[0], numa_node=0),))
    assert placed(auditor.scan(moved)) == [("local", None)]
    narrow = made({0: "0", 1: "1"}, gpus=[1])  # where its mask is all that there is
    os.sched_setaffinity(far, {0, 1})
    assert placed(auditor.scan(narrow)) == [("unpinned", "unpinned")]


def test_a_gpu_that_moves_up_to_the_number_of_one_that_left_takes_over_none_of_its_cost() -> None:
    first, second = TOPOLOGY.gpus
    moved = replace(TOPOLOGY, gpus=(replace(second, index=0, numa_node=first.numa_node),))
    with program(BUSY) as child:
        os.sched_setaffinity(child.pid, FAR)
        auditor = Auditor(Known(child.pid))
        began = auditor.scan(TOPOLOGY).time
        compute(child.pid)
        before = auditor.scan(replace(TOPOLOGY))
        after = auditor.scan(moved)
    assert before.gpu_time[GPU].total > 0
    assert before.since == {GPU: began}
    assert after.gpu_time[GPU].total < before.gpu_time[GPU].total
    assert after.since == {GPU: after.time}


def test_the_kernels_balancing_is_told(tmp_path: Path) -> None:
    balancing = tmp_path / "sys/kernel/numa_balancing"
    balancing.parent.mkdir(parents=True)
    for text, number in (("2\n", 2), ("", None), ("on\n", None)):
        balancing.write_text(text)
        assert Auditor(Known(), str(tmp_path)).scan(TOPOLOGY).numa_balancing == number


def test_a_scan_is_timed() -> None:
    before, boot = time.time(), since_boot()
    scan = Auditor(Known(os.getpid())).scan(TOPOLOGY)
    assert boot <= scan.boot < scan.boot + scan.seconds <= since_boot()
    assert before <= scan.time <= time.time()


def test_a_mismatch_outlasts_a_scan_that_could_not_see_it(far: int, tmp_path: Path) -> None:
    """As a driver does not tell, or /proc hides it."""
    known = Known(far)
    auditor = Auditor(known)
    first, seen = auditor.scan(TOPOLOGY), known.now
    known.now = GpuHolders(unknown={GPU: "NVML is silent"})
    blind = auditor.scan(TOPOLOGY)
    assert (blind.unknown, blind.processes, blind.since) == (known.now.unknown, (), {})
    assert set(blind.gpu_time) == {GPU, OTHER}
    known.now = seen
    assert auditor.scan(TOPOLOGY).since == {GPU: first.time}
    auditor._proc = str(tmp_path)
    hidden = auditor.scan(TOPOLOGY)
    assert (hidden.unknown, hidden.since) == ({GPU: HIDDEN}, {})
    known.now = replace(seen, unknown={GPU: "NVML is silent"})
    assert auditor.scan(TOPOLOGY).unknown == known.now.unknown
    known.now = Known(ABSENT).now  # what has ended is not hidden
    assert auditor.scan(TOPOLOGY).unknown == {}


def test_of_a_gpu_whose_processes_were_not_all_reached_it_is_not_known_that_all_is_well(
    far: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("affinityd.audit.auditor.READING", -1.0)
    known = Known(far, os.getpid())
    known.now = replace(known.now, skipped=5, notices=("look",))
    scan = Auditor(known).scan(TOPOLOGY)
    assert (scan.processes, scan.skipped, scan.late) == ((), 7, {GPU: 2})
    assert scan.unknown == {GPU: "2 of them were not scanned: the time limit was reached"}
    assert scan.notices == ("look",)


def test_storms_of_processes_are_survived_and_leave_nothing_that_is_torn(far: int) -> None:
    with program(STORM) as storm, program(CHURN) as churn:
        auditor = Auditor(Known(storm.pid, churn.pid, far, ABSENT))
        scans = [auditor.scan(TOPOLOGY) for _ in range(30)]
        storm.kill()
        scans += [auditor.scan(TOPOLOGY) for _ in range(10)]
    for scan in scans:
        assert far in {process.facts.pid for process in scan.processes}
        assert all(map(_is_whole, scan.processes))


def _is_whole(process: AuditedProcess) -> bool:
    facts = process.facts
    tids = [thread.tid for thread in facts.threads]
    lengths = {len(set(tids)), len(tids), len(process.placements), len(process.pinned_itself)}
    return len(lengths) == 1 and (facts.state == "X" or tids[0] == facts.pid)


def test_a_proc_that_changes_into_nonsense_meanwhile_is_survived(tmp_path: Path) -> None:
    """Every file of a copy of /proc is replaced, again and again, while it is scanned."""
    with program(WITH_LIBRARY) as child:
        tasks = (f"task/{tid}/{it}" for tid in thread_ids(child.pid) for it in ("stat", "children"))
        names = ("stat", "status", "cgroup", *tasks)
        for name in names:
            copy = tmp_path / f"{child.pid}/{name}"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(f"/proc/{child.pid}/{name}", copy)
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        auditor = Auditor(Known(child.pid), str(tmp_path))
        whole = placed(auditor.scan(TOPOLOGY))
        chance = random.Random(1)  # noqa: S311 - the same nonsense each time
        for _ in range(200):
            broken = chance.choice(sorted(files))
            broken.write_bytes(chance.randbytes(chance.choice((0, 3, 400))))
            auditor.scan(TOPOLOGY)
            if chance.random() < 0.5:
                broken.unlink()
                auditor.scan(TOPOLOGY)
            broken.write_bytes(files[broken])
            assert placed(auditor.scan(TOPOLOGY)) == whole


@pytest.mark.parametrize(("end", "state"), [(signal.SIGKILL, "Z"), (signal.SIGSTOP, "T")])
def test_a_holder_that_is_killed_or_stopped_meanwhile(end: signal.Signals, state: str) -> None:
    with sleeping() as child:
        auditor = Auditor(Known(child.pid))
        auditor.scan(TOPOLOGY)
        child.send_signal(end)

        def is_seen() -> bool:
            return [it.facts.state for it in auditor.scan(TOPOLOGY).processes] == [state]

        eventually(is_seen, state)
        (process,) = auditor.scan(TOPOLOGY).processes
    assert (process.orphan is None) == (end == signal.SIGSTOP)
