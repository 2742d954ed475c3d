"""Which processes hold which GPU: by NVML, by KFD, by open device files."""

import os
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from affinityd.audit import sources as device_files
from affinityd.audit.model import GpuHolders, Holding
from affinityd.audit.sources import (
    NVML_SECONDS,
    DeviceFileScanner,
    GpuDeviceFiles,
    HolderSources,
    kfd_holders,
    one_a_process,
    processes_of,
)
from affinityd.discovery.nvml import GpuProcesses, NvmlLoad, NvmlProcess, ProcessReport
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


def report(*processes: tuple[NvmlProcess, ...]) -> ProcessReport:
    """Return NVML's report on three GPUs; the first ones have these processes."""
    rest = ((),) * (len(NVIDIAS) - len(processes))
    gpus = (listed(index, *its) for index, its in enumerate((*processes, *rest)))
    return ProcessReport(tuple(gpus))


def of(pid: int, memory: int | None, mig: str | None = None, kind: str = "compute") -> NvmlProcess:
    return NvmlProcess(pid, kind, memory, mig)


def test_nvml_s_lists_name_the_processes_of_each_gpu() -> None:
    first = (
        *(of(1, 100), of(1, 100, kind="graphics"), of(2, None, kind="mps"), of(2, 100)),
        *(of(3, None), of(4, 1, "MIG-0"), of(4, 3, "MIG-1"), of(5, None, "MIG-1")),
    )
    assert processes_of(report(first, (of(1, 2),)), NVIDIAS) == GpuHolders(
        loads=dict.fromkeys((FIRST, SECOND, THIRD), NvmlLoad()),
        holdings=(
            *(Holding(1, FIRST, 100), Holding(2, FIRST, 100), Holding(3, FIRST)),
            *(Holding(4, FIRST, 4, "MIG-1"), Holding(5, FIRST, None, "MIG-1")),
            Holding(1, SECOND, 2),
        ),
    )
    assert processes_of(report(), NVIDIAS).holdings == ()


IN_USE = of(7, 100)


def test_a_doubt_about_one_gpu_does_not_change_the_answers_about_others() -> None:
    said = (
        replace(listed(0, IN_USE, error="GPU is lost"), is_lost=True, load=NvmlLoad(37, 1, 2)),
        replace(listed(2, of(8, 100)), index=1),  # the GPU before it is gone
        GpuProcesses(3, None, "0000:09:00.0", (IN_USE,)),
        GpuProcesses(4, processes=(IN_USE,)),  # known only by its index
    )
    loads = {FIRST: NvmlLoad(37, 1, 2), THIRD: NvmlLoad(), FIVE[4].key: NvmlLoad()}
    assert processes_of(ProcessReport(said), FIVE) == GpuHolders(
        (Holding(8, THIRD, 100), Holding(7, FIVE[4].key, 100)),
        {
            FIRST: "NVML: GPU is lost",
            SECOND: "NVML does not list GPU 1 (GPU-1) any more",
            FIVE[3].key: "NVML does not list GPU 3 (GPU-3) any more",
        },
        lost=frozenset([FIRST, SECOND, FIVE[3].key]),
        loads=loads,
    )
    silent = ProcessReport(None, error="NVML did not answer")
    unknown = {gpu.key: "NVML did not answer" for gpu in NVIDIAS}
    assert processes_of(silent, NVIDIAS) == GpuHolders(unknown=unknown)
    hung = processes_of(replace(silent, has_hung=True), NVIDIAS)
    assert hung == GpuHolders(unknown=unknown, lost=frozenset(unknown))


def test_a_gpu_that_disappears_is_gone_unless_another_driver_has_it(root: Path) -> None:
    source = holders(root, Asked(*[report()] * 5))
    first, second, third = NVIDIAS
    one = replace(second, index=0)  # the first GPU is gone
    for machine, gone in (
        (MACHINE, ()),
        (machine_of(one), (first, third)),
        (machine_of(), (first, one, third)),
        (MACHINE, ()),
    ):
        assert source.held(machine).gone == gone
    device = root / "sys/bus/pci/devices" / first.pci_bus_id
    device.mkdir(parents=True)
    (device / "driver").symlink_to("../../drivers/vfio-pci")
    assert source.held(machine_of(one)).gone == (third,)


def test_a_gpu_that_its_driver_never_listed_or_that_moved_is_not_gone(root: Path) -> None:
    first, second, _ = NVIDIAS
    two = ProcessReport((listed(0), listed(1)))
    source = holders(root, Asked(two, two, two))
    assert source.held(MACHINE).lost == {THIRD}
    assert source.held(machine_of(first, second)).gone == ()
    moved = replace(second, pci_bus_id="0000:0a:00.0")
    assert source.held(machine_of(first, moved)).gone == ()


