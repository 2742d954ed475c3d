from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.model import GpuHolders, Holding
from affinityd.audit.sources.holders import NOT_ALL_PIDS, HolderSources, one_a_process
from affinityd.audit.sources.nvml import NO_DRIVER, NVML_SECONDS, READ_AGAIN, processes_of
from affinityd.discovery.nvml import GpuProcesses, NvmlProcess, ProcessReport
from affinityd.linux.processes import INITIAL_PIDS
from affinityd.topology.model import Gpu, Topology
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import put

FIVE = tuple(
    Gpu(index, "nvidia", f"0000:0{index}:00.0", numa_node=0, uuid=f"GPU-{index}")
    for index in range(5)
)
NVIDIAS = FIVE[:3]
FIRST, SECOND, THIRD = (gpu.key for gpu in NVIDIAS)
AMDS = ("amd", 0)
GIB = 2**30


def listed(index: int, *processes: NvmlProcess, error: str | None = None) -> GpuProcesses:
    return GpuProcesses(index, f"GPU-{index}", f"0000:0{index}:00.0", processes, error)


def report(*processes: tuple[NvmlProcess, ...], changing: str | None = None) -> ProcessReport:
    """Return what NVML says of three GPUs; the processes of each, as far as they are given."""
    rest = ((),) * (len(NVIDIAS) - len(processes))
    gpus = (listed(index, *its) for index, its in enumerate((*processes, *rest)))
    return ProcessReport(tuple(gpus), changing=changing)


def of(pid: int, memory: int | None, mig: str | None = None, kind: str = "compute") -> NvmlProcess:
    return NvmlProcess(pid, kind, memory, mig)


def test_nvml_names_what_uses_which_gpu() -> None:
    """In two lists, of which one may know the memory; of unknown memory; on MIG devices."""
    first = (
        *(of(1, 100), of(1, 100, kind="graphics"), of(2, None, kind="mps"), of(2, 100)),
        *(of(3, None), of(4, 1, "MIG-0"), of(4, 3, "MIG-1"), of(5, None, "MIG-1")),
    )
    assert processes_of(report(first, (of(1, 2),)), NVIDIAS) == GpuHolders(
        (
            *(Holding(1, FIRST, 100), Holding(2, FIRST, 100), Holding(3, FIRST)),
            *(Holding(4, FIRST, 4, "MIG-1"), Holding(5, FIRST, None, "MIG-1")),
            Holding(1, SECOND, 2),
        )
    )
    assert processes_of(report(), NVIDIAS) == GpuHolders()


IN_USE = of(7, 100)


def test_a_doubtful_gpu_costs_its_own_answer_alone() -> None:
    said = (
        listed(0, IN_USE, error="GPU is lost"),
        replace(listed(1, IN_USE), uuid="GPU-9"),
        GpuProcesses(2, None, "0000:09:00.0", (IN_USE,)),
        GpuProcesses(4, processes=(IN_USE,)),  # known by its index alone
    )
    moved = f"NVML's GPU {{}} now, and was {{}}: {READ_AGAIN}"
    assert processes_of(ProcessReport(said), FIVE) == GpuHolders(
        (Holding(7, FIVE[4].key, 100),),
        {
            FIRST: "NVML: GPU is lost",
            SECOND: moved.format("1 is GPU-9", "GPU-1"),
            THIRD: moved.format("2 is 0000:09:00.0", "0000:02:00.0"),
            FIVE[3].key: "NVML does not list a GPU 3",
        },
    )
    silent = ProcessReport(None, error="NVML did not answer")
    unknown = {gpu.key: "NVML did not answer" for gpu in NVIDIAS}
    assert processes_of(silent, NVIDIAS) == GpuHolders(unknown=unknown)


