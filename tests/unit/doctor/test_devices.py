"""The checks of GPUs themselves: their links, their driver, their interrupts."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport
from affinityd.discovery.nvml.session import REMEDIES
from affinityd.doctor.daemon_probe import file_age
from affinityd.errors import NVML_EXTRA
from affinityd.topology.model import Nic, Topology
from tests.support.doctor_facts import (
    CPU,
    NO_GPU,
    ONE,
    PCI,
    TWO,
    Expected,
    Files,
    check,
    facts_of,
    n_a,
    well,
)
from tests.support.machines.sysfs_tree import nvml_report

GPU_0, GPU_1 = (gpu.pci_bus_id for gpu in TWO.gpus)

#: Two GPUs below one switch: the root's port, the switch's upstream port, its downstream ports.
ROOT, UP, DOWN_0, DOWN_1 = "0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:02:01.0"
SWITCHED = replace(
    TWO,
    gpus=tuple(
        replace(gpu, pci_path=("pci0000:00", ROOT, UP, down, gpu.pci_bus_id))
        for gpu, down in zip(TWO.gpus, (DOWN_0, DOWN_1), strict=True)
    ),
)


def link(device: str, lanes: object, most: object, speed: str = "16.0", top: str = "16.0") -> Files:
    """Return the files that tell of a device's link."""
    return {
        f"{PCI}/{device}/current_link_width": lanes,
        f"{PCI}/{device}/max_link_width": most,
        f"{PCI}/{device}/current_link_speed": f"{speed} GT/s PCIe",
        f"{PCI}/{device}/max_link_speed": f"{top} GT/s PCIe",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, [n_a("no current_link_width of a GPU can be read")]),
        (link(GPU_0, 255, 255), [n_a("no current_link_width")]),
        (link(GPU_0, 0, 16), [n_a("no current_link_width")]),
        (link(GPU_0, 16, 16), [well("every link of a GPU has all its lanes")]),
        (
            {**link(GPU_0, 16, 16, speed="2.5"), **link(GPU_1, 16, 16, speed="2.5")},
            [well("GPUs 0-1 at 2.5 GT/s of 16, as is usual while idle")],
        ),
        (
            {**link(GPU_0, 16, 16, speed="16.0", top="32.0"), **link(DOWN_0, 16, 16)},
            [well("every link of a GPU has all its lanes")],
        ),
        (
            {**link(GPU_0, 8, 16), **link(DOWN_0, 16, 16)},
            [Expected("warn", f"GPU 0 ({GPU_0}): link of 8 lanes of 16", "look again", (0,))],
        ),
        (
            {**link(GPU_1, 8, 16), **link(DOWN_1, 8, 8)},
            [
                Expected(
                    "warn", f"all that the port above it, {DOWN_1}, has", "a slot with 16", (1,)
                )
            ],
        ),
        (
            {**link(GPU_0, 16, 16), **link(GPU_1, 16, 16), **link(UP, 4, 16), **link(ROOT, 16, 16)},
            [Expected("warn", f"switch {UP} above GPUs 0-1: link of 4 lanes", "bifurc", (0, 1))],
        ),
        (
            # What a switch's two ports have is no link between them.
            {**link(GPU_0, 16, 16), **link(UP, 16, 16), **link(DOWN_0, 16, 16), **link(ROOT, 8, 8)},
            [well("every link of a GPU has all its lanes")],
        ),
    ],
    ids=[
        "the machine tells nothing",
        "the GPU is on no link",
        "the link is down",
        "all lanes",
        "all lanes, and idle",
        "as fast as the slot is",
        "lanes that were lost",
        "a slot with fewer lanes",
        "a switch that lost lanes",
        "a port that is none of the link",
    ],
)
def test_links(tmp_path: Path, files: Files, expected: list[Expected]) -> None:
    check("pcie-link", facts_of(tmp_path, SWITCHED, files), *expected)


SAID = nvml_report(TWO)


def saying(**fields: object) -> NvmlReport:
    """Return what NVML says, with these words of its first GPU."""
    first, *others = SAID.gpus or ()
    return replace(SAID, gpus=(replace(first, **fields), *others))  # type: ignore[arg-type]


