"""The seconds for which a process waited are split by what its CPUs did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.audit.model import KUBERNETES, SLURM
from affinityd.audit.waits import CAUSES, Runner, Use, Waits, remedy, split
from affinityd.linux import scheduling
from affinityd.linux.scheduling import CpuTime, ThreadTime


def runner(kind: str, ran: float, owner: str | None = None, most: float | None = None) -> Runner:
    return Runner(kind, 7, "other", owner, ran, ran if most is None else most)


def use(
    *threads: tuple[float, float],
    cpus: int = 1,
    cpu: CpuTime | None = None,
    beside: Sequence[Runner] = (),
    throttled: float = 0.0,
) -> Use:
    """Return ten seconds, in which threads ran and waited for so long, of CPUs that were busy."""
    times, busy = [ThreadTime(*it) for it in threads], cpu or CpuTime(10 * cpus)
    ran = sum(time.ran for time in times)
    return Use(10, frozenset(range(cpus)), times, ran, busy, beside, throttled)


HALF = 5, 5  #: a thread that runs whenever it may: seconds for which it ran, and waited
DAEMON, NEIGHBOR = runner("system", 2), runner("neighbor", 5)


@pytest.mark.parametrize(
    ("work", "waited"),
    [
        (use((10, 0)), {}),
        (use(HALF, beside=[NEIGHBOR]), {"neighbor": 5}),
        # In proportion to what others ran: on these CPUs, as far as is known.
        (use((4, 6), beside=[runner("neighbor", 4), DAEMON]), {"neighbor": 4, "system": 2}),
        (use((8, 2), beside=[runner("neighbor", 9)]), {"neighbor": 2}),
        # One that may have run elsewhere ran here more than that, as these CPUs did nothing else.
        (
            use(HALF, beside=[runner("neighbor", 2, most=4), runner("system", 0.5)]),
            {"neighbor": 4, "system": 0.5, "unknown": 0.5},
        ),
        (use(HALF), {"unknown": 5}),  # what ran there has ended
        (use(*[(20 / 3, 10 / 3)] * 3, cpus=2), {"own_threads": 10}),
        (use(HALF, beside=[runner("own_threads", 5)]), {"own_threads": 5}),  # of the same job
        # Threads in bursts, though their CPUs idle for most of the time; and a lone one.
        (use(*[(2, 1)] * 3, cpus=2, cpu=CpuTime(6)), {"own_threads": 3}),
        (use((2, 1), cpus=2, cpu=CpuTime(2)), {"unknown": 1}),
        # A limit of one CPU. Fewer threads would wait less, too.
        (use(HALF, HALF, cpus=2, cpu=CpuTime(10), throttled=10), {"throttled": 10}),
        (
            use(*[(2.5, 7.5)] * 4, cpus=2, cpu=CpuTime(10), throttled=10),
            {"throttled": 10, "own_threads": 20},
        ),
        # The kernel counts the thread that an interrupt found, or the hypervisor, as running.
        (use((10, 0), cpu=CpuTime(8, interrupts=2)), {"interrupts": 2}),
        (use((10, 0), cpu=CpuTime(5, steal=5)), {"steal": 5}),
        (use(HALF, beside=[runner("interrupts", 5)]), {"interrupts": 5}),
        # A neighbor on one of eight CPUs, of which the job has more threads than CPUs.
        (
            use(*[(75 / 9, 15 / 9)] * 9, cpus=8, beside=[NEIGHBOR]),
            {"own_threads": 10, "neighbor": 5},
        ),
    ],
)
def test_each_cause_has_its_seconds(work: Use, waited: Mapping[str, float]) -> None:
    expected = {**dict.fromkeys(CAUSES, 0.0), **waited}
    assert split(work) == pytest.approx(expected, abs=0.01)


SECONDS = st.floats(0, 100)


@given(
    st.lists(st.builds(ThreadTime, SECONDS, SECONDS), max_size=4),
    st.builds(CpuTime, SECONDS, SECONDS, SECONDS),
    st.lists(st.builds(runner, st.sampled_from(CAUSES[1:5]), SECONDS), max_size=4),
    SECONDS,
)
def test_the_causes_of_a_wait_add_up_to_what_the_kernel_counts(
    threads: list[ThreadTime], cpu: CpuTime, runners: list[Runner], throttled: float
) -> None:
    ran = sum(thread.ran for thread in threads)
    causes = split(Use(10, frozenset({0, 1}), threads, ran, cpu, runners, throttled))
    waited = sum(thread.waited for thread in threads)
    assert all(seconds >= 0 for seconds in causes.values())
    assert waited - 1e-6 <= sum(causes.values())
    assert sum(causes.values()) <= waited + cpu.interrupts + cpu.steal + 1e-6


def waits(cause: str, owner: str | None = None) -> Waits:
    causes = {**dict.fromkeys(CAUSES, 0.0), cause: 5.0}
    here, elsewhere = frozenset({0, 1}), frozenset({2, 3})
    return Waits(10, causes, here, elsewhere, [runner(cause, 5, owner)], "/limit", "IRQ 5 (nic)")


@pytest.mark.parametrize(
    ("cause", "owner", "scheduler", "named"),
    [
        ("throttled", None, None, "/limit"),
        ("own_threads", None, None, "OMP_NUM_THREADS to at most 2"),
        ("neighbor", None, None, "affinityd pin --tree --cpus 2-3 7"),
        ("neighbor", "slurm 8", SLURM, "--exact"),
        ("neighbor", "kubernetes uid", None, "static CPU manager"),
        ("neighbor", None, KUBERNETES, "static CPU manager"),
        ("system", "chronyd.service", None, "other (process 7 of chronyd.service)"),
        ("interrupts", None, None, "IRQ 5 (nic)"),
        ("steal", None, None, "dedicated"),
    ],
)
def test_a_remedy_names_what_it_needs(
    cause: str, owner: str | None, scheduler: str | None, named: str
) -> None:
    assert named in (remedy(waits(cause, owner), scheduler) or "")


@pytest.mark.parametrize(
    "quiet",
    [waits("unknown"), Waits(10, dict.fromkeys(CAUSES, 0.0)), Waits(1000, waits("steal").causes)],
)
def test_a_wait_without_a_cure_has_no_remedy(quiet: Waits) -> None:
    assert remedy(quiet, None) is None


STAT = """cpu  3 3 3 3 3 3 3 3 0 0
cpu0 100 0 200 5000 7 10 20 50 30 0
cpu12 1 2 3 4 5 6 7 8
intr 5
"""
INTERRUPTS = """           CPU0       CPU12
  0:          9          1   IO-APIC   2-edge      timer
 57:          4          6   PCI-MSI 512-edge      mlx5_comp0@pci:0000:18:00.0
