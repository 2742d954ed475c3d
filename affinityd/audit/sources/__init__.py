"""The holders of GPUs: NVIDIA's by NVML, AMD's by KFD, other vendors' by open device files."""

# ruff: noqa: PTH115, PTH116, PTH208 - pathlib is slow for thousands of files

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from affinityd.audit.model import GpuHolders, Holding
from affinityd.discovery.nvml import GpuProcesses, NvmlProcess, ProcessReport
from affinityd.discovery.nvml.maintenance import HOLD, DriverMaintenance
from affinityd.linux.files import listed, numbered, text
from affinityd.linux.processes import INIT, INITIAL_PIDS, process_of, since_boot
from affinityd.topology.model import Gpu, GpuKey, Topology


class HolderSources:
    """Finds the holders of the GPUs, at each scan."""

    def __init__(
        self,
        ask_nvml: Callable[[float], ProcessReport],
        *,
        proc: str = "/proc",
        sys: str = "/sys",
        dev: str = "/dev",
        driver: str = "/proc/driver/nvidia",
        hold: str = HOLD,
        clock: Callable[[], float] = since_boot,
    ) -> None:
        """Take the function that calls NVML; it is not called while the file `hold` exists."""
        self._proc = proc
        self._sys = sys
        self._clock = clock
        self._ask_nvml = ask_nvml
        self._maintenance = DriverMaintenance(sys, hold, proc)
        self._driver = driver
        self._late = 0  # for how many scans in a row NVML did not answer in time
        self._files = DeviceFileScanner(proc, sys, dev)
        self._seen: dict[str, Gpu] = {}  # GPUs that have been readable

    def held(self, topology: Topology) -> GpuHolders:
        """Return the current holders of the GPUs, and the GPUs whose holders are unknown."""
        asked = self._clock()
        gpus = topology.gpus
        if not _sees_all_pids(self._proc):
            why = (
                "processes are not visible here, in another pid namespace than the host's; "
                "share the host's (Kubernetes: hostPID: true; Podman and Docker: --pid=host)"
            )
            return replace(GpuHolders.unknown_of(gpus, why), asked=asked)
        of_vendor: defaultdict[str, list[Gpu]] = defaultdict(list)
        for gpu in gpus:
            is_listed = gpu.vendor in {"nvidia", "amd"}  # the driver lists processes
            of_vendor[gpu.vendor if is_listed else "other"].append(gpu)
        nvml = self._nvml_holders(of_vendor["nvidia"])
        kfd = kfd_holders(of_vendor["amd"], self._sys)
        files = self._files.found(of_vendor["other"])
        unknown = {**nvml.unknown, **kfd.unknown, **files.unknown}
        holdings = (*nvml.holdings, *kfd.holdings, *files.holdings)
        return GpuHolders(
            holdings=one_a_process(holdings, self._proc),
            unknown=unknown,
            asked=asked,
            skipped=files.skipped,
            lost=nvml.lost,
            gone=self._gone(gpus, unknown),
            loads=nvml.loads,
        )

    def _nvml_holders(self, gpus: Sequence[Gpu]) -> GpuHolders:
        if not gpus:
            return GpuHolders()
        # NVML would load a driver that was unloaded, and disturb its upgrade.
        is_loaded = os.path.exists(f"{self._driver}/version")  # noqa: PTH110 - a scan is cheap
        reason = self._maintenance.reason() if is_loaded else "NVIDIA's driver is not loaded"
        if reason:
            return GpuHolders.unknown_of(gpus, reason)
        report = self._ask_nvml(NVML_SECONDS)
        # The answer may also be late because CPUs are busy.
        if report.is_late:
            self._late += 1
        else:
            self._late = 0
        has_hung = report.has_hung or self._late >= MOST_LATE
        return processes_of(replace(report, has_hung=has_hung), gpus)

    def _gone(self, gpus: Sequence[Gpu], unknown: Collection[GpuKey]) -> tuple[Gpu, ...]:
        """Return the GPUs that worked before and are gone, without those given to vfio-pci."""
        addresses = set()
        uuids = set()
        for gpu in gpus:
            addresses.add(gpu.pci_bus_id)
            if gpu.uuid:
                uuids.add(gpu.uuid)
            if gpu.key not in unknown:
                self._seen[gpu.pci_bus_id] = gpu
        gone = []
        for address, gpu in sorted(self._seen.items()):
            if address in addresses:
                continue
            driver = _target(f"{self._sys}/bus/pci/devices/{address}/driver")
            if gpu.uuid in uuids or driver.replace("_", "-").endswith("vfio-pci"):
                del self._seen[address]
            else:
                gone.append(gpu)
        return tuple(gone)


