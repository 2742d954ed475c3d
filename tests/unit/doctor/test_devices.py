"""The checks of devices: the links of GPUs, RDMA ports, and how near these are to the GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.topology.model import Topology
from tests.support.doctor_facts import NO_GPU, PCI, TWO, check, facts_of
from tests.support.machines.facts import machine

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
def test_pcie_links(tmp_path: Path, files: dict[str, object], expected: str) -> None:
    check("pcie-link", facts_of(tmp_path, SWITCHED, files), expected)


A100, STORAGE = machine("dgx-a100"), ("mlx5_4", "mlx5_5")


def with_ports(**changes: object) -> Topology:
    first, *others = A100.nics
    port = replace(first.ports[0], **changes)  # type: ignore[arg-type]
    return replace(A100, nics=(replace(first, ports=(port,)), *others))


def only(*names: str) -> Topology:
    return replace(A100, nics=tuple(nic for nic in A100.nics if nic.names[0] in names))


def without(*names: str) -> Topology:
    return replace(A100, nics=tuple(nic for nic in A100.nics if nic.names[0] not in names))


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (A100, "ok: 10 ports ACTIVE"),
        (TWO, "n/a: this node has no RDMA device"),
        (with_ports(is_active=False), "warn: in no plan: mlx5_0 port 1 → ibstat"),
        (with_ports(gbps=100), "warn: mlx5_0 runs at 100 Gb/s, others at 200 → cable"),
        (with_ports(gbps=100, link_layer="Ethernet"), "ok: 10 ports ACTIVE"),
        (with_ports(gbps=None), "ok: 10 ports ACTIVE"),
    ],
)
def test_rdma_ports_that_are_down_or_slower_than_others(
    tmp_path: Path, topology: Topology, expected: str
) -> None:
    check("rdma-ports", facts_of(tmp_path, topology), expected)


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (machine("dgx-h100"), "ok: every GPU has an RDMA device as near as others have (PXB)"),
        (machine("mi250x"), "ok: every GPU has an RDMA device as near as others have (NODE, PHB)"),
        (TWO, "n/a: this node has no RDMA device"),
        (replace(NO_GPU, nics=A100.nics), "n/a: GPU"),
        (A100, "ok: as near as others have (PXB)"),
        (only(*STORAGE), "warn: than every GPU: mlx5_4 port 1, mlx5_5 port 1 → for storage"),
        (without(*STORAGE, "mlx5_0", "mlx5_1"), "warn 0-1: switch of GPUs 0-1; → slot"),
    ],
)
def test_rdma_devices_far_from_gpus(tmp_path: Path, topology: Topology, expected: str) -> None:
    check("gpu-nics", facts_of(tmp_path, topology), expected)
