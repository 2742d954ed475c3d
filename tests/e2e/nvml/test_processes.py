"""Who uses NVIDIA's GPUs, out of a real libnvidia-ml.so.1, through pynvml, in a real child."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery.nvml.processes import NO_LIST, query
from affinityd.discovery.nvml.report import GpuProcesses, NvmlProcess, ProcessReport

Facts = Callable[[str], Path]

ELEVEN = NvmlProcess(11, "compute", 1)
ALONE = GpuProcesses(0, processes=(ELEVEN,))
COMPUTE, GRAPHICS, MPS = (
    f"fail nvmlDeviceGet{name}RunningProcesses" for name in ("Compute", "Graphics", "MPSCompute")
)
ALL = "process compute 11 1048576\n process graphics 12 ?\n process mps 13 4096"
LISTS = ("compute", 1048576), ("graphics", None), ("mps", 4096)
ANONYMOUS = GpuProcesses(
    0, processes=tuple(NvmlProcess(pid, *it) for pid, it in enumerate(LISTS, 11))
)
NAMED = replace(ANONYMOUS, uuid="GPU-0", pci_bus_id="10000:0f:00.0")
MIG = (
    "mig MIG-0\n process compute 11 1\n process compute 12 2\n mig\n mig MIG-2\n"
    " process compute 11 3"
)
OF_MIG = (
    NvmlProcess(11, "compute", 1, "MIG-0"),
    NvmlProcess(12, "compute", 2, "MIG-0"),
    NvmlProcess(11, "compute", 3, "MIG-2"),
)
HUNDREDS = range(1, 401)


def failed(error: str) -> GpuProcesses:
    return GpuProcesses(0, error=error)


def test_the_processes_of_every_gpu_are_named_and_one_that_refuses_costs_its_own_alone(
    facts: Facts,
) -> None:
    rows = (
        (f"uuid GPU-0\n pci 00010000:0F:00.0\n {ALL}", NAMED),
        ("uuid GPU-\x070", GpuProcesses(0, "GPU-?0")),  # as the topology has it
        (
            "\n ".join(f"process compute {pid} 1" for pid in HUNDREDS),
            GpuProcesses(0, processes=tuple(replace(ELEVEN, pid=pid) for pid in HUNDREDS)),
        ),
        # Of a divided GPU each MIG device names its own; one without a part is used by nobody.
        (MIG, GpuProcesses(0, processes=OF_MIG)),
        (f"mig\n {COMPUTE}_v3 4", GpuProcesses(0)),
        # A driver without the newest lists is asked for those before, and one without any is old.
        (f"{ALL}\n {COMPUTE}_v3 13\n {GRAPHICS}_v3 13\n {MPS}_v3 13", ANONYMOUS),
        (f"{COMPUTE}_v3 13\n {COMPUTE}_v2 13", failed(NO_LIST)),
        # A GPU that cannot draw, be shared or be divided is no worse; a virtual one has no lists.
        (f"process compute 11 1\n {GRAPHICS}_v3 3", ALONE),
        (f"process compute 11 1\n {MPS}_v3 3", ALONE),
        ("process compute 11 1\n fail nvmlDeviceGetMigMode 13", ALONE),
        (f"{COMPUTE}_v3 3", failed(NO_LIST)),
        # Half of an answer, and none.
        (f"process compute 11 1\n {GRAPHICS}_v3 999", replace(ALONE, error="Unknown Error")),
        (f"{COMPUTE}_v3 4", failed("Insufficient Permissions")),
        ("fail nvmlDeviceGetUUID 16", failed("GPU requires restart")),
        ("process compute 11 1\n fail nvmlDeviceGetHandleByIndex_v2 15", failed("GPU is lost")),
        ("mig off\n process compute 11 1", ALONE),
    )
    facts("\n".join(f"gpu\n {lines}" for lines, _ in rows))
    gpus = tuple(replace(gpu, index=index) for index, (_, gpu) in enumerate(rows))
    assert query(10) == ProcessReport(gpus)


@pytest.mark.parametrize(
    ("gpu", "change"), [("mig off\n pending 1", "enabled"), ("mig MIG-0\n pending 0", "disabled")]
)
def test_a_mig_mode_that_waits_for_a_reset_is_told(facts: Facts, gpu: str, change: str) -> None:
    facts(f"gpu\ngpu\n {gpu}")
    assert query(10).changing == f"GPU 1's MIG mode will be {change}"


def test_an_nvml_that_does_not_start_is_one_line_that_says_what_would_be_right(
    facts: Facts,
) -> None:
    facts("fail nvmlInitWithFlags 9\ngpu")
    error = "NVML did not start: Driver Not Loaded"
    assert query(10) == ProcessReport(None, error=error, remedy="load the driver: modprobe nvidia")