def _sees_all_pids(proc: str) -> bool:
    try:
        return os.readlink(f"{proc}/self/ns/pid") == INITIAL_PIDS
    except OSError:  # a kernel without pid namespaces
        return True


def _most_memory_first(holding: Holding) -> tuple[int, int, str]:
    vendor, index = holding.gpu
    return -(holding.memory_bytes or 0), index, vendor


def _by_index(gpu: GpuKey) -> tuple[int, str]:
    vendor, index = gpu
    return index, vendor


def one_a_process(holdings: Iterable[Holding], proc: str) -> tuple[Holding, ...]:
    """Return each process with the GPUs on which it works, by ascending pid.

    A process works on the GPU in which it holds most memory, and on GPUs in which it holds at least
    a quarter of that: a mere context, which NCCL leaves on GPU 0, takes 300 to 500 MiB. It also
    works on GPUs in which its memory is not known.
    """
    of_process: defaultdict[int, list[Holding]] = defaultdict(list)
    for holding in sorted(holdings, key=_most_memory_first):
        if holding.pid > 0:
            of_process[process_of(holding.pid, proc) or holding.pid].append(holding)
    by_process = []
    for pid, held in sorted(of_process.items()):
        least = (held[0].memory_bytes or 0) / 4
        used: dict[GpuKey, Holding] = {}
        for holding in held:
            if holding.memory_bytes is None or holding.memory_bytes >= least:
                used.setdefault(holding.gpu, holding)
        first = used.pop(min(used, key=_by_index))
        by_process.append(replace(first, pid=pid, beside=tuple(sorted(used))))
    return tuple(by_process)


NVML_SECONDS = 10.0  #: seconds that NVML may take to answer
MOST_LATE = 3  #: after so many scans in a row without an answer, NVML counts as hung


def processes_of(report: ProcessReport, gpus: Sequence[Gpu]) -> GpuHolders:
    """Return the holders of NVIDIA's GPUs by NVML's report."""
    if report.gpus is None:
        unasked = GpuHolders.unknown_of(gpus, report.said or "NVML did not answer")
        return replace(unasked, lost=frozenset(unasked.unknown if report.has_hung else ()))
    holdings: list[Holding] = []
    unknown = {}
    lost = set()
    loads = {}
    for gpu in gpus:
        listed = _find(gpu, report.gpus)
        if listed is None:
            name = f"{gpu.index} ({gpu.uuid or gpu.pci_bus_id})"
            unknown[gpu.key] = f"NVML does not list GPU {name} any more"
            lost.add(gpu.key)
            continue
        loads[gpu.key] = listed.load
        if listed.error:
            unknown[gpu.key] = f"NVML: {listed.error}"
        else:
            holdings += _holdings(gpu, listed.processes)
        if listed.is_lost:
            lost.add(gpu.key)
    return GpuHolders(tuple(holdings), unknown, lost=frozenset(lost), loads=loads)


def _find(gpu: Gpu, reports: Iterable[GpuProcesses]) -> GpuProcesses | None:
    for report in reports:
        if _is_of(report, gpu):
            return report
    return None


def _is_of(listed: GpuProcesses, gpu: Gpu) -> bool:
    """Return whether NVML's list belongs to this GPU: its index shifts if another GPU is gone."""
    for known, now in ((gpu.uuid, listed.uuid), (gpu.pci_bus_id, listed.pci_bus_id)):
        if known and now:
            return known == now
    return listed.index == gpu.index


def _holdings(gpu: Gpu, processes: Sequence[NvmlProcess]) -> Iterator[Holding]:
    """Yield each process once, with its memory in all MIG devices and the device with most memory.

    If a process is listed twice for a device, the larger size counts.
    """
    sizes_of: dict[int, dict[str | None, int | None]] = defaultdict(dict)
    for process in processes:
        sizes = sizes_of[process.pid]
        before = sizes.get(process.mig)
        if before is None:
            sizes[process.mig] = process.memory_bytes
        elif process.memory_bytes is not None:
            sizes[process.mig] = max(before, process.memory_bytes)
    for pid, sizes in sizes_of.items():
        known = [size for size in sizes.values() if size is not None]
        largest = max(sizes, key=lambda mig: sizes[mig] or 0)
        yield Holding(pid, gpu.key, sum(known) if known else None, largest)


