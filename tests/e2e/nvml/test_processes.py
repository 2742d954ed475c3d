"""Who uses NVIDIA's GPUs, out of a real libnvidia-ml.so.1, through pynvml, in a real child."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery.nvml import (
    GpuProcesses,
    NvmlProcess,
    ProcessReport,
    read_report,
)
from affinityd.discovery.nvml.query import NO_LIST
from tests.support.paths import REPOSITORY

Facts = Callable[[str], Path]

QUERY = """
from affinityd.discovery.nvml.query import query_processes
from affinityd.json_codec import dumps
print(dumps(query_processes(10)))
"""


def query() -> ProcessReport:
    """Ask in a new Python: a fork has the library path with which its parent was started."""
    printed = subprocess.check_output([sys.executable, "-c", QUERY], cwd=REPOSITORY, text=True)
    return read_report(ProcessReport, printed)


ELEVEN = NvmlProcess(11, "compute", 1)
NOBODY = GpuProcesses(0)
ALONE = replace(NOBODY, processes=(ELEVEN,))
COMPUTE, GRAPHICS, MPS = (
    f"fail nvmlDeviceGet{name}RunningProcesses" for name in ("Compute", "Graphics", "MPSCompute")
)
ONE = "process compute 11 1"
ALL = "process compute 11 1048576\n process graphics 12 ?\n process mps 13 4096"
LISTS = ("compute", 1048576), ("graphics", None), ("mps", 4096)
ANONYMOUS = replace(
    NOBODY, processes=tuple(NvmlProcess(pid, *it) for pid, it in enumerate(LISTS, 11))
)
NAMED = replace(ANONYMOUS, uuid="GPU-0", pci_bus_id="10000:0f:00.0")
MIG = f"mig MIG-0\n {ONE}\n process compute 12 2\n mig\n mig MIG-2\n process compute 11 3"
OF_MIG = tuple(
    NvmlProcess(pid, "compute", used, mig)
    for pid, used, mig in ((11, 1, "MIG-0"), (12, 2, "MIG-0"), (11, 3, "MIG-2"))
)
HUNDREDS = range(1, 401)
OF_HUNDREDS = "\n ".join(f"process compute {pid} 1" for pid in HUNDREDS)
HUNDREDS_OF = replace(NOBODY, processes=tuple(replace(ELEVEN, pid=pid) for pid in HUNDREDS))


def failed(error: str) -> GpuProcesses:
    return replace(NOBODY, error=error)


def test_the_processes_of_every_gpu_are_named_and_one_that_refuses_costs_its_own_alone(
    facts: Facts,
) -> None:
    rows = (
        (f"uuid GPU-0\n pci 00010000:0F:00.0\n {ALL}", NAMED),
        ("uuid GPU-\x070", replace(NOBODY, uuid="GPU-?0")),  # as the topology has it
        (OF_HUNDREDS, HUNDREDS_OF),
        # Of a divided GPU each MIG device names its own; one without a part is used by nobody.
        (MIG, replace(NOBODY, processes=OF_MIG)),
        (f"mig\n {COMPUTE}_v3 4", NOBODY),
        # A driver without the newest lists is asked for those before, and one without any is old.
        (f"{ALL}\n {COMPUTE}_v3 13\n {GRAPHICS}_v3 13\n {MPS}_v3 13", ANONYMOUS),
        (f"{COMPUTE}_v3 13\n {COMPUTE}_v2 13", failed(NO_LIST)),
        # A GPU that cannot draw, be shared or be divided is no worse; a virtual one has no lists.
        (f"{ONE}\n {GRAPHICS}_v3 3\n {MPS}_v3 3\n fail nvmlDeviceGetMigMode 13", ALONE),
        (f"{COMPUTE}_v3 3", failed(NO_LIST)),
        # Half of an answer, and none.
        (f"{ONE}\n {GRAPHICS}_v3 999", replace(ALONE, error="Unknown Error")),
        (f"{COMPUTE}_v3 4", failed("Insufficient Permissions")),
        ("fail nvmlDeviceGetUUID 16", failed("GPU requires restart")),
        (f"{ONE}\n fail nvmlDeviceGetHandleByIndex_v2 15", failed("GPU is lost")),
        (f"mig off\n {ONE}", ALONE),
    )
    facts("\n".join(f"gpu\n {lines}" for lines, _ in rows))
    gpus = tuple(replace(gpu, index=index) for index, (_, gpu) in enumerate(rows))
    assert query() == ProcessReport(gpus)


@pytest.mark.parametrize(
    ("gpu", "change"), [("mig off\n pending 1", "enabled"), ("mig MIG-0\n pending 0", "disabled")]
)
def test_a_mig_mode_that_waits_for_a_reset_is_told(facts: Facts, gpu: str, change: str) -> None:
    facts(f"gpu\ngpu\n {gpu}")
    assert query().changing == f"GPU 1's MIG mode will be {change}"


def test_an_nvml_that_does_not_start_is_one_line_that_says_what_would_be_right(
    facts: Facts,
) -> None:
    facts("fail nvmlInitWithFlags 9\ngpu")
    error = "NVML did not start: Driver Not Loaded"
    assert query() == ProcessReport(None, error=error, remedy="load the driver: modprobe nvidia")