def test_nvml_counts_as_hanging_if_three_scans_in_a_row_are_late(root: Path) -> None:
    late = ProcessReport(None, error="late", is_late=True)
    stuck = ProcessReport(None, error="stuck", has_hung=True)
    reports = (late, late, report(), late, late, late, late, report(), stuck)
    source = holders(root, Asked(*reports))
    hangs = [bool(source.held(MACHINE).lost) for _ in reports]
    assert hangs == [*[False] * 5, True, True, False, True]


@pytest.mark.parametrize(
    ("holdings", "together"),
    [
        ([(FIRST, GIB), (SECOND, 20 * GIB)], Holding(7, SECOND, 20 * GIB)),
        # At least a quarter of the largest memory counts. The lowest index always comes first.
        ([(FIRST, 40), (SECOND, 40)], Holding(7, FIRST, 40, beside=(SECOND,))),
        ([(FIRST, 40), (SECOND, 41)], Holding(7, FIRST, 40, beside=(SECOND,))),
        ([(THIRD, 20), (SECOND, 80), (FIRST, 21)], Holding(7, FIRST, 21, beside=(SECOND, THIRD))),
        ([(THIRD, 19), (SECOND, 80), (FIRST, 21)], Holding(7, FIRST, 21, beside=(SECOND,))),
        # If the amount of memory is not known, every open GPU counts.
        ([(THIRD,), (SECOND,)], Holding(7, SECOND, beside=(THIRD,))),
        ([(FIRST,), (SECOND, 0), (THIRD, GIB)], Holding(7, FIRST, beside=(THIRD,))),
        ([(FIRST, GIB), (AMDS, GIB)], Holding(7, AMDS, GIB, beside=(FIRST,))),
    ],
)
def test_a_process_uses_each_gpu_on_which_it_has_a_quarter_of_its_largest_memory(
    holdings: list[tuple[tuple[str, int]]], together: Holding
) -> None:
    first, none = Holding(6, FIRST, 1), Holding(0, FIRST, 9)  # pid 0 is no process
    named = [Holding(7, *its) for its in holdings]
    for order in (named, named[::-1]):
        assert one_a_process([*order, none, first], "/none") == (first, together)


class Asked:
    """Answers of NVML in a test's order, and a clock that the test sets."""

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
    """Return a machine on which NVIDIA's driver is loaded, and no process is visible."""
    put(tmp_path / "driver/version", "NVRM version: 550.54.15")
    namespaces = tmp_path / "proc/self/ns"
    namespaces.mkdir(parents=True)
    (namespaces / "pid").symlink_to(INITIAL_PIDS)
    return tmp_path


def holders(root: Path, asked: Asked) -> HolderSources:
    places = {name: os.fspath(root / name) for name in ("proc", "sys", "dev", "driver", "hold")}
    return HolderSources(asked, **places, clock=asked.clock)


def machine_of(*gpus: Gpu) -> Topology:
    return replace(made({0: "0-3"}), gpus=gpus)


MACHINE = machine_of(*NVIDIAS)


def unknown(why: str) -> GpuHolders:
    return GpuHolders(unknown={gpu.key: why for gpu in NVIDIAS}, asked=1000.0)


def test_each_vendor_s_source_is_asked_at_a_recorded_time(root: Path) -> None:
    amd = Gpu(0, "amd", "0000:21:00.0", numa_node=0, render_minor=128)
    npu = Gpu(0, "huawei", "0000:31:00.0", numa_node=0)
    kfd = root / "sys/class/kfd/kfd"
    put(kfd / "topology/nodes/1/gpu_id", 4242)
    put(kfd / "topology/nodes/1/properties", "simd_count 440\ndrm_render_minor 128")
    put(kfd / "proc/9/vram_4242", 4096)
    held = holders(root, Asked(report((IN_USE,)))).held(machine_of(*NVIDIAS, amd, npu))
    assert held.holdings == (Holding(7, FIRST, 100), Holding(9, AMDS, 4096))
    assert set(held.unknown) == {npu.key}
    assert held.asked == 1000.0


def test_nvml_is_not_asked_without_driver_or_gpus_or_in_a_pid_namespace(root: Path) -> None:
    asked = Asked()
    assert holders(root, asked).held(machine_of()) == GpuHolders(asked=1000.0)
    (root / "driver/version").unlink()
    assert holders(root, asked).held(MACHINE) == unknown("NVIDIA's driver is not loaded")
    (root / "hold").write_text("upgrade\n")
    put(root / "driver/version", "NVRM version: 550.54.15")
    why = f"NVML calls are on hold by 'upgrade', until {root / 'hold'} is removed"
    assert holders(root, asked).held(MACHINE) == unknown(why)
    # NVML names the host's pids; in a pid namespace, pid 7 is another process or none.
    link = root / "proc/self/ns/pid"
    link.unlink()
    link.symlink_to("pid:[4026532211]")
    reasons = holders(root, asked).held(MACHINE).unknown
    assert reasons.keys() == {gpu.key for gpu in NVIDIAS}
    assert all("hostPID: true" in why for why in reasons.values())
    assert asked.times == []