# The holders of AMD's GPUs: /sys/class/kfd/kfd/proc/PID, kernel drivers/gpu/drm/amd/amdkfd/
# kfd_process.c. A process uses a GPU in which it holds memory (vram_GPUID) or has a queue. Do not
# read sdma_GPUID: that stops the process's queues. Newer kernels have folders context_N with the
# same files.

KFD = "class/kfd/kfd"


def kfd_holders(gpus: Sequence[Gpu], sys: str = "/sys") -> GpuHolders:
    """Return the holders of AMD's GPUs."""
    if not gpus:
        return GpuHolders()
    processes = f"{sys}/{KFD}/proc"
    if not os.path.isdir(processes):  # noqa: PTH112
        why = "AMD's KFD lists no processes; load amdgpu, or use a newer Linux"
        return GpuHolders.unknown_of(gpus, why)
    gpu_of = _by_id(gpus, sys)
    unlisted = (gpu for gpu in gpus if gpu not in gpu_of.values())
    holdings = []
    for pid in numbered(processes):
        for number, memory in _uses(f"{processes}/{pid}").items():
            if number in gpu_of:
                holdings.append(Holding(pid, gpu_of[number].key, memory))
    holders = GpuHolders.unknown_of(unlisted, "AMD's KFD does not list it")
    return replace(holders, holdings=tuple(holdings))


def _by_id(gpus: Sequence[Gpu], sys: str) -> Mapping[str, Gpu]:
    """Return KFD's gpu_id → GPU. Both name a render device, and each partition has its own device.

    Files: topology/nodes/N/gpu_id, and drm_render_minor in topology/nodes/N/properties.
    """
    nodes = f"{sys}/{KFD}/topology/nodes"
    by_minor = {str(gpu.render_minor): gpu for gpu in gpus if gpu.render_minor is not None}
    by_id = {}
    for node in listed(nodes):
        for line in text(f"{nodes}/{node}/properties").splitlines():
            name, _, minor = line.partition(" ")
            if name == "drm_render_minor" and minor.strip() in by_minor:
                by_id[text(f"{nodes}/{node}/gpu_id")] = by_minor[minor.strip()]
    return by_id


def _uses(folder: str) -> Mapping[str, int]:
    contexts = [f"{folder}/{name}" for name in listed(folder) if name.startswith("context_")]
    uses: Counter[str] = Counter()
    for place in (folder, *contexts):
        queues = f"{place}/queues"
        queued = {text(f"{queues}/{queue}/gpuid") for queue in listed(queues)}
        for name in listed(place):
            kind, _, number = name.partition("_")
            if kind == "vram":
                size = text(f"{place}/{name}")
                if size.isdigit() and (int(size) or number in queued):
                    uses[number] += int(size)
    return uses


# Holders by open device files, for drivers that list no processes: proc_pid_fd(5). A file's place
# in sysfs tells its GPU: /sys/dev/char/MAJ:MIN. Ascend's files have no place there: /dev/davinciN
# is taken to be the N-th NPU in PCI bus order.

EVERY = 8  #: a process without an open device file is checked again after this many scans

#: Seconds that a scan may take; new processes and holders that it does not reach are read at the
#: next scan.
LIMIT = 2.0

#: Device files that programs open to manage a GPU, not to compute.
_is_control = re.compile(r"(?:accel_control|hl_control|i2c-|ptp)").match


@dataclass(frozen=True)
class GpuDeviceFiles:
    """The device files of GPUs."""

    gpu_of: Mapping[int, GpuKey]  #: st_rdev → GPU
    names: frozenset[str]  #: their names in /dev

    def is_one(self, target: str) -> bool:
        """Whether an open file, by its path, may be a GPU's device file.

        Others outside /dev are skipped: stat(2) may wait for a file server that does not answer.
        """
        if target.rpartition("/")[2] in self.names:
            return True
        # Files that most processes have open, skipped for speed.
        common = ("/dev/null", "/dev/pts/", "/dev/shm/", "/dev/tty", "/dev/urandom")  # noqa: S108
        return target.startswith("/dev/") and not target.startswith(common)

    def opened(self, folder: str) -> set[GpuKey]:
        """Return the GPUs that a process has open, by the files in `folder`, /proc/PID/fd."""
        keys = set()
        for name in listed(folder):
            link = f"{folder}/{name}"
            if self.is_one(_target(link)):
                number = _number(link)  # device numbers are the same in containers
                if number is not None and number in self.gpu_of:
                    keys.add(self.gpu_of[number])
        return keys


