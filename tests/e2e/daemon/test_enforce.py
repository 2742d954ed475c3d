"""The daemon that pins from outside: real processes, threads and cpusets, and a real NVML library.

The two CPUs are two NUMA nodes to it, each with two GPUs, and NVML's facts say who uses them.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.cpuset import CpuSet, parse_list
from affinityd.linux.processes import descendants, mask_of, thread_ids
from tests.support.children import sleeping
from tests.support.cpusets import needs_cpuset, pod_parts, step_parts
from tests.support.daemons import eventually
from tests.support.enforcing_node import EnforcingNode, enforcing
from tests.support.puppets import Puppet, Troupe, masks, playing, unpin
from tests.support.tiny import BOTH, FAR, NEAR, affinityd

pytestmark = needs_cpuset

NEAR_CPU, FAR_CPU = parse_list(NEAR), parse_list(FAR)
POD = "0b7de3f1-51aa-9d02-4c1e-8a1f0c3ea00"


@pytest.fixture(scope="module", autouse=True)
def troupe() -> Iterator[Troupe]:
    troupe = Troupe(7)
    yield troupe
    troupe.dismiss()


@pytest.fixture(scope="module")
def node() -> Iterator[EnforcingNode]:
    with enforcing("pin") as node:
        yield node
        assert "Traceback" not in node.daemon.log.read_text()


@pytest.fixture(autouse=True)
def unused(request: pytest.FixtureRequest) -> None:
    if "node" in request.fixturenames:
        request.getfixturevalue("node").say({})


def pod(number: int) -> tuple[str, ...]:
    return pod_parts(f"{POD}{number}")


def lines(node: EnforcingNode, part: str) -> list[str]:
    return [line for line in node.daemon.lines if part in line]


def pin(node: EnforcingNode, *ranks: Puppet) -> int:
    """Have NVML name ranks, each on its GPU; return how many scans it took until they fit."""
    node.say({gpu: [rank.pid] for gpu, rank in enumerate(ranks)})
    return node.scans_until(lambda: all(map(fits, ranks, range(4))), "they are pinned")


def fits(rank: Puppet, gpu: int = 0) -> bool:
    return rank.masks == {(NEAR_CPU, NEAR_CPU, FAR_CPU, FAR_CPU)[gpu]}


def test_an_observing_node_changes_no_mask(troupe: Troupe) -> None:
    """The daemon was to pin."""
    ranks = troupe.take(2)
    users, observe = {0: [ranks[0].pid], 2: [ranks[1].pid]}, ("env", "AFFINITYD=observe")
    with playing(ranks, *pod(1), cpus=BOTH):
        before = every_mask()
        with enforcing("pin", users=users, before=observe) as node:
            node.wait_until("drifted", *ranks[0].everybody, *ranks[1].everybody)
            node.wait_for_scans(2)
            assert node.samples("enforce_would_pin_processes", "cause")["unpinned"] == 6
            report = node.enforce()
            assert (report["enforce"], report["does"], node.pins()) == ("observe", "observe", 0)
            assert report["summary"]["gpus_mismatched"] == 2
            assert report["summary"]["gpus_pinning_would_mend"] == 2
            after = every_mask()
            theirs = {tid for rank in ranks for pid in rank.everybody for tid in thread_ids(pid)}
    assert before.keys() & after.keys() >= theirs
    assert {tid: after.get(tid, mask) for tid, mask in before.items()} == before  # some have ended


def every_mask() -> dict[int, CpuSet]:
    pids = [os.getpid(), *(stat.number for stat in descendants(os.getpid()))]
    masks_of = {tid: mask_of(tid) for pid in pids for tid in thread_ids(pid)}
    return {tid: mask for tid, mask in masks_of.items() if mask is not None}


def test_workers_that_unpin_themselves_are_pinned_again(
    node: EnforcingNode, troupe: Troupe, tmp_path: Path
) -> None:
    ranks = troupe.take(4)
    with stepd(7, tmp_path), playing(ranks, *step_parts(7), cpus=BOTH):
        assert pin(node, *ranks) <= 2
        workers = [rank.workers[0] for rank in ranks]
        unpin(workers)
        eventually(
            lambda: {*workers} <= {pid for pid, it in node.processes().items() if it["resets"]},
            "they have unpinned",
        )
        assert node.scans_until(lambda: all(map(fits, ranks, range(4))), "and are pinned") <= 2
        node.wait_for_scans(1)
        processes = node.processes()
        # A scan may come between two of its threads: each reset is answered by a pin.
        assert all(processes[it]["pins"] == processes[it]["resets"] + 1 for it in workers)
        assert {(processes[it.pid]["pins"], processes[it.pid]["resets"]) for it in ranks} == {
            (1, 0)
        }
        of_pins = [line for line in lines(node, "slurm 7") if "pinned" in line]
        assert len(of_pins) == 12 + len(workers)


@contextmanager
def stepd(job: int, folder: Path) -> Iterator[None]:
    """Run what every step of Slurm's has: by its title the job lives."""
    program = shutil.copy(shutil.which("sleep") or "sleep", folder / "slurmstepd")
    with subprocess.Popen([f"slurmstepd: [{job}.0]", "600"], executable=program) as process:
        try:
            yield
        finally:
            process.kill()


def test_the_pins_of_a_daemon_that_was_killed_are_undone(troupe: Troupe) -> None:
    (rank,) = troupe.take()
    with playing([rank], *pod(1), cpus=BOTH):
        before = masks(rank.pid)
        with enforcing("pin", users={0: [rank.pid]}) as node:
            node.scans_until(lambda: fits(rank), "it is pinned")
            node.daemon.signal(signal.SIGKILL)
            node.daemon.process.wait()
            socket = f"{node.daemon.socket}"
            done = affinityd("enforce", "--undo", "--socket", socket)
        assert (done.status, f"process {rank.pid} " in done.stdout) == (0, True), done.stderr
        assert masks(rank.pid) == before


def test_the_daemon_keeps_off_the_cpus_of_pinned_ranks(node: EnforcingNode) -> None:
    daemon = node.daemon.process.pid

    def held() -> set[CpuSet | None]:
        family = [daemon, *(stat.number for stat in descendants(daemon))]
        return {mask_of(tid) for pid in family for tid in thread_ids(pid)}

    with sleeping() as child:
        os.sched_setaffinity(child.pid, NEAR_CPU)
        node.say({0: [child.pid]})
        eventually(lambda: held() == {FAR_CPU}, "the daemon keeps off")
    eventually(lambda: held() == {NEAR_CPU | FAR_CPU}, "it has all CPUs again")