KFD = "class/kfd/kfd"

#: KFD's gpu_id of each GPU, in the order of KFD's nodes; the ids are hashes without order.
IDS = (50432, 3112, 63091)
Held = dict[tuple[str, int], int]
FIRST_AMD, SECOND_AMD, THIRD_AMD = (("amd", index) for index in range(3))
GPUS = tuple(
    Gpu(index, "amd", f"0000:{index + 1:02x}:00.0", numa_node=0, render_minor=128 + index)
    for index in range(3)
)


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """Return a /sys whose KFD has a node of CPUs and three GPUs, and no process."""
    minors = {0: 0, **{number: gpu.render_minor for number, gpu in zip(IDS, GPUS, strict=True)}}
    for node, (number, minor) in enumerate(minors.items()):
        folder = tmp_path / KFD / f"topology/nodes/{node}"
        put(folder / "gpu_id", number)
        put(folder / "properties", f"simd_count 440\ndrm_render_minor {minor}")
    (tmp_path / KFD / "proc").mkdir()
    return tmp_path


def process(sys: Path, pid: str, *memory: int | str, queues: tuple[int, ...] = ()) -> None:
    """Write the files of a process: its memory in each GPU, and the GPUs of its queues."""
    folder = sys / KFD / "proc" / pid
    put(folder / "pasid", 32770)
    (folder / "queues").mkdir()
    for number, size in zip(IDS, memory, strict=True):
        put(folder / f"vram_{number}", size)
        put(folder / f"sdma_{number}", 7)
    for queue, gpu in enumerate(queues):
        put(folder / f"queues/{queue}/gpuid", IDS[gpu])


@pytest.mark.parametrize(
    ("memory", "queues", "holdings"),
    [
        ((0, 4096, 1 << 35), (), {SECOND_AMD: 4096, THIRD_AMD: 1 << 35}),
        ((0, 0, 0), (1,), {SECOND_AMD: 0}),
        ((0, 0, 0), (), {}),  # the process only opened the driver
        (("", "", ""), (), {}),  # the process ends meanwhile
    ],
)
def test_a_process_uses_the_gpus_in_which_it_has_memory_or_a_queue(
    sys: Path, memory: tuple[int | str, ...], queues: tuple[int, ...], holdings: Held
) -> None:
    process(sys, "4711", *memory, queues=queues)
    (sys / KFD / "proc/4712").mkdir()  # the files are gone, and the folder is still there
    found = kfd_holders(GPUS, str(sys))
    assert set(found.holdings) == {Holding(4711, *it) for it in holdings.items()}
    assert found.unknown == {}
    # Partitions of one device are told apart by their render devices.
    parts = tuple(replace(gpu, pci_bus_id="0000:01:00.0") for gpu in GPUS)
    assert kfd_holders(parts, str(sys)) == found


def test_the_memory_of_several_contexts_of_a_process_is_added_up(sys: Path) -> None:
    process(sys, "4711", 0, 4096, 0)
    process(sys, "4711/context_1", 8192, 1024, 0, queues=(2,))
    memory = {it.gpu: it.memory_bytes for it in kfd_holders(GPUS, str(sys)).holdings}
    assert memory == {FIRST_AMD: 8192, SECOND_AMD: 5120, THIRD_AMD: 0}


def test_the_holders_of_a_gpu_that_kfd_does_not_list_are_unknown(sys: Path) -> None:
    process(sys, "4711", 1, 0, 0)
    hidden = Gpu(3, "amd", "0000:09:00.0", numa_node=0)
    found = kfd_holders((*GPUS, hidden), str(sys))
    assert found == GpuHolders(
        (Holding(4711, FIRST_AMD, 1),), {hidden.key: "AMD's KFD does not list it"}
    )
    assert kfd_holders(GPUS, "/none") == GpuHolders(
        unknown={
            gpu.key: "AMD's KFD lists no processes; load amdgpu, or use a newer Linux"
            for gpu in GPUS
        }
    )
    assert kfd_holders((), "/none") == GpuHolders()


FULL, RANDOM = "/dev/full", "/dev/random"
NUMBERS = (os.makedev(1, 7), os.makedev(1, 8))