@pytest.mark.parametrize(
    ("holdings", "together"),
    [
        ([(FIRST, GIB), (SECOND, 20 * GIB)], Holding(7, SECOND, 20 * GIB)),
        # Half on each: the lowest index comes first. A quarter of the most counts, and no less.
        ([(FIRST, 40), (SECOND, 40)], Holding(7, FIRST, 40, beside=(SECOND,))),
        ([(THIRD, 20), (SECOND, 80), (FIRST, 21)], Holding(7, SECOND, 80, beside=(FIRST, THIRD))),
        ([(THIRD, 19), (SECOND, 80), (FIRST, 21)], Holding(7, SECOND, 80, beside=(FIRST,))),
        ([(THIRD, 4, "MIG-1"), (SECOND, 1)], Holding(7, THIRD, 4, "MIG-1", beside=(SECOND,))),
        # Where it is not known how much, all that it has open counts.
        ([(THIRD,), (SECOND,)], Holding(7, SECOND, beside=(THIRD,))),
        ([(FIRST,), (SECOND, 0), (THIRD, GIB)], Holding(7, THIRD, GIB, beside=(FIRST,))),
        ([(FIRST, 0), (SECOND, 0)], Holding(7, FIRST, 0, beside=(SECOND,))),
        ([(FIRST, GIB), (AMDS, GIB)], Holding(7, AMDS, GIB, beside=(FIRST,))),
    ],
)
def test_a_process_works_on_the_gpus_in_which_it_holds_a_quarter_of_the_most(
    holdings: list[tuple[tuple[str, int]]], together: Holding
) -> None:
    first, none = Holding(6, FIRST, 1), Holding(0, FIRST, 9)  # pid 0 is no process
    named = [Holding(7, *its) for its in holdings]
    for order in (named, named[::-1]):
        assert one_a_process([*order, none, first], "/none") == (first, together)


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
    places = {name: os.fspath(root / name) for name in ("proc", "sys", "dev", "driver", "hold")}
    return HolderSources(asked, **places, clock=asked.clock)


def machine(*gpus: Gpu) -> Topology:
    return replace(made({0: "0-3"}), gpus=gpus)


MACHINE = machine(*NVIDIAS)


def unknown(why: str) -> GpuHolders:
    return GpuHolders(unknown={gpu.key: why for gpu in NVIDIAS}, asked=1000.0)


def test_each_vendors_source_is_asked_and_when_is_told(root: Path) -> None:
    amd = Gpu(0, "amd", "0000:21:00.0", numa_node=0, render_minor=128)
    npu = Gpu(0, "huawei", "0000:31:00.0", numa_node=0)
    kfd = root / "sys/class/kfd/kfd"
    put(kfd / "topology/nodes/1/gpu_id", 4242)
    put(kfd / "topology/nodes/1/properties", "simd_count 440\ndrm_render_minor 128")
    put(kfd / "proc/9/vram_4242", 4096)
    held = holders(root, Asked(report((IN_USE,)))).held(machine(*NVIDIAS, amd, npu))
    assert held.holdings == (Holding(7, FIRST, 100), Holding(9, AMDS, 4096))
    assert set(held.unknown) == {npu.key}
    assert held.asked == 1000.0


def test_without_driver_or_gpus_or_in_a_pid_namespace_nvml_is_not_asked(root: Path) -> None:
    asked = Asked()
    assert holders(root, asked).held(machine()) == GpuHolders(asked=1000.0)
    (root / "driver/version").unlink()
    assert holders(root, asked).held(MACHINE) == unknown(NO_DRIVER)
    # The host's pid 7, which NVML would name, is another process there, or none.
    put(root / "driver/version", "NVRM version: 550.54.15")
    link = root / "proc/self/ns/pid"
    link.unlink()
    link.symlink_to("pid:[4026532211]")
    assert holders(root, asked).held(MACHINE) == unknown(NOT_ALL_PIDS)
    assert asked.times == []


CHANGE = "GPU 1's MIG mode will be enabled"


@pytest.mark.parametrize("changing", [None, CHANGE])
def test_while_the_driver_is_worked_on_no_answer_counts(root: Path, changing: str | None) -> None:
    asked = Asked(report((IN_USE,), changing=changing), report((of(8, 1),)))
    looking = holders(root, asked)
    assert [it.pid for it in looking.held(MACHINE).holdings] == [7]
    (root / "hold").write_text("upgrade\n")
    why = f"NVML calls are on hold by 'upgrade', until {root / 'hold'} is removed"
    assert replace(looking.held(MACHINE), asked=1000.0) == unknown(why)
    assert len(asked.times) == 1
    (root / "hold").unlink()
    assert [it.pid for it in looking.held(MACHINE).holdings] == [8]
