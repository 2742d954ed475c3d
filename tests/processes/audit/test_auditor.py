"""Whole scans of real processes, on a node of two NUMA nodes whose CPUs 0 and 1 are this machine's.

Who holds a GPU is known to the test; everything else is the kernel's.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.auditor import Auditor
from affinityd.audit.model import AuditedProcess, GpuHolders, Holding, Scan
from affinityd.linux.processes import since_boot
from tests.support.audit_facts import GPU, Known
from tests.support.children import CHURN, children_of, compute, program, sleeping
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.daemons import eventually
from tests.support.machines.by_hand import made
from tests.support.small_node import ALL, FAR, NEAR, TOPOLOGY

#: What uses a CPU until it is ended.
BUSY = "print('ready', flush=True)\nwhile True: pass"

#: A holder and its DataLoader's worker.
WITH_WORKER = """
import os
if os.fork() == 0:
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

ZOMBIE = """
import os
pid = os.fork() or os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(pid, flush=True)
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


@pytest.mark.parametrize(
    ("mask", "placement", "cause"),
    [(NEAR, "local", None), (FAR, "remote", "mask"), (ALL, "mixed", "mask")],
)
def test_a_real_mask_is_judged(mask: frozenset[int], placement: str, cause: str | None) -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, mask)
        scan = Auditor(Known(child.pid)).scan(TOPOLOGY)
    assert placed(scan) == [(placement, cause)]
    assert scan.near == {GPU: frozenset({1, 3}), ("nvidia", 1): frozenset({0, 2})}


def test_a_mask_of_all_cpus_is_unpinned_where_there_are_no_more() -> None:
    topology = made({0: "0", 1: "1"}, gpus=[1])
    with sleeping() as child:
        os.sched_setaffinity(child.pid, {0, 1})
        scan = Auditor(Known(child.pid)).scan(topology)
    assert placed(scan) == [("unpinned", "unpinned")]


def test_a_process_that_is_repinned_between_scans_is_local_at_the_next() -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        auditor = Auditor(Known(child.pid))
        first = auditor.scan(TOPOLOGY)
        os.sched_setaffinity(child.pid, NEAR)
        second = auditor.scan(TOPOLOGY)
        os.sched_setaffinity(child.pid, FAR)
        third = auditor.scan(TOPOLOGY)
    assert [placed(it)[0][0] for it in (first, second, third)] == ["remote", "local", "remote"]
    assert (first.since, second.since) == ({GPU: first.time}, {})
    assert third.since == {GPU: third.time}


def test_the_worker_of_a_holder_is_judged_by_its_gpu() -> None:
    with program(WITH_WORKER) as child:
        os.sched_setaffinity(child.pid, NEAR)
        scan = Auditor(Known(child.pid)).scan(TOPOLOGY)
        by_parent = {it.facts.parent: it for it in scan.processes}
        worker = by_parent[child.pid]
        assert worker.placement != "local"
        os.sched_setaffinity(worker.facts.pid, NEAR)
        assert placed(Auditor(Known(child.pid)).scan(TOPOLOGY)) == [("local", None)] * 2
    assert (worker.facts.gpu, worker.facts.holding) == (GPU, None)


def test_what_a_library_pinned_is_shown_and_makes_no_mismatch() -> None:
    topology = made({0: "0-2", 1: "3"}, gpus=[0])
    with program(WITH_LIBRARY) as child:
        (process,) = Auditor(Known(child.pid)).scan(topology).processes
    assert process.placement == "local"
    assert sorted(process.pinned_itself) == [False, False, True, True]
    assert process.placements == ("local",) * 4


@needs_cpuset
def test_where_its_cpuset_has_no_near_cpu_the_allocation_is_the_cause() -> None:
    with cpuset() as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        (folder / "cpuset.cpus").write_text("0")
        scan = Auditor(Known(child.pid)).scan(TOPOLOGY)
    assert placed(scan) == [("remote", "allocation")]


def test_cpu_time_is_remote_while_it_is_spent_far_away() -> None:
    with program(BUSY) as child:
        auditor = Auditor(Known(child.pid))

        def grown(mask: frozenset[int]) -> tuple[float, float]:
            os.sched_setaffinity(child.pid, mask)
            before = auditor.scan(TOPOLOGY).gpu_time[GPU]
            compute(child.pid)
            after = auditor.scan(TOPOLOGY).gpu_time[GPU]
            return after.total - before.total, after.remote - before.remote

        assert auditor.scan(TOPOLOGY).gpu_time[GPU].total == 0
        total, remote = grown(FAR)
        assert 0 < remote <= total
        total, remote = grown(NEAR)
        assert total > 0
        assert remote == 0


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


def test_a_zombie_that_holds_a_gpu_is_an_orphan() -> None:
    with program(ZOMBIE.replace("print(pid", "print('ready'")) as child:
        zombie = int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())
        (process,) = Auditor(Known(zombie)).scan(TOPOLOGY).processes
    assert process.orphan is not None
    assert process.orphan.startswith("it has ended")
    assert process.placement == "unknown"


def test_what_the_driver_names_and_is_not_there_is_an_orphan_at_the_second_scan() -> None:
    known = Known(10**7)
    auditor = Auditor(known)
    for asked in (1, 1, 2):
        known.now = replace(known.now, asked=asked)
        scan = auditor.scan(TOPOLOGY)
        assert (scan.unknown, len(scan.processes)) == ({}, asked - 1)
    (process,) = scan.processes
    assert (process.facts.pid, process.orphan is None) == (10**7, False)


def test_a_known_daemon_is_shown_with_what_it_starts_and_is_no_mismatch() -> None:
    code = """