SILENT = NvmlReport(None, error="NVML did not start: Driver/library version mismatch")
ON = replace(SAID, gpus=tuple(replace(gpu, persistence=True) for gpu in SAID.gpus or ()))
OFF = replace(SAID, gpus=tuple(replace(gpu, persistence=False) for gpu in SAID.gpus or ()))


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("nvml", SAID, well("NVML answers; driver 570.00")),
        ("nvml", None, n_a("nobody asked NVML")),
        (
            "nvml",
            SILENT,
            Expected("warn", "version mismatch: plans are made from sysfs", "nvidia-smi", (0, 1)),
        ),
        (
            "nvml",
            NvmlReport(None, error="NVML needs nvidia-ml-py", remedy=NVML_EXTRA),
            Expected("warn", "NVML needs nvidia-ml-py: plans", "pip install '.[nvml]'", (0, 1)),
        ),
        (
            "nvml",
            NvmlReport(None, error="NVML did not start: Library Not Found", remedy=REMEDIES[12]),
            Expected("warn", "Library Not Found: plans", "libnvidia-ml.so.1 comes with", (0, 1)),
        ),
        (
            "nvml",
            NvmlReport(None, error="NVIDIA's driver is not loaded"),
            Expected("warn", "driver is not loaded: plans", "modprobe nvidia loads", (0, 1)),
        ),
        (
            "nvml",
            saying(error="GPU is lost"),
            Expected("fail", f"GPU 0 ({GPU_0}): NVML says GPU is lost", "NVRM: Xid", (0,)),
        ),
        ("persistence", ON, well("persistence mode of GPUs 0-1 is on")),
        (
            "persistence",
            OFF,
            Expected("warn", "mode of GPUs 0-1 is off", "enable --now nvidia-persistenced", (0, 1)),
        ),
        (
            "persistence",
            saying(persistence=False),
            Expected("warn", "mode of GPU 0 is off", "nvidia-smi -pm 1", (0,)),
        ),
        ("persistence", SAID, n_a("NVML says nothing of persistence mode")),
        ("persistence", SILENT, n_a("NVML says nothing of persistence mode")),
    ],
)
def test_the_driver(tmp_path: Path, name: str, said: NvmlReport | None, expected: Expected) -> None:
    check(name, facts_of(tmp_path, TWO, nvml=said), expected)


HELD = "NVML is held off, until /run/affinityd/hold is removed"


@pytest.mark.parametrize(
    ("topology", "seconds", "expected"),
    [
        (TWO, 3600.0, n_a(f"NVML was not asked: {HELD}")),
        (TWO, 50 * 3600.0, Expected("warn", f"{HELD}, for 50 hours", "rm /run/affinityd", (0, 1))),
        (TWO, None, n_a(f"NVML was not asked: {HELD}")),
        (NO_GPU, 50 * 3600.0, n_a("there is no NVIDIA GPU")),
    ],
    ids=["held off", "and that was forgotten", "somebody else works", "and no GPU of NVIDIA's"],
)
def test_nvml_that_was_not_asked(
    tmp_path: Path, topology: Topology, seconds: float | None, expected: Expected
) -> None:
    check(
        "nvml",
        replace(facts_of(tmp_path, topology), maintenance=HELD, hold_seconds=seconds),
        expected,
    )


