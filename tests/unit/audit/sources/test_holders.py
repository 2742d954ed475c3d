from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.model import GpuHolders, Holding
from affinityd.audit.sources.holders import NOT_ALL_PIDS, HolderSources, one_a_process
from affinityd.audit.sources.nvml import CHANGING_SECONDS, NO_DRIVER, NVML_SECONDS, processes_of
from affinityd.discovery.nvml.report import GpuProcesses, NvmlProcess, ProcessReport
from affinityd.linux.processes import INITIAL_PIDS, stat_of, thread_ids
from affinityd.topology.model import Gpu, Topology
from tests.support.children import program, sleeping
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import put

NVIDIAS = tuple(
    Gpu(index, "nvidia", f"0000:0{index}:00.0", numa_node=0, uuid=f"GPU-{index}")
    for index in range(3)
)
FIRST, SECOND, THIRD = (gpu.key for gpu in NVIDIAS)


def listed(index: int, *processes: NvmlProcess, error: str | None = None) -> GpuProcesses:
    return GpuProcesses(index, f"GPU-{index}", f"0000:0{index}:00.0", processes, error)


def report(*processes: tuple[NvmlProcess, ...]) -> ProcessReport:
    """Return what NVML says of three GPUs; the processes of each, as far as they are given."""
    rest = ((),) * (len(NVIDIAS) - len(processes))
    return ProcessReport(tuple(listed(i, *it) for i, it in enumerate((*processes, *rest))))


def computing(pid: int, memory: int | None, mig: str | None = None) -> NvmlProcess:
    return NvmlProcess(pid, "compute", memory, mig)


@pytest.mark.parametrize(
    ("said", "holdings"),
    [
        pytest.param(report(), set(), id="nobody uses a GPU"),
        pytest.param(
            report((computing(7, 100),), (computing(8, 200),)),
            {Holding(7, FIRST, 100), Holding(8, SECOND, 200)},
            id="a process on each GPU",
        ),
        pytest.param(
            report((computing(7, 100), NvmlProcess(7, "graphics", 100))),
            {Holding(7, FIRST, 100)},
            id="in two lists with the same memory",
        ),
        pytest.param(
            report((NvmlProcess(7, "mps", None), computing(7, 100))),
            {Holding(7, FIRST, 100)},
            id="in two lists of which one knows its memory",
        ),
        pytest.param(
            report((computing(7, None),)), {Holding(7, FIRST)}, id="its memory is not known"
        ),
        pytest.param(
            report((computing(7, 100, "MIG-0"), computing(7, 300, "MIG-1"))),
            {Holding(7, FIRST, 400, "MIG-1")},
            id="on two MIG devices of a GPU",
        ),
        pytest.param(
            report((computing(7, 100, "MIG-0"), computing(8, None, "MIG-1"))),
            {Holding(7, FIRST, 100, "MIG-0"), Holding(8, FIRST, None, "MIG-1")},
            id="a process on each MIG device",
        ),
    ],
)
def test_nvml_names_who_uses_which_gpu(said: ProcessReport, holdings: set[Holding]) -> None:
    told = processes_of(said, NVIDIAS)
    assert (set(told.holdings), dict(told.unknown)) == (holdings, {})


IN_USE = (computing(7, 100),)


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        pytest.param(
            (listed(0, *IN_USE, error="GPU is lost"), listed(1), listed(2)),
            {FIRST: "NVML: GPU is lost"},
            id="a GPU that does not answer",
        ),
        pytest.param(
            (listed(0), listed(1)), {THIRD: "NVML does not list a GPU 2"}, id="a GPU that is gone"
        ),
        pytest.param(
            (replace(listed(0, *IN_USE), uuid="GPU-9"), listed(1), listed(2)),
            {FIRST: "NVML's GPU 0 is GPU-9 now, and was GPU-0: read the machine anew"},
            id="a GPU that was exchanged",
        ),
        pytest.param(
            (GpuProcesses(0, None, "0000:09:00.0", IN_USE), listed(1), listed(2)),
            {
                FIRST: "NVML's GPU 0 is 0000:09:00.0 now, and was 0000:00:00.0: "
                "read the machine anew"
            },
            id="a GPU elsewhere on the bus",
        ),
    ],
)
def test_a_doubtful_gpu_costs_its_own_answer_alone(
    gpus: tuple[GpuProcesses, ...], why: dict[tuple[str, int], str]
) -> None:
    told = processes_of(ProcessReport(gpus), NVIDIAS)
    assert (told.holdings, told.unknown) == ((), why)


