"""Measurements of this machine's memory, and of GPUs: built libraries, whose memory is its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from affinityd.cpuset import CpuSet
from affinityd.linux.processes import mask_of
from affinityd.measure.document import (
    LAUNCH,
    OF_GPUS,
    OF_MEMORY,
    TO_DEVICE,
    TO_DEVICE_PAGEABLE,
    TO_HOST,
    TO_HOST_PAGEABLE,
)
from affinityd.measure.run import MemoryTarget, NodeTask, measured
from tests.support.child_python import said
from tests.support.children import children_of
from tests.support.gpu_driver.shared_object import libraries

ADDRESS = "0000:10:00.0"

#: Measures a GPU in a child of a child: the libraries are found by a variable of its start.
CODE = """
import json, os, sys
from affinityd.measure import memory, run
from affinityd.topology.model import Gpu

run.PATIENCE, memory.SECONDS = float(sys.argv[3]), 0.0
gpus = tuple(Gpu(index, sys.argv[1], it, 0) for index, it in enumerate(sys.argv[2].split(",")))
here = frozenset(os.sched_getaffinity(0))
task = run.NodeTask(0, here, (), gpus, home=0, is_one_node=True)
found = [*run.measured(task)]
print(json.dumps([
    {it.quantity: it.why or it.value > 0 for it in found if it.gpu == gpu.pci_bus_id}
    for gpu in gpus
]))
"""
NO_KERNEL = "HIP takes no kernel that is not compiled for this very GPU"
HIDDEN = "cuDeviceGetByPCIBusId: ERROR_INVALID_DEVICE"
WHOLE = dict.fromkeys(OF_GPUS, True)
PINNED, COPIES_BACK = (TO_DEVICE, TO_HOST), (TO_HOST, TO_HOST_PAGEABLE)


def gpus_measured(
    vendor: str,
    fail: str = "",
    address: str = ADDRESS,
    patience: float = 60,
    folder: Path | None = None,
) -> list[dict[str, object]]:
    """Return of each GPU, and each figure, whether it is one, or why it is none."""
    environment = (
        f"LD_LIBRARY_PATH={folder or libraries()}",
        f"GPU_ADDRESS={ADDRESS}",
        f"GPU_FAIL={fail}",
    )
    arguments = (vendor, address, str(patience))
    return list(json.loads(said(CODE, *arguments, within=("env", *environment))))


def test_each_figure_is_measured_with_both_vendors_libraries() -> None:
    assert gpus_measured("nvidia") == [WHOLE]
    assert gpus_measured("amd") == [{**WHOLE, LAUNCH: NO_KERNEL}]


@pytest.mark.parametrize(
    ("vendor", "fail", "missing", "why"),
    [
        ("nvidia", "cuInit 100", OF_GPUS, "cuInit: error 100"),
        (
            "nvidia",
            "cuDeviceGetByPCIBusId 101",
            OF_GPUS,
            "cuDeviceGetByPCIBusId: ERROR_INVALID_DEVICE",
        ),
        ("nvidia", "cuMemAlloc_v2 2", OF_GPUS, "cuMemAlloc_v2: ERROR_OUT_OF_MEMORY"),
        ("nvidia", "cuMemHostRegister_v2 2", PINNED, "cuMemHostRegister_v2: ERROR_OUT_OF_MEMORY"),
        ("nvidia", "cuMemcpyDtoH_v2 719", COPIES_BACK, "cuMemcpyDtoH_v2: error 719"),
        ("nvidia", "cuModuleLoadData 218", (LAUNCH,), "cuModuleLoadData: error 218"),
        ("nvidia", "cuLaunchKernel 2", (LAUNCH,), "cuLaunchKernel: ERROR_OUT_OF_MEMORY"),
        ("nvidia", "cuCtxSynchronize 719", OF_GPUS, "cuCtxSynchronize: error 719"),
        ("nvidia", "cuMemFree_v2 719", (), ""),
        (
            *("nvidia", "cuLaunchKernel crash", (LAUNCH,)),
            "the measuring process crashed: Segmentation fault",
        ),
        (
            *("nvidia", "cuLaunchKernel kill", (LAUNCH,)),
            "the measuring process was killed, as the kernel does where memory is short",
        ),
        ("amd", "hipSetDevice 101", OF_GPUS, "hipSetDevice: ERROR_INVALID_DEVICE"),
        ("amd", "hipHostRegister 2", PINNED, "hipHostRegister: ERROR_OUT_OF_MEMORY"),
    ],
)
def test_a_failed_call_costs_only_its_figures_and_is_named(
    vendor: str, fail: str, missing: tuple[str, ...], why: str
) -> None:
    usual = {LAUNCH: NO_KERNEL} if vendor == "amd" else {}
    assert gpus_measured(vendor, fail) == [{**WHOLE, **usual, **dict.fromkeys(missing, why)}]


def test_a_driver_that_hangs_is_killed_and_earlier_figures_stay() -> None:
    found = gpus_measured("nvidia", "cuMemHostRegister_v2 hang", patience=5)
    hung = dict.fromkeys((*PINNED, LAUNCH), "the measuring process hung: no figure within 5 s")
    assert found == [{TO_DEVICE_PAGEABLE: True, TO_HOST_PAGEABLE: True, **hung}]


def test_a_crash_costs_the_figures_of_one_gpu() -> None:
    crashed, hidden = gpus_measured(
        "nvidia", "cuMemAlloc_v2 crash", address=f"{ADDRESS},0000:11:00.0"
    )
    assert crashed == dict.fromkeys(OF_GPUS, "the measuring process crashed: Segmentation fault")
    assert hidden == dict.fromkeys(OF_GPUS, HIDDEN)


@pytest.mark.parametrize(
    ("vendor", "address", "why"),
    [
        ("nvidia", "0000:11:00.0", HIDDEN),
        ("huawei", ADDRESS, "no library is known to copy to a GPU of huawei"),
    ],
)
def test_a_gpu_that_is_hidden_or_of_another_vendor_is_not_measured(
    vendor: str, address: str, why: str
) -> None:
    assert gpus_measured(vendor, address=address) == [dict.fromkeys(OF_GPUS, why)]


HERE = frozenset(os.sched_getaffinity(0))
NOT_HERE = 1000  #: no machine of these tests has as many nodes, or CPUs


def task(*nodes: int, cpus: CpuSet = HERE) -> NodeTask:
    memory = tuple(MemoryTarget(node, HERE if node == 0 else frozenset()) for node in nodes)
    return NodeTask(0, cpus, memory, (), home=0, is_one_node=len(nodes) == 1)


def test_memory_has_a_bandwidth_and_a_latency() -> None:
    read, latency = measured(task(0))
    assert (read.why, latency.why) == (None, None)
    assert read.value is not None
    assert latency.value is not None
    # In any machine a load of memory takes longer than reading a line's 64 bytes in order.
    assert latency.value > 64 / read.value


def test_memory_on_another_node_is_not_measured() -> None:
    *local, read, latency = measured(task(0, NOT_HERE))
    assert all(it.value is not None for it in local)
    assert (read.value, latency.value) == (None, None)
    assert read.why is not None
    assert read.why.startswith("not all of ")
    assert f"MiB came to node {NOT_HERE}: preferred on node {NOT_HERE} was refused" in read.why


def test_cpus_outside_the_cpuset_leave_each_figure_with_a_reason() -> None:
    found = [*measured(task(0, cpus=frozenset({NOT_HERE})))]
    assert [it.quantity for it in found] == [*OF_MEMORY]
    assert {it.why for it in found} == {"its CPUs are outside this process's cpuset"}


def test_the_measuring_process_runs_on_the_cpus_of_its_node_and_ends_first_without_memory() -> None:
    cpus = frozenset({max(HERE)})
    for _ in measured(task(0, cpus=cpus)):
        for child in children_of(os.getpid()):  # none, once it has ended
            assert mask_of(child) == cpus
            assert Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n"
            return
    raise AssertionError("it was not seen")


def test_a_measurement_leaves_no_process_and_changes_no_mask() -> None:
    list(measured(task(0)))
    assert os.sched_getaffinity(0) == HERE
    assert children_of(os.getpid()) == []
