"""The checks of RDMA ports, and of how near they are to the GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.topology.model import Topology
from tests.support.doctor_facts import NO_GPU, TWO, check, facts_of
from tests.support.machines.facts import machine

A100, STORAGE = machine("dgx-a100"), ("mlx5_4", "mlx5_5")


def with_ports(**changes: object) -> Topology:
    """Return a machine whose first adapter's port differs so."""
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
def test_ports_that_are_down_or_slower_than_their_like(
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
        (
            without(*STORAGE, "mlx5_0", "mlx5_1"),
            "warn 0-1: switch of GPUs 0-1; → slot",
        ),
    ],
)
def test_gpus_and_devices_that_are_far(tmp_path: Path, topology: Topology, expected: str) -> None:
    check("gpu-nics", facts_of(tmp_path, topology), expected)
