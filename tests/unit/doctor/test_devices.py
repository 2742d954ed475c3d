"""The checks of GPUs themselves: their links, and their driver."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery.nvml.query import REMEDIES
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport
from affinityd.doctor.daemon_probe import file_age
from affinityd.topology.model import Topology
from tests.support.doctor_facts import NO_GPU, PCI, TWO, check, facts_of
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


def link(
    device: str, lanes: int, most: int, speed: str = "16.0", top: str = "16.0"
) -> dict[str, object]:
    """Return the files that tell of a device's link."""
    return {
        f"{PCI}/{device}/current_link_width": lanes,
        f"{PCI}/{device}/max_link_width": most,
        f"{PCI}/{device}/current_link_speed": f"{speed} GT/s PCIe",
        f"{PCI}/{device}/max_link_speed": f"{top} GT/s PCIe",
    }


ALL_LANES = "ok: every link of a GPU has all its lanes"
IDLE = link(GPU_0, 16, 16, "2.5") | link(GPU_1, 16, 16, "2.5")
NARROW = link(GPU_0, 8, 16) | link(DOWN_0, 16, 16)
SLOW_SLOT = link(GPU_0, 16, 16, top="32.0") | link(DOWN_0, 16, 16)
SHORT_SLOT = link(GPU_1, 8, 16) | link(DOWN_1, 8, 8)
#: What a switch's two ports have is no link between them.
NO_LINK = link(GPU_0, 16, 16) | link(UP, 16, 16) | link(DOWN_0, 16, 16) | link(ROOT, 8, 8)
NARROW_SWITCH = link(GPU_0, 16, 16) | link(GPU_1, 16, 16) | link(UP, 4, 16) | link(ROOT, 16, 16)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "n/a: no current_link_width of a GPU can be read"),
        (link(GPU_0, 255, 255), "n/a: no current_link_width"),
        (link(GPU_0, 0, 16), "n/a: no current_link_width"),
        (IDLE, "ok: GPUs 0-1 at 2.5 GT/s of 16, as is usual while idle"),
        (SLOW_SLOT, ALL_LANES),
        (NARROW, f"warn 0: GPU 0 ({GPU_0}): link of 8 lanes of 16 → check again"),
        (SHORT_SLOT, f"warn 1: as many as the port above it, {DOWN_1}, has → a slot with 16"),
        (NARROW_SWITCH, f"warn 0-1: switch {UP} above GPUs 0-1: link of 4 lanes → bifurc"),
        (NO_LINK, ALL_LANES),
    ],
)
def test_links(tmp_path: Path, files: dict[str, object], expected: str) -> None:
    check("pcie-link", facts_of(tmp_path, SWITCHED, files), expected)


SAID = nvml_report(TWO)
FIRST, SECOND = SAID.gpus or ()
LOST = replace(SAID, gpus=(replace(FIRST, error="GPU is lost"), SECOND))
ON = replace(SAID, gpus=(replace(FIRST, persistence=True), replace(SECOND, persistence=True)))
OFF = replace(SAID, gpus=(replace(FIRST, persistence=False), replace(SECOND, persistence=False)))
FIRST_OFF = replace(SAID, gpus=(replace(FIRST, persistence=False), SECOND))
UNKNOWN_MODE = "n/a: NVML does not report persistence mode"


def silent(error: str, remedy: str | None = None) -> NvmlReport:
    return NvmlReport(None, error=error, remedy=remedy)


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("nvml", SAID, "ok: NVML answers; driver 570.00"),
        ("nvml", None, "n/a: NVML was not asked"),
        ("nvml", silent("It is old"), "warn 0-1: It is old: plans are made from sysfs → modprobe"),
        ("nvml", silent("No library", REMEDIES[12]), "warn 0-1: No library: plans → libnvidia"),
        ("nvml", LOST, f"fail 0: GPU 0 ({GPU_0}): NVML says GPU is lost → NVRM: Xid"),
        ("persistence", ON, "ok: persistence mode of GPUs 0-1 is on"),
        ("persistence", OFF, "warn 0-1: of GPUs 0-1 is off → enable --now nvidia-persistenced"),
        ("persistence", FIRST_OFF, "warn 0: mode of GPU 0 is off → nvidia-smi -pm 1"),
        ("persistence", SAID, UNKNOWN_MODE),
        ("persistence", silent("NVML did not start"), UNKNOWN_MODE),
    ],
)
def test_the_driver(tmp_path: Path, name: str, said: NvmlReport | None, expected: str) -> None:
    check(name, facts_of(tmp_path, TWO, nvml=said), expected)


HELD = "NVML calls are on hold, until /run/affinityd/hold is removed"
NOT_ASKED = f"n/a: NVML was not asked: {HELD}"


@pytest.mark.parametrize(
    ("topology", "hours", "expected"),
    [
        (TWO, 1, NOT_ASKED),
        (TWO, 50, f"warn 0-1: {HELD}, which is 50 hours old → rm /run/affinityd"),
        (TWO, None, NOT_ASKED),
        (NO_GPU, 50, "n/a: there is no NVIDIA GPU"),
    ],
)
def test_nvml_that_was_not_asked(
    tmp_path: Path, topology: Topology, hours: int | None, expected: str
) -> None:
    seconds = None if hours is None else hours * 3600.0
    facts = replace(facts_of(tmp_path, topology), maintenance=HELD, hold_seconds=seconds)
    check("nvml", facts, expected)


def test_how_long_nvml_is_held_off_is_the_age_of_the_file(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    assert file_age(str(hold)) is None
    hold.touch()
    os.utime(hold, (time.time() - 7200,) * 2)
    assert file_age(str(hold)) == pytest.approx(7200, abs=60)


def test_without_an_nvidia_gpu_its_driver_is_of_no_interest(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, NO_GPU, nvml=silent("NVIDIA's driver is not loaded"))
    for name in ("nvml", "persistence"):
        check(name, facts, "n/a: there is no NVIDIA GPU")


def test_a_gpu_that_nvml_alone_knows_counts(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, NO_GPU, nvml=NvmlReport((NvmlGpu(0, pci_bus_id="0000:99:00.0"),)))
    check("nvml", facts, "ok: NVML answers; driver unknown")