def test_a_gpu_that_tells_nothing_of_itself_is_known_by_its_index() -> None:
    told = processes_of(ProcessReport((GpuProcesses(0, processes=IN_USE),)), NVIDIAS[:1])
    assert (told.holdings, told.unknown) == ((Holding(7, FIRST, 100),), {})


def test_while_nvml_is_silent_nothing_is_known() -> None:
    told = processes_of(ProcessReport(None, error="NVML did not answer within 10 s"), NVIDIAS)
    why = "NVML did not answer within 10 s"
    assert (told.holdings, told.unknown) == ((), {gpu.key: why for gpu in NVIDIAS})


GIB = 2**30
AMDS = ("amd", 0)


@pytest.mark.parametrize(
    ("holdings", "together"),
    [
        pytest.param([Holding(7, SECOND, 100)], Holding(7, SECOND, 100), id="one"),
        pytest.param(
            [Holding(7, FIRST, 500 * 2**20), Holding(7, SECOND, 20 * GIB)],
            Holding(7, SECOND, 20 * GIB),
            id="a mere context on another is no use of it",
        ),
        pytest.param(
            [Holding(7, FIRST, 40 * GIB), Holding(7, SECOND, 40 * GIB)],
            Holding(7, FIRST, 40 * GIB, beside=(SECOND,)),
            id="half on each: the lowest index comes first",
        ),
        pytest.param(
            [Holding(7, THIRD, 20), Holding(7, SECOND, 80), Holding(7, FIRST, 21)],
            Holding(7, SECOND, 80, beside=(FIRST, THIRD)),
            id="a quarter of the most, and more",
        ),
        pytest.param(
            [Holding(7, THIRD, 19), Holding(7, SECOND, 80), Holding(7, FIRST, 21)],
            Holding(7, SECOND, 80, beside=(FIRST,)),
            id="and less",
        ),
        pytest.param(
            [Holding(7, THIRD, 4 * GIB, "MIG-1"), Holding(7, SECOND, GIB, "MIG-2")],
            Holding(7, THIRD, 4 * GIB, "MIG-1", beside=(SECOND,)),
            id="parts of two GPUs",
        ),
        pytest.param(
            [Holding(7, THIRD), Holding(7, SECOND)],
            Holding(7, SECOND, beside=(THIRD,)),
            id="nobody says how much: all that it has open",
        ),
        pytest.param(
            [Holding(7, FIRST), Holding(7, SECOND, 0), Holding(7, THIRD, GIB)],
            Holding(7, THIRD, GIB, beside=(FIRST,)),
            id="nobody says how much of one",
        ),
        pytest.param(
            [Holding(7, FIRST, 0), Holding(7, SECOND, 0)],
            Holding(7, FIRST, 0, beside=(SECOND,)),
            id="queues on two, and no memory yet",
        ),
        pytest.param(
            [Holding(7, FIRST, GIB), Holding(7, AMDS, GIB)],
            Holding(7, AMDS, GIB, beside=(FIRST,)),
            id="two vendors' GPUs",
        ),
    ],
)
def test_a_process_works_on_the_gpus_in_which_it_holds_a_quarter_of_the_most(
    holdings: list[Holding], together: Holding
) -> None:
    for order in (holdings, holdings[::-1]):
        assert one_a_process(order, "/none") == (together,)


