"""Measurements of this machine's memory, and of GPUs: built libraries, whose memory is its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.cpuset import CpuSet, format_list
from affinityd.linux.processes import mask_of
from affinityd.measure import run
from affinityd.measure.document import (
    OF_GPUS,
    TO_DEVICE,
    TO_DEVICE_PAGEABLE,
    TO_HOST,
    TO_HOST_PAGEABLE,
    Figure,
)
from tests.support.child_python import said
from tests.support.children import children_of
from tests.support.machines.by_hand import made
from tests.support.shared_objects import libraries

ADDRESS = "0000:10:00.0"

#: Measures a GPU in a child of a child: the libraries are found by a variable of its start.
CODE = """
import json, os, sys
from dataclasses import replace
from affinityd.cpuset import format_list
from affinityd.measure import memory, run
from tests.support.machines.by_hand import made

run.PATIENCE, memory.SECONDS, run.ROUNDS = float(sys.argv[3]), 0.0, 2
machine = made({0: format_list(os.sched_getaffinity(0))}, gpus=[0])
gpu = replace(machine.gpus[0], vendor=sys.argv[1], pci_bus_id=sys.argv[2])
measured = run.measure(replace(machine, gpus=(gpu,)), {}, "now", lambda _: None)
figures = [figure for figure in measured.figures if figure.gpu]
print(json.dumps({figure.quantity: figure.why or figure.value > 0 for figure in figures}))
"""
HIDDEN = "cuDeviceGetByPCIBusId: ERROR_INVALID_DEVICE"
WHOLE = dict.fromkeys(OF_GPUS, True)
PINNED, COPIES_BACK = (TO_DEVICE, TO_HOST), (TO_HOST, TO_HOST_PAGEABLE)


def gpu_measured(
    vendor: str,
    fail: str = "",
    address: str = ADDRESS,
    patience: float = 60,
    folder: Path | None = None,
) -> dict[str, object]:
    """Return of each figure of a GPU whether it is one, or why it is none."""
    environment = (
        f"LD_LIBRARY_PATH={folder or libraries()}",
        f"GPU_ADDRESS={ADDRESS}",
        f"GPU_FAIL={fail}",
    )
    arguments = (vendor, address, str(patience))
    return dict(json.loads(said(CODE, *arguments, within=("env", *environment))))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ROUNDS", 2)


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_each_figure_is_measured_with_both_vendors_libraries(vendor: str) -> None:
    assert gpu_measured(vendor) == WHOLE


CRASH = "the measuring process crashed: Segmentation fault"
KILLED = "the measuring process was killed, as the kernel does where memory is short"


@pytest.mark.parametrize(
    ("fail", "missing", "why"),
    [
        ("cuInit 100", OF_GPUS, "cuInit: error 100"),
        ("cuMemHostRegister_v2 2", PINNED, "cuMemHostRegister_v2: ERROR_OUT_OF_MEMORY"),
        ("cuMemcpyDtoH_v2 719", COPIES_BACK, "cuMemcpyDtoH_v2: error 719"),
        ("cuCtxSynchronize 719", OF_GPUS, "cuCtxSynchronize: error 719"),
        ("cuMemFree_v2 719", (), ""),
        ("cuMemHostRegister_v2 crash", PINNED, CRASH),
        ("cuMemHostRegister_v2 kill", PINNED, KILLED),
        ("hipSetDevice 101", OF_GPUS, "hipSetDevice: ERROR_INVALID_DEVICE"),
    ],
)
def test_a_failed_call_costs_only_its_figures_and_is_named(
    fail: str, missing: tuple[str, ...], why: str
) -> None:
    vendor = "amd" if fail.startswith("hip") else "nvidia"
    assert gpu_measured(vendor, fail) == {**WHOLE, **dict.fromkeys(missing, why)}


def test_a_driver_that_hangs_is_killed_and_earlier_figures_stay() -> None:
    figures_of_gpu = gpu_measured("nvidia", "cuMemHostRegister_v2 hang", patience=5)
    hung = dict.fromkeys(PINNED, "the measuring process hung: no figure within 5 s")
    assert figures_of_gpu == {TO_DEVICE_PAGEABLE: True, TO_HOST_PAGEABLE: True, **hung}


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
    assert gpu_measured(vendor, address=address) == dict.fromkeys(OF_GPUS, why)


HERE = frozenset(os.sched_getaffinity(0))
NOT_HERE = 1000  #: no machine of these tests has as many nodes, or CPUs


def figures(*nodes: int, cpus: CpuSet = HERE) -> Iterator[Figure]:
    """Measure the memory of these nodes from these CPUs, as if they were node 0's."""
    lists = {node: "" if node else format_list(cpus) for node in nodes}
    return iter(run.measure(made(lists, gpus=[]), {}, "now", lambda _: None).figures)


def test_memory_has_a_bandwidth() -> None:
    (read,) = figures(0)
    assert os.sched_getaffinity(0) == HERE
    assert children_of(os.getpid()) == []
    assert read.value is not None
    assert 1e7 < read.value < 1e13  # bytes per second of any machine


def test_memory_on_another_node_is_not_measured() -> None:
    local, read = figures(0, NOT_HERE)
    assert local.why is None
    assert read.value is None
    assert read.why is not None
    assert read.why.startswith("not all of ")
    assert f"MiB came to node {NOT_HERE}: preferred on node {NOT_HERE} was refused" in read.why


def test_the_measuring_process_runs_on_the_cpus_of_its_node_and_ends_first_without_memory() -> None:
    cpus = frozenset({max(HERE)})
    seen: list[tuple[CpuSet | None, str]] = []

    def look(line: str) -> None:
        if line.startswith("round 2 "):
            (child,) = children_of(os.getpid())
            seen.append((mask_of(child), Path(f"/proc/{child}/oom_score_adj").read_text()))

    run.measure(made({0: format_list(cpus)}, gpus=[]), {}, "now", look)
    assert seen == [(cpus, "1000\n")]