def test_how_long_nvml_is_held_off_is_the_age_of_the_file(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    assert file_age(str(hold)) is None
    hold.touch()
    os.utime(hold, (time.time() - 7200,) * 2)
    assert file_age(str(hold)) == pytest.approx(7200, abs=60)


@pytest.mark.parametrize("name", ["nvml", "persistence"])
def test_without_an_nvidia_gpu_its_driver_is_of_no_interest(tmp_path: Path, name: str) -> None:
    unloaded = NvmlReport(None, error="NVIDIA's driver is not loaded")
    facts = facts_of(tmp_path, NO_GPU, nvml=unloaded)
    check(name, facts, n_a("there is no NVIDIA GPU"))


def test_a_gpu_that_nvml_alone_knows_counts(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, NO_GPU, nvml=NvmlReport((NvmlGpu(0, pci_bus_id="0000:99:00.0"),)))
    check("nvml", facts, well("NVML answers; driver unknown"))


NIC = Nic("0000:20:00.0", numa_node=1, kind="infiniband", names=("mlx5_0",))
WITH_NIC = replace(TWO, nics=(NIC,))


def irq(device: str, number: int, effective: str, asked: str = "0-7") -> Files:
    """Return the files of an interrupt."""
    return {
        f"{PCI}/{device}/msi_irqs/{number}": "msix",
        f"proc/irq/{number}/effective_affinity_list": effective,
        f"proc/irq/{number}/smp_affinity_list": asked,
    }


def named(pid: int, uid: int) -> Files:
    """Return the files of a user's process that is called irqbalance."""
    status = f"Name:\tirqbalance\nUid:\t{uid}\t{uid}\t{uid}\t{uid}"
    return {f"proc/{pid}/comm": "irqbalance", f"proc/{pid}/status": status}


def running(**variables: str) -> Files:
    """Return the files of a running irqbalance; another user's process is called so, too."""
    environ = "\0".join(f"{name}={text}" for name, text in {"LANG": "C", **variables}.items())
    return {
        "proc/1/comm": "systemd",
        **named(9, uid=1000),
        **named(77, uid=0),
        "proc/77/environ": environ,
        "proc/irq/0/smp_affinity_list": "0-7",
    }


QUIET = {"proc/irq/0/smp_affinity_list": "0-7"}
UNREADABLE = {name: text for name, text in running().items() if "environ" not in name}
BANNED = "irqbalance keeps off CPUs 0-3, all that are near GPU 0"
LEAVE = "leave it a core of each node: IRQBALANCE_BANNED_CPULIST="


@pytest.mark.parametrize(
    ("files", "reserved", "expected"),
    [
        ({}, "", [n_a("there is no /proc/irq to read")]),
        (QUIET, "", [well("irqbalance does not run")]),
        ({**QUIET, **named(9, uid=1000)}, "", [well("irqbalance does not run")]),
        (running(), "", [well("irqbalance runs (process 77)")]),
        (
            running(IRQBALANCE_BANNED_CPULIST="1-3,5-7"),
            "0,4",
            [well("irqbalance runs (process 77), and keeps off CPUs 1-3,5-7")],
        ),
        (
            running(IRQBALANCE_BANNED_CPUS="ee"),
            "0,4",
            [well("irqbalance runs (process 77), and keeps off CPUs 1-3,5-7")],
        ),
        (
            {**running(), f"{CPU}/isolated": "1-3", f"{CPU}/nohz_full": "5-7"},
            "0,4",
            [well("irqbalance runs (process 77), and keeps off CPUs 1-3,5-7")],
        ),
        (
            {**UNREADABLE, "etc/sysconfig/irqbalance": '#x=1\nIRQBALANCE_BANNED_CPULIST="1-3,5-7"'},
            "0,4",
            [well("irqbalance runs (process 77), and keeps off CPUs 1-3,5-7")],
        ),
        (
            running(IRQBALANCE_BANNED_CPULIST="1-3"),
            "0,4",
            [
                Expected(
                    "warn",
                    "may use CPUs 5-7, which ranks of GPU 1 are given, though CPUs 0,4 are reserv",
                    "IRQBALANCE_BANNED_CPULIST=1-3,5-7 in /etc/default/irqbalance",
                    (1,),
                )
            ],
        ),
        (
            running(IRQBALANCE_BANNED_CPULIST="lots", IRQBALANCE_BANNED_CPUS="f"),
            "",
            [Expected("warn", BANNED, LEAVE, (0,))],
        ),
        (
            {**QUIET, **irq(GPU_1, 40, "0"), **irq(GPU_0, 41, "1")},
            "",
            [
                Expected(
                    "warn",
                    f"GPU 1 ({GPU_1}): its interrupts are handled on CPU 0, and CPUs 4-7 are near",
                    "systemctl enable --now irqbalance",
                    (1,),
                )
            ],
        ),
        (
            {**running(), **irq(NIC.pci_bus_id, 40, "", "0-1"), **irq(NIC.pci_bus_id, 41, "2")},
            "",
            [
                Expected(
                    "warn",
                    f"adapter mlx5_0 ({NIC.pci_bus_id}): its interrupts are handled on CPUs 0-2",
                    "let irqbalance have CPUs there",
                    (1,),
                )
            ],
        ),
        (
            {**running(), **irq(NIC.pci_bus_id, 40, "0"), **irq(NIC.pci_bus_id, 41, "4")},
            "",
            [well("irqbalance runs")],
        ),
    ],
    ids=[
        "the machine tells nothing",
        "it does not run",
        "some user's process is called so",
        "it runs as everywhere",
        "it keeps to the reserved CPUs",
        "it keeps to them by a mask",
        "it keeps off isolated CPUs by itself",
        "its environment is another user's",
        "it does not keep to the reserved CPUs",
        "it may use no CPU near a GPU",
        "a GPU's interrupts are far",
        "an adapter's are all far",
        "an adapter's are spread",
    ],
)
def test_interrupts(tmp_path: Path, files: Files, reserved: str, expected: list[Expected]) -> None:
    check("irqbalance", facts_of(tmp_path, WITH_NIC, files, reserved=reserved), *expected)


def test_on_one_node_no_interrupt_is_far(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, ONE, {**QUIET, **irq(ONE.gpus[0].pci_bus_id, 40, "0")})
    check("irqbalance", facts, well("irqbalance does not run"))


def test_without_a_gpu_interrupts_are_of_no_interest(tmp_path: Path) -> None:
    check("irqbalance", facts_of(tmp_path, NO_GPU, QUIET), n_a("there is no GPU"))