def test_processes_are_in_order_and_pid_0_is_nobody() -> None:
    holdings = [Holding(8, FIRST, 1), Holding(0, FIRST, 9), Holding(7, THIRD, 5)]
    assert one_a_process(holdings, "/none") == (Holding(7, THIRD, 5), Holding(8, FIRST, 1))


TWO_THREADS = """
import threading
end = threading.Event()
threading.Thread(target=end.wait, daemon=True).start()
print('ready', flush=True)
input()
"""


def test_a_driver_that_names_a_thread_means_its_process() -> None:
    with program(TWO_THREADS) as child:
        (other,) = (tid for tid in thread_ids(child.pid) if tid != child.pid)
        own, thread = Holding(child.pid, FIRST, 2), Holding(other, FIRST, 1)
        for named, memory in (((own, thread), 2), ((thread, own), 2), ((thread,), 1)):
            assert one_a_process(named, "/proc") == (Holding(child.pid, FIRST, memory),)


class Asked:
    """NVML's asker, by a script; and a clock, by hand."""

    def __init__(self, *reports: ProcessReport) -> None:
        self._reports = iter(reports)
        self.times: list[float] = []
        self.now = 1000.0

    def __call__(self, timeout: float) -> ProcessReport:
        assert timeout == NVML_SECONDS
        self.times.append(self.now)
        self.now += 5
        return next(self._reports)

    def clock(self) -> float:
        return self.now


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a machine on which NVIDIA's driver is loaded, and no process is to be seen."""
    put(tmp_path / "driver/version", "NVRM version: 550.54.15")
    namespaces = tmp_path / "proc/self/ns"
    namespaces.mkdir(parents=True)
    (namespaces / "pid").symlink_to(INITIAL_PIDS)
    return tmp_path


def holders(root: Path, asked: Asked) -> HolderSources:
    return HolderSources(
        asked,
        proc=os.fspath(root / "proc"),
        sys=os.fspath(root / "sys"),
        dev=os.fspath(root / "dev"),
        driver=os.fspath(root / "driver"),
        hold=os.fspath(root / "hold"),
        clock=asked.clock,
    )


def machine(*gpus: Gpu) -> Topology:
    return replace(made({0: "0-3"}), gpus=gpus)


MACHINE = machine(*NVIDIAS)


def unknown(topology: Topology, why: str) -> dict[tuple[str, int], str]:
    return {gpu.key: why for gpu in topology.gpus}


def test_who_holds_a_gpu_is_asked_of_its_vendors_source(root: Path) -> None:
    amd = Gpu(0, "amd", "0000:21:00.0", numa_node=0, render_minor=128)
    npu = Gpu(0, "huawei", "0000:31:00.0", numa_node=0)
    kfd = root / "sys/class/kfd/kfd"
    put(kfd / "topology/nodes/1/gpu_id", 4242)
    put(kfd / "topology/nodes/1/properties", "simd_count 440\ndrm_render_minor 128")
    put(kfd / "proc/9/vram_4242", 4096)
    asked = Asked(report((computing(7, 100),)))
    held = holders(root, asked).held(machine(*NVIDIAS, amd, npu))
    assert held.holdings == (Holding(7, FIRST, 100), Holding(9, ("amd", 0), 4096))
    assert set(held.unknown) == {("huawei", 0)}


def test_what_started_after_the_asking_began_is_not_who_was_named(root: Path) -> None:
    asked = Asked(report((computing(7, 100),)))
    assert holders(root, asked).held(MACHINE).asked == 1000.0
    assert asked.now > 1000.0