LOC:        100        200   Local timer interrupts
ERR:          0
"""
SOFTIRQS = """                    CPU0       CPU12
       TIMER:          1          2
      NET_RX:         30         12
"""


def test_counters_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    task = tmp_path / "7/task/7"
    task.mkdir(parents=True)
    (task / "schedstat").write_text("2500000000 1500000000 12\n")
    (task / "status").write_text("Name:\tx\nnonvoluntary_ctxt_switches:\t5\n")
    (task / "sched").write_text("x (7, #threads: 1)\nse.nr_migrations      :      3\n")
    for name, text in (("stat", STAT), ("interrupts", INTERRUPTS), ("softirqs", SOFTIRQS)):
        (tmp_path / name).write_text(text)
    proc = str(tmp_path)
    assert scheduling.thread_time(7, 7, proc) == (2.5, 1.5)
    assert scheduling.switches_of(7, 7, proc) == (5, 3)
    times = {0: CpuTime(3, 0.3, 0.5), 12: CpuTime(0.06, 0.13, 0.08)}
    assert {cpu: pytest.approx(time) for cpu, time in times.items()} == scheduling.cpu_times(proc)
    assert scheduling.interrupt_counts(frozenset({12}), proc) == {
        "IRQ 0 (timer)": 1,
        "IRQ 57 (mlx5_comp0@pci:0000:18:00.0)": 6,
        "softirq NET_RX": 12,
    }


def test_waits_are_none_where_the_kernel_does_not_count_them(tmp_path: Path) -> None:
    proc = str(tmp_path)
    assert scheduling.thread_time(7, 7, proc) is None
    assert scheduling.switches_of(7, 7, proc) == (None, None)
    assert scheduling.cpu_times(proc) == {}
    assert scheduling.interrupt_counts(frozenset({0}), proc) == {}
    assert scheduling.pressure_of("0::/\n", f"{tmp_path}/") is None