class DeviceFileScanner:
    """Checks the open files of processes; each scan checks holders and new processes."""

    def __init__(
        self,
        proc: str = "/proc",
        sys: str = "/sys",
        dev: str = "/dev",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = proc
        self._sys = sys
        self._dev = dev
        self._clock = clock
        self._scan = 0
        self._files = GpuDeviceFiles({}, frozenset())
        self._known: dict[int, bool] = {}  # pid → whether it had a device file open

    def found(self, gpus: Sequence[Gpu]) -> GpuHolders:
        """Return the holders of the GPUs' files, as far as they are visible."""
        if not gpus:
            return GpuHolders()
        files = device_files(gpus, self._sys, self._dev)
        if files != self._files:
            self._files = files
            self._known = {}
        holdings: list[Holding] = []
        due = self._due()
        skipped = 0
        end = self._clock() + LIMIT
        for place, pid in enumerate(due):
            if self._clock() >= end:
                skipped = len(due) - place
                break
            keys = files.opened(f"{self._proc}/{pid}/fd")
            holdings += [Holding(pid, key) for key in keys]
            self._known[pid] = bool(keys)
        sees_all = _sees_all(self._proc)
        unknown = {}
        for gpu in gpus:
            if gpu.key not in files.gpu_of.values():
                unknown[gpu.key] = "its device file is not known; is its driver loaded?"
            elif not sees_all:
                unknown[gpu.key] = (
                    "the open files of other users' processes cannot be read; run this as root "
                    "(CAP_SYS_PTRACE)"
                )
            elif skipped:
                unknown[gpu.key] = (
                    f"not all processes' open files were read within {LIMIT:g} s; the next scan "
                    "continues"
                )
        return GpuHolders(tuple(holdings), unknown, skipped=skipped)

    def _due(self) -> list[int]:
        """Return the pids to check: new processes, holders, and a part of the others."""
        self._scan += 1
        known = {}
        new = []
        holders = []
        others = []
        for pid in numbered(self._proc):
            if pid not in self._known:
                new.append(pid)
                continue
            known[pid] = self._known[pid]
            if known[pid]:
                holders.append(pid)
            elif pid % EVERY == self._scan % EVERY:
                others.append(pid)
        self._known = known
        return [*new, *holders, *others]


def device_files(gpus: Sequence[Gpu], sys: str = "/sys", dev: str = "/dev") -> GpuDeviceFiles:
    """Return the GPUs' device files, by sysfs or, if sysfs lacks them, by their names."""
    gpu_of = {}
    names = set()
    for number, name, key in _by_place(gpus, sys):
        gpu_of[number] = key
        names.add(name)
    placed = set(gpu_of.values())
    for gpu in gpus:
        if gpu.vendor == "huawei" and gpu.key not in placed:
            name = f"davinci{gpu.index}"
            device = _number(f"{dev}/{name}")
            if device is not None:
                gpu_of[device] = gpu.key
                names.add(name)
    return GpuDeviceFiles(gpu_of, frozenset(names))


def _by_place(gpus: Sequence[Gpu], sys: str) -> Iterator[tuple[int, str, GpuKey]]:
    """Yield device number, name and GPU, by links like ../../devices/pci…/0000:c1:00.0/…/accel0."""
    at = {gpu.pci_bus_id: gpu.key for gpu in gpus}
    folder = f"{sys}/dev/char"
    for entry in listed(folder):
        *folders, name = _target(f"{folder}/{entry}").split("/")
        major, _, minor = entry.partition(":")
        if not _is_control(name):
            for address in reversed(folders):  # the nearest first: a bridge may be above the GPU
                if address in at:
                    yield os.makedev(int(major), int(minor)), name, at[address]
                    break


def _sees_all(proc: str) -> bool:
    """Whether the open files of other users, and of root's first process, can be read."""
    try:
        os.listdir(f"{proc}/{INIT}/fd")
    except OSError:  # without the capabilities; or hidepid= of proc(5)
        return False
    return True


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # the file was closed, or the process has ended
        return ""


def _number(path: str) -> int | None:
    try:
        found = os.stat(path)
    except OSError:  # the file was closed, or is not there
        return None
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else None
