"""`affinityd why` and audit name what makes a process wait, on CPUs that nothing else uses.

The cause is known by construction. Other work of this machine counts, too: `scripts/test` runs
these tests alone, and nightly. tests/processes has what holds on a busy machine.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from affinityd.audit.auditor import Auditor
from affinityd.audit.model import GpuHolders, Holding
from tests.support.children import program
from tests.support.daemons import PATIENCE
from tests.support.machines.by_hand import made

#: Computes until its parent ends; some parents are shells, which no test ends.
BUSY = """
import ctypes
ctypes.CDLL(None).prctl(1, 9)
print('ready', flush=True)
while True: pass
"""
#: Starts a program that is no sibling of the test's programs: siblings count as one job.
ANOTHER = ("sh", "-c", '"$@" & wait', "sh")
#: A machine whose GPU does not matter.
GPU_NODE = made({0: "0-1"}, gpus=[0])
OTHER_USER = (*ANOTHER, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
SECONDS = 4

CPU_CGROUPS = Path("/sys/fs/cgroup/cpu")

P = ParamSpec("P")
ATTEMPTS = 4  #: by then other work on this machine may be over


def on_a_quiet_machine(test: Callable[P, None]) -> Callable[P, None]:
    """Run a failed test again: it fails if other processes have run on the test's CPUs."""

    @wraps(test)
    def attempts(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(ATTEMPTS - 1):
            with suppress(AssertionError):
                return test(*args, **kwargs)
        return test(*args, **kwargs)

    return attempts


pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not os.access(CPU_CGROUPS / "cgroup.procs", os.W_OK),
    reason="it takes root, and the CPU controller of cgroups v1",
)


@contextmanager
def on_cpus(cpus: str, code: str, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run code on these CPUs, in its own session."""
    with program(code, before=["taskset", "-c", cpus, "setsid", *before]) as child:
        yield child


@contextmanager
def limited(pid: int, percent: int) -> Iterator[None]:
    """Limit a process, and those that it starts, to a percentage of a CPU's time."""
    folder = CPU_CGROUPS / f"test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "cpu.cfs_period_us").write_text("100000")
        (folder / "cpu.cfs_quota_us").write_text(f"{percent * 1000}")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for member in (f"{pid}", *children):
            (folder / "cgroup.procs").write_text(member)
        yield
    finally:
        for member in (folder / "cgroup.procs").read_text().split():
            (CPU_CGROUPS / "cgroup.procs").write_text(member)
        folder.rmdir()


def why(pid: int) -> Mapping[str, Any]:
    command = [sys.executable, "-m", "affinityd", "why", "--for", f"{SECONDS}s", "--json", f"{pid}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return dict(json.loads(done.stdout))


@on_a_quiet_machine
def test_a_limit_is_named_as_the_cause() -> None:
    with on_cpus("1", BUSY) as rank, limited(rank.pid, 30):
        answer = why(rank.pid)
    assert answer["waited"] == pytest.approx(0.7 * SECONDS, rel=0.2)
    assert answer["throttled"] == pytest.approx(answer["waited"], rel=0.2)
    assert answer["cause"] == "throttled"
    assert "CPU limit" in answer["remedy"]
    assert f"test-{os.getpid()}" in answer["remedy"]


@pytest.mark.parametrize(
    ("cause", "named", "before"),
    [
        ("neighbor", "affinityd pin --tree --cpus 0", OTHER_USER),
        ("system", "--reserved-cpus", ANOTHER),
    ],
)
@on_a_quiet_machine
def test_a_process_on_the_same_cpu_is_named_as_the_cause(
    cause: str, named: str, before: Sequence[str]
) -> None:
    with ExitStack() as stack:
        rank = stack.enter_context(on_cpus("1", BUSY))
        for _ in range(3):
            stack.enter_context(on_cpus("1", BUSY, before=before))
        answer = why(rank.pid)
    assert answer["waited"] == pytest.approx(0.75 * SECONDS, rel=0.2)
    assert answer["cause"] == cause
    assert named in answer["remedy"]


@on_a_quiet_machine
def test_a_scan_names_the_neighbor_once_it_has_seen_it_run() -> None:
    gpu = GPU_NODE.gpus[0]
    with on_cpus("1", BUSY) as rank, on_cpus("1", BUSY, before=OTHER_USER):
        auditor = Auditor(lambda _: GpuHolders((Holding(rank.pid, gpu.key),)))
        scans = []
        for _ in range(4):
            scans.append(auditor.scan(GPU_NODE))
            time.sleep(2)
    first, second, _, last = scans
    assert first.waits == {}
    assert second.waits[rank.pid].cause is None  # the neighbor is measured from now on
    assert last.waits[rank.pid].cause == "neighbor"
    waited = [scan.waits[rank.pid].waited or 0.0 for scan in scans[1:]]
    assert waited[-1] > 0.3 * last.waits[rank.pid].seconds
    assert last.gpu_time[gpu.key].waited == pytest.approx(sum(waited))