def test_the_asking_is_timed_by_the_clock_that_starts_are_counted_in() -> None:
    """By a process that started before, and one that started after it."""
    ticks = os.sysconf("SC_CLK_TCK")
    with sleeping() as before:
        time.sleep(2 / ticks)
        held = HolderSources(Asked()).held(machine())
        time.sleep(2 / ticks)
        with sleeping() as after:
            started = [stat_of(child.pid) for child in (before, after)]
    early, late = (stat.start / ticks for stat in started if stat is not None)
    assert early < held.asked < late


def test_a_driver_that_is_not_loaded_is_not_asked(root: Path) -> None:
    (root / "driver/version").unlink()
    asked = Asked()
    assert holders(root, asked).held(MACHINE).unknown == unknown(MACHINE, NO_DRIVER)
    assert asked.times == []


def test_a_machine_without_nvidias_gpus_has_nvml_not_asked(root: Path) -> None:
    asked = Asked()
    assert holders(root, asked).held(machine()) == GpuHolders(asked=1000.0)
    assert asked.times == []


def test_who_works_on_the_driver_is_left_alone(root: Path) -> None:
    asked = Asked(report(IN_USE), report(IN_USE))
    looking = holders(root, asked)
    assert looking.held(MACHINE).holdings == (Holding(7, FIRST, 100),)
    (root / "hold").write_text("upgrade\n")
    held = looking.held(MACHINE)
    why = f"NVML is held off by 'upgrade', until {root / 'hold'} is removed"
    assert (held.holdings, held.unknown) == ((), unknown(MACHINE, why))
    assert len(asked.times) == 1
    (root / "hold").unlink()
    assert looking.held(MACHINE).holdings == (Holding(7, FIRST, 100),)


CHANGE = "GPU 1's MIG mode is to be enabled"
IS_TO_CHANGE = replace(report(IN_USE), changing=CHANGE)
IN_USE_BY_8 = (computing(8, 100),)


def test_while_a_mig_mode_is_to_change_nvml_is_asked_once_a_minute_and_counts_until_then(
    root: Path,
) -> None:
    asked = Asked(IS_TO_CHANGE, replace(report(IN_USE_BY_8), changing=CHANGE), report(IN_USE))
    looking = holders(root, asked)
    seen = []
    for seconds in (15, 15, CHANGING_SECONDS - 35, 15, CHANGING_SECONDS):
        held = looking.held(MACHINE)
        seen.append([it.pid for it in held.holdings])
        assert held.unknown == {}
        assert held.notices == (
            f"{CHANGE}: NVML is asked once a minute, until a reset has done that",
        )
        assert held.asked == asked.times[-1]
        asked.now += seconds
    assert seen == [[7], [7], [7], [8], [8]]
    assert len(asked.times) == 2
    assert asked.times[1] - asked.times[0] >= CHANGING_SECONDS
    done = looking.held(MACHINE)
    assert ([it.pid for it in done.holdings], done.notices) == ([7], ())
    assert done.asked == asked.times[2]


def test_what_nvml_said_before_somebody_worked_on_the_driver_counts_no_more(root: Path) -> None:
    asked = Asked(IS_TO_CHANGE, report(IN_USE_BY_8))
    looking = holders(root, asked)
    looking.held(MACHINE)
    (root / "hold").touch()
    assert looking.held(MACHINE).holdings == ()
    (root / "hold").unlink()
    assert [it.pid for it in looking.held(MACHINE).holdings] == [8]


@pytest.fixture
def elsewhere(root: Path) -> Path:
    """Return the machine as it is seen from a pid namespace."""
    link = root / "proc/self/ns/pid"
    link.unlink()
    link.symlink_to("pid:[4026532211]")
    return root


def test_from_a_pid_namespace_nobody_can_tell_who_uses_a_gpu(elsewhere: Path) -> None:
    """The host's pid 7, which NVML would name, is another process there, or none."""
    asked = Asked()
    held = holders(elsewhere, asked).held(MACHINE)
    assert (held.holdings, held.unknown) == ((), unknown(MACHINE, NOT_ALL_PIDS))
    assert asked.times == []
