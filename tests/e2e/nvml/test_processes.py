"""Who uses NVIDIA's GPUs, out of a real libnvidia-ml.so.1, through pynvml, in a real child."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.model import GpuKey, Holding
from affinityd.audit.sources.holders import HolderSources
from affinityd.discovery.nvml import gpus as nvml
from affinityd.discovery.nvml.processes import NO_LIST, query
from affinityd.discovery.nvml.report import GpuProcesses, NvmlProcess, ProcessReport
from affinityd.topology.model import Gpu
from tests.support.children import sleeping
from tests.support.daemons import PATIENCE
from tests.support.machines.by_hand import made
from tests.support.nvml.shared_object import environment

FIRST = "gpu\n uuid GPU-0\n pci 00000000:07:00.0"
SECOND = "gpu\n uuid GPU-1\n pci 00010000:0F:00.0"

Facts = Callable[[str], None]


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """Let NVML answer from a text, in the words of nvml/libnvidia_ml.c."""

    def write(text: str) -> None:
        for name, value in environment(text, tmp_path).items():
            monkeypatch.setenv(name, value)

    return write


def gpus_of(report: ProcessReport) -> tuple[GpuProcesses, ...]:
    assert report.gpus is not None, report.error
    return report.gpus


def test_the_processes_of_every_list_are_named(facts: Facts) -> None:
    facts(
        f"{FIRST}\n process compute 11 1048576\n process graphics 12 ?\n process mps 13 4096\n"
        f"{SECOND}\n process compute 11 8192"
    )
    assert query(10) == ProcessReport(
        gpus=(
            GpuProcesses(
                0,
                "GPU-0",
                "0000:07:00.0",
                (
                    NvmlProcess(11, "compute", 1048576),
                    NvmlProcess(12, "graphics", None),
                    NvmlProcess(13, "mps", 4096),
                ),
            ),
            GpuProcesses(1, "GPU-1", "10000:0f:00.0", (NvmlProcess(11, "compute", 8192),)),
        )
    )


def test_what_the_library_writes_to_stdout_is_no_part_of_the_list(facts: Facts) -> None:
    facts(f"fail nvmlInitWithFlags print\n{FIRST}\n process compute 11 1")
    (gpu,) = gpus_of(query(10))
    assert gpu.processes == (NvmlProcess(11, "compute", 1),)


def test_a_uuid_is_told_as_the_topology_has_it(facts: Facts) -> None:
    facts(FIRST.replace("GPU-0", "GPU-\x070"))
    (gpu,) = gpus_of(query(10))
    assert gpu.uuid == "GPU-?0"


def test_of_a_divided_gpu_each_mig_device_names_its_own(facts: Facts) -> None:
    facts(
        f"{FIRST}\n mig MIG-0\n process compute 11 1\n process compute 12 2\n mig\n mig MIG-2\n"
        " process compute 11 3"
    )
    (gpu,) = gpus_of(query(10))
    assert gpu.error is None
    assert gpu.processes == (
        NvmlProcess(11, "compute", 1, "MIG-0"),
        NvmlProcess(12, "compute", 2, "MIG-0"),
        NvmlProcess(11, "compute", 3, "MIG-2"),
    )


def test_a_gpu_that_is_divided_and_has_no_part_is_used_by_nobody(facts: Facts) -> None:
    facts(f"{FIRST}\n mig\n fail nvmlDeviceGetComputeRunningProcesses_v3 4")
    (gpu,) = gpus_of(query(10))
    assert (gpu.processes, gpu.error) == ((), None)


def test_hundreds_of_processes_are_named(facts: Facts) -> None:
    lines = "".join(f" process compute {pid} {pid}\n" for pid in range(1, 801))
    facts(f"{FIRST}\n{lines}")
    (gpu,) = gpus_of(query(10))
    assert [it.pid for it in gpu.processes] == list(range(1, 801))


def test_a_driver_without_the_newest_lists_is_asked_for_those_before(facts: Facts) -> None:
    missing = "".join(
        f" fail nvmlDeviceGet{name}RunningProcesses_v3 13\n"
        for name in ("Compute", "Graphics", "MPSCompute")
    )
    facts(f"{FIRST}\n process compute 11 1\n process graphics 12 2\n process mps 13 3\n{missing}")
    (gpu,) = gpus_of(query(10))
    assert [it.pid for it in gpu.processes] == [11, 12, 13]
    assert gpu.error is None


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        pytest.param("nvmlDeviceGetHandleByIndex_v2 15", "GPU is lost", id="a lost GPU"),
        pytest.param("nvmlDeviceGetUUID 16", "GPU requires restart", id="a GPU to be reset"),
        pytest.param(
            "nvmlDeviceGetComputeRunningProcesses_v3 4",
            "Insufficient Permissions",
            id="a GPU that others are not told of",
        ),
        pytest.param(
            "nvmlDeviceGetGraphicsRunningProcesses_v3 999", "Unknown Error", id="half of an answer"
        ),
        pytest.param(
            "nvmlDeviceGetComputeRunningProcesses_v3 3", NO_LIST, id="a virtual GPU without lists"
        ),
        pytest.param(
            "nvmlDeviceGetComputeRunningProcesses_v3 13\n"
            " fail nvmlDeviceGetComputeRunningProcesses_v2 13",
            NO_LIST,
            id="a driver without lists",
        ),
    ],
)
def test_a_gpu_that_refuses_costs_its_own_answer_alone(
    facts: Facts, failure: str, error: str
) -> None:
    facts(f"{FIRST}\n fail {failure}\n{SECOND}\n process compute 11 1")
    refusing, other = gpus_of(query(10))
    assert (refusing.index, refusing.error) == (0, error)
    assert (other.processes, other.error) == ((NvmlProcess(11, "compute", 1),), None)


@pytest.mark.parametrize(
    "failure",
    [
        "nvmlDeviceGetGraphicsRunningProcesses_v3 3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3 3",
        "nvmlDeviceGetMigMode 13",
    ],
)
def test_a_gpu_that_cannot_draw_or_be_shared_or_divided_is_no_worse(
    facts: Facts, failure: str
) -> None:
    facts(f"{FIRST}\n process compute 11 1\n fail {failure}")
    (gpu,) = gpus_of(query(10))
    assert (gpu.processes, gpu.error) == ((NvmlProcess(11, "compute", 1),), None)


@pytest.mark.parametrize(
    ("gpu", "changing"),
    [
        pytest.param("mig off", None, id="not divided"),
        pytest.param("mig MIG-0", None, id="divided"),
        pytest.param(
            "mig off\n pending 1", "GPU 1's MIG mode is to be enabled", id="to be divided"
        ),
        pytest.param(
            "mig MIG-0\n pending 0", "GPU 1's MIG mode is to be disabled", id="to be whole again"
        ),
    ],
)
def test_a_mig_mode_that_waits_for_a_reset_is_told(
    facts: Facts, gpu: str, changing: str | None
) -> None:
    facts(f"{FIRST}\n{SECOND}\n {gpu}")
    assert query(10).changing == changing


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        pytest.param(
            "nvmlInitWithFlags 9",
            "NVML did not start: Driver Not Loaded; load the driver: modprobe nvidia",
            id="no driver",
        ),
        pytest.param(
            "nvmlDeviceGetCount_v2 999",
            "NVML did not count the GPUs: Unknown Error",
            id="GPUs that cannot be counted",
        ),
        pytest.param("nvmlShutdown crash", "NVML crashed: Segmentation fault", id="a crash"),
        pytest.param("nvmlInitWithFlags hang", "NVML did not answer within 1 s", id="a hang"),
    ],
)
def test_a_failure_is_one_line_that_says_what_would_be_right(
    facts: Facts, failure: str, error: str
) -> None:
    facts(f"fail {failure}\n{FIRST}")
    began = time.monotonic()
    report = query(1)
    assert (report.gpus, report.said) == (None, error)
    assert time.monotonic() - began < PATIENCE


@pytest.mark.parametrize(
    ("fact", "persistence"),
    [
        pytest.param("", None, id="a GPU that does not say"),
        pytest.param("persistence 0", False, id="off"),
        pytest.param("persistence 1", True, id="on"),
    ],
)
def test_persistence_mode_is_read(facts: Facts, fact: str, persistence: bool | None) -> None:
    facts(f"{FIRST}\n {fact}")
    gpus = nvml.query(10).gpus or ()
    assert [gpu.persistence for gpu in gpus] == [persistence]


@pytest.mark.parametrize(
    ("memory", "beside"),
    [
        pytest.param((1023, 4096), (), id="a mere context on the other"),
        pytest.param((1024, 4096), (("nvidia", 0),), id="both"),
        pytest.param(("?", 4096), (("nvidia", 0),), id="NVML does not say how much on one"),
    ],
)
def test_a_real_process_is_found_on_the_gpus_where_it_has_most_memory(
    facts: Facts, tmp_path: Path, memory: tuple[int | str, int], beside: tuple[GpuKey, ...]
) -> None:
    few, most = memory
    gpus = tuple(
        Gpu(index, "nvidia", address, numa_node=0)
        for index, address in enumerate(("0000:07:00.0", "10000:0f:00.0"))
    )
    (tmp_path / "version").touch()
    holders = HolderSources(query, proc=os.fspath(tmp_path), driver=os.fspath(tmp_path))
    with sleeping() as child:
        facts(
            f"{FIRST}\n process compute {child.pid} {few}\n"
            f"{SECOND}\n process compute {child.pid} {most}"
        )
        held = holders.held(replace(made({0: "0-3"}), gpus=gpus))
    assert held.holdings == (Holding(child.pid, ("nvidia", 1), 4096, beside=beside),)
    assert held.unknown == {}