import os
is_child = os.fork() == 0
open('/proc/self/comm', 'w').write('helper' if is_child else 'nv-hostengine')
if not is_child:
    print('ready', flush=True)
os.read(0, 1)
"""
    with program(code) as child:
        os.sched_setaffinity(child.pid, FAR)
        scan = Auditor(Known(child.pid)).scan(TOPOLOGY)
    assert {process.facts.holding is None for process in scan.processes} == {True, False}
    assert [process.is_daemon for process in scan.processes] == [True, True]
    assert scan.since == {}


def test_a_holder_that_a_known_daemon_has_started_counts() -> None:
    code = """
import os
is_child = os.fork() == 0
open('/proc/self/comm', 'w').write('python' if is_child else 'nv-hostengine')
if is_child:
    print('ready', flush=True)
os.read(0, 1)
"""
    with program(code) as daemon:
        (holder,) = children_of(daemon.pid)
        known = Known(daemon.pid, holder)
        eventually(
            lambda: (
                [it.is_daemon for it in Auditor(known).scan(TOPOLOGY).processes] == [True, False]
            ),
            "named",
        )
        os.sched_setaffinity(holder, FAR)
        scan = Auditor(known).scan(TOPOLOGY)
    assert [process.is_mismatch for process in scan.processes] == [False, True]
    assert set(scan.since) == {GPU}


def test_processes_come_by_gpu_and_pid() -> None:
    with sleeping() as one, sleeping() as two, sleeping() as three:
        known = Known()
        gpus = {three.pid: ("nvidia", 0), two.pid: ("nvidia", 1), one.pid: ("nvidia", 1)}
        known.now = GpuHolders(tuple(Holding(pid, gpu) for pid, gpu in gpus.items()))
        scan = Auditor(known).scan(TOPOLOGY)
    found = [(process.facts.gpu, process.facts.pid) for process in scan.processes]
    assert found == sorted((gpu, pid) for pid, gpu in gpus.items())


def test_descendants_follow_their_holder_whatever_their_numbers() -> None:
    """The second holder, and its worker, have pids between the first one's and its worker's."""
    code = f"import os\nprint('ready', flush=True)\nos.read(0, 1)\n{WITH_WORKER}"
    with program(code) as first, program(WITH_WORKER) as second:
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdin.write("x")
        first.stdin.flush()
        first.stdout.readline()
        scan = Auditor(Known(first.pid, second.pid)).scan(TOPOLOGY)
    holders = [it.facts.holder or it.facts.pid for it in scan.processes]
    assert holders == [first.pid] * 2 + [second.pid] * 2
    assert [it.facts.holder is None for it in scan.processes] == [True, False] * 2
    assert scan.divided == frozenset()


def test_a_holder_below_a_holder_of_another_gpu_divides_its_family() -> None:
    with program(WITH_WORKER) as child:
        (worker,) = children_of(child.pid)
        known = Known()
        known.now = GpuHolders((Holding(child.pid, GPU), Holding(worker, ("nvidia", 1))))
        assert Auditor(known).scan(TOPOLOGY).divided == {child.pid}


def test_a_topology_that_was_read_anew_is_judged_by() -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        auditor = Auditor(Known(child.pid))
        assert placed(auditor.scan(TOPOLOGY)) == [("remote", "mask")]
        moved = replace(TOPOLOGY, gpus=(replace(TOPOLOGY.gpus[0], numa_node=0),))
        assert placed(auditor.scan(moved)) == [("local", None)]


def test_the_kernels_balancing_is_told(tmp_path: Path) -> None:
    file = Path("/proc/sys/kernel/numa_balancing")
    expected = int(file.read_text()) if file.exists() else None
    assert Auditor(Known()).scan(TOPOLOGY).numa_balancing == expected
    balancing = tmp_path / "sys/kernel/numa_balancing"
    balancing.parent.mkdir(parents=True)
    for text, number in (("2\n", 2), ("", None), ("on\n", None)):
        balancing.write_text(text)
        assert Auditor(Known(), str(tmp_path)).scan(TOPOLOGY).numa_balancing == number


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


def test_a_scan_is_timed() -> None:
    before, boot = time.time(), since_boot()
    scan = Auditor(Known(os.getpid())).scan(TOPOLOGY)
    assert boot <= scan.boot <= scan.boot + scan.seconds <= since_boot()
    assert before <= scan.time <= time.time()
    assert scan.seconds > 0


def test_storms_of_processes_are_survived_and_leave_nothing_that_is_torn() -> None:
    with program(STORM) as storm, program(CHURN) as churn, sleeping() as still:
        auditor = Auditor(Known(storm.pid, churn.pid, still.pid, 10**7))
        scans = [auditor.scan(TOPOLOGY) for _ in range(60)]
        storm.kill()
        scans += [auditor.scan(TOPOLOGY) for _ in range(20)]
    for scan in scans:
        assert still.pid in {process.facts.pid for process in scan.processes}
        for process in scan.processes:
            assert _is_whole(process)


def _is_whole(process: AuditedProcess) -> bool:
    facts = process.facts
    lengths = {len(facts.threads), len(process.placements), len(process.pinned_itself)}
    is_ghost = facts.state == "X"
    return len(lengths) == 1 and (is_ghost or facts.threads[0].tid == facts.pid)


def test_a_proc_that_changes_into_nonsense_meanwhile_is_survived(tmp_path: Path) -> None:
    """Every file of a copy of /proc is replaced, again and again, while it is scanned."""
    with program(WITH_LIBRARY) as child:
        proc = tmp_path / "proc"
        for path in Path(f"/proc/{child.pid}/task").iterdir():
            for name in ("stat", "children"):
                copy = proc / str(child.pid) / "task" / path.name / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path / name, copy)
        for name in ("stat", "status", "cgroup"):
            shutil.copyfile(f"/proc/{child.pid}/{name}", proc / str(child.pid) / name)
        files = {path: path.read_bytes() for path in proc.rglob("*") if path.is_file()}
        auditor = Auditor(Known(child.pid), str(proc))
        whole = placed(auditor.scan(TOPOLOGY))
        chance = random.Random(1)  # noqa: S311 - the same nonsense each time
        for _ in range(300):
            broken = chance.choice(sorted(files))
            broken.write_bytes(chance.randbytes(chance.choice((0, 3, 400))))
            auditor.scan(TOPOLOGY)
            if chance.random() < 0.5:
                broken.unlink()
                auditor.scan(TOPOLOGY)
            broken.write_bytes(files[broken])
            assert placed(auditor.scan(TOPOLOGY)) == whole


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_holder_that_is_killed_or_stopped_meanwhile(end: signal.Signals) -> None:
    with sleeping() as child:
        auditor = Auditor(Known(child.pid))
        auditor.scan(TOPOLOGY)
        child.send_signal(end)
        state = {signal.SIGKILL: "Z", signal.SIGSTOP: "T"}[end]
        eventually(
            lambda: [it.facts.state for it in auditor.scan(TOPOLOGY).processes] == [state], state
        )
        (process,) = auditor.scan(TOPOLOGY).processes
    assert (process.orphan is None) == (end == signal.SIGSTOP)
