"""The processes that use NVIDIA's GPUs: NVML, read by a short-lived child, as for `gpus.query`.

Sources: nvml.h on nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses and
nvmlDeviceGetMPSComputeRunningProcesses (privileges, MIG handles), nvidia-ml-py's calls of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from affinityd.discovery.nvml.report import GpuProcesses, NvmlProcess, ProcessReport
from affinityd.discovery.nvml.session import NvmlDevice, ask_fork, devices
from affinityd.text import printable

#: Kind → nvidia-ml-py's names for its list, the newest first: a driver before R510 has no _v3. Its
#: names without a version mean only the newest.
LISTS = {
    kind: tuple(f"nvmlDeviceGet{name}RunningProcesses_{version}" for version in ("v3", "v2"))
    for kind, name in {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}.items()
}

NO_LIST = (
    "NVML lists no processes here: the driver is older than R470, or the GPU cannot report them"
)


def query(timeout: float) -> ProcessReport:
    """Return which processes NVML names now, after `timeout` seconds and a little grace at most.

    Every failure is in the report; none is raised. Only for a process of one thread.
    """
    return ask_fork(_report, ProcessReport, timeout)


def _report(nvml: ModuleType) -> ProcessReport:
    found = devices(nvml)
    gpus = tuple(_gpu(index, gpu) for index, gpu in enumerate(found))
    changes = (_change(index, gpu) for index, gpu in enumerate(found))
    return ProcessReport(gpus, next(filter(None, changes), None))


def _change(index: int, gpu: NvmlDevice) -> str | None:
    """Return a GPU's pending change of MIG mode: it waits for a reset, which its users prevent."""
    is_on, is_to_be = gpu.mig_modes()
    if is_on == is_to_be:
        return None
    return f"GPU {index}'s MIG mode will be {'enabled' if is_to_be else 'disabled'}"


def _gpu(index: int, gpu: NvmlDevice) -> GpuProcesses:
    uuid = gpu.uuid()
    return GpuProcesses(
        index,
        uuid=uuid and printable(uuid),  # as discovery has it, which it is compared with
        pci_bus_id=gpu.pci_bus_id(),
        processes=tuple(it for part, mig in _parts(gpu) for it in _listed(part, mig)),
        error=gpu.error,
    )


def _parts(gpu: NvmlDevice) -> list[tuple[NvmlDevice, str | None]]:
    """Return the devices to query, each with its MIG UUID.

    Only a privileged process may query a divided GPU itself, and no process runs outside its
    parts.
    """
    is_divided, _ = gpu.mig_modes()
    return [(part, part.uuid()) for part in gpu.mig_devices()] if is_divided else [(gpu, None)]


def _listed(device: NvmlDevice, mig: str | None) -> Iterator[NvmlProcess]:
    """Yield a device's processes; without a list of the computing ones, note an error."""
    lists = {kind: device.query(_first, device.nvml, names) for kind, names in LISTS.items()}
    if lists["compute"] is None:
        device.errors.append(NO_LIST)
    for kind, processes in lists.items():
        for process in processes or ():
            yield NvmlProcess(process.pid, kind, process.usedGpuMemory, mig)


def _first(handle: object, nvml: ModuleType, names: Sequence[str]) -> list[Any]:
    """Return the answer of the first function that the driver has."""
    *newer, oldest = names
    for name in newer:
        with suppress(nvml.NVMLError_FunctionNotFound):
            return list(getattr(nvml, name)(handle))
    return list(getattr(nvml, oldest)(handle))