NPUS = tuple(Gpu(index, "huawei", f"0000:c{index}:00.0", numa_node=0) for index in range(2))
FIRST_NPU, SECOND_NPU = (gpu.key for gpu in NPUS)
ACCELERATOR = Gpu(0, "8086", "0000:c1:00.0", numa_node=0)


class Machine:
    """A /proc whose processes hold files open, a /dev with the files of two NPUs, and no /sys."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys, self.dev = (root / name for name in ("proc", "sys", "dev"))
        self.dev.mkdir()
        for index, device in enumerate((FULL, RANDOM)):
            (self.dev / f"davinci{index}").symlink_to(device)
        self.holds(1)

    def holds(self, pid: int, *files: Path | str) -> None:
        folder = self.proc / f"{pid}/fd"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number, file in enumerate(files):
            (folder / f"{number}").symlink_to(file)

    def scanner(self, step: float = 0.0) -> DeviceFileScanner:
        """Return a scanner whose clock advances by these seconds at each reading."""
        proc, sys, dev = map(os.fspath, (self.proc, self.sys, self.dev))
        return DeviceFileScanner(proc, sys, dev, clock=count(0.0, step).__next__)

    def files(self, *gpus: Gpu) -> GpuDeviceFiles:
        return device_files.device_files(gpus, os.fspath(self.sys), os.fspath(self.dev))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def held(scanner: DeviceFileScanner) -> list[tuple[int, int]]:
    return sorted((it.pid, it.gpu[1]) for it in scanner.found(NPUS).holdings)


def test_a_process_that_has_a_gpu_s_device_number_open_is_found(machine: Machine) -> None:
    machine.holds(7, machine.dev / "davinci0")
    machine.holds(8, "/dev/null", FULL, RANDOM, "socket:[4711]")
    machine.holds(9, "/dev/zero", machine.dev / "davinci_manager")
    container = machine.dev.parent / "rootfs/dev/davinci1"
    container.parent.mkdir(parents=True)
    container.symlink_to(RANDOM)
    machine.holds(10, container)
    found = machine.scanner().found(NPUS)
    pairs = (7, FIRST_NPU), (8, FIRST_NPU), (8, SECOND_NPU), (10, SECOND_NPU)
    assert {*found.holdings} == {Holding(*pair) for pair in pairs}
    assert (found.unknown, found.skipped) == ({}, 0)


def test_sysfs_or_the_file_s_name_tells_the_gpu_of_a_device_file(machine: Machine) -> None:
    folder = machine.sys / "dev/char"
    folder.mkdir(parents=True)
    at = "../../devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0"
    for number, target in (
        ("1:7", f"{at}/accel/accel0"),
        ("1:8", f"{at}/accel_control/accel_controlD0"),
        ("1:9", f"{at}/i2c-3/i2c-dev/i2c-3"),
        ("13:63", "../../devices/pci0000:c0/0000:c0:02.0/input/mice"),
    ):
        (folder / number).symlink_to(target)
    its = GpuDeviceFiles({NUMBERS[0]: ACCELERATOR.key}, frozenset({"accel0"}))
    assert machine.files(ACCELERATOR) == its
    (machine.dev / "davinci0").unlink()
    (machine.dev / "davinci0").touch()  # a plain file, no device file
    npus = (replace(NPUS[0], pci_bus_id="0000:c1:00.0"), replace(NPUS[1], pci_bus_id="x"))
    assert machine.files(*npus).gpu_of == {NUMBERS[0]: FIRST_NPU, NUMBERS[1]: SECOND_NPU}
    assert machine.files(NPUS[0]) == GpuDeviceFiles({}, frozenset())


def test_the_holders_of_a_gpu_without_a_readable_file_are_unknown(machine: Machine) -> None:
    found = machine.scanner().found((*NPUS, ACCELERATOR))
    assert found == GpuHolders(
        unknown={ACCELERATOR.key: "its device file is not known; is its driver loaded?"}
    )
    shutil.rmtree(machine.proc / "1")  # as hidepid= hides it
    machine.holds(7, FULL)
    found = machine.scanner().found(NPUS)
    assert found == GpuHolders((Holding(7, FIRST_NPU),), found.unknown)
    assert found.unknown.keys() == {FIRST_NPU, SECOND_NPU}
    assert all("run this as root" in why for why in found.unknown.values())


def test_a_scan_that_takes_too_long_is_continued_at_the_next_scan(machine: Machine) -> None:
    for pid in (7, 8, 9):
        machine.holds(pid, FULL)
    scanner = machine.scanner(step=1.0)
    first = scanner.found(NPUS)
    assert first.skipped == 3
    assert all("within 2 s" in why for why in first.unknown.values())
    assert {pid for _ in range(8) for pid, _ in held(scanner)} == {7, 8, 9}
