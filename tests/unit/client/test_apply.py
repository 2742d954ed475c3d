"""Libraries are told which RDMA devices are near, and nothing that would fail them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from affinityd.client.apply import export_nics
from affinityd.request.environment import NIC_VARIABLES
from tests.support.machines.sysfs_tree import put

#: A device whose port 1 is active, one that is down, and one without a device file here.
DEVICES = {
    "mlx5_0": ("4: ACTIVE", True),
    "mlx5_1": ("1: DOWN", True),
    "mlx5_2": ("4: ACTIVE", False),
}
ALL = "ucx,nvshmem,uccl,nccl"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in (*NIC_VARIABLES.values(), "AFFINITYD_RDMA"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    files = tmp_path / "dev/infiniband"
    files.mkdir(parents=True)
    for number, (device, (state, is_here)) in enumerate(DEVICES.items()):
        folder = tmp_path / "sys/class/infiniband" / device
        (folder / "ports/1").mkdir(parents=True)
        (folder / "ports/1/state").write_text(f"{state}\n")
        put(folder / f"device/infiniband_verbs/uverbs{number}/ibdev", device)
        if is_here:
            (files / f"uverbs{number}").touch()
    return {"AFFINITYD_ROOT": str(tmp_path)}


def told() -> dict[str, str]:
    return {name: os.environ[name] for name in NIC_VARIABLES.values() if name in os.environ}


def test_each_library_has_its_variable_set(root: dict[str, str]) -> None:
    assert list(export_nics(ALL, ["mlx5_0:1"], root)) == []
    assert told() == {
        "UCX_NET_DEVICES": "mlx5_0:1",
        "NVSHMEM_HCA_LIST": "mlx5_0:1",
        "UCCL_P2P_RDMA_DEV": "mlx5_0",
        "NCCL_IB_HCA": "=mlx5_0:1",
    }


@pytest.mark.parametrize(
    ("port", "why"),
    [
        ("mlx5_1:1", "not active here: mlx5_1:1"),
        ("mlx5_2:1", "this process cannot open mlx5_2:1 in /dev/infiniband"),
        ("mlx5_9:1", "not active here: mlx5_9:1"),
        ("mlx5_0:2", "not active here: mlx5_0:2"),
    ],
)
def test_a_port_that_is_down_or_cannot_be_opened_is_not_named(
    root: dict[str, str], port: str, why: str
) -> None:
    assert list(export_nics("ucx", [port, "mlx5_0:1"], root)) == []
    assert told() == {"UCX_NET_DEVICES": "mlx5_0:1"}
    assert list(export_nics("ucx,uccl", [port], root)) == [
        f"not set: UCX_NET_DEVICES, UCCL_P2P_RDMA_DEV; {why}"
    ]
    assert told() == {}


def test_a_user_s_variable_stays_but_that_of_an_earlier_pin_is_replaced(
    root: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_7:1")
    monkeypatch.setenv("AFFINITYD_RDMA", "mlx5_5:1,mlx5_6:1")
    monkeypatch.setenv("UCCL_P2P_RDMA_DEV", "mlx5_5,mlx5_6")
    assert list(export_nics("ucx,uccl", ["mlx5_0:1"], root)) == [
        "UCX_NET_DEVICES='mlx5_7:1' was set before, and stays"
    ]
    assert told() == {"UCX_NET_DEVICES": "mlx5_7:1", "UCCL_P2P_RDMA_DEV": "mlx5_0"}


@pytest.mark.parametrize(
    ("said", "ports", "line"),
    [
        ("ucx,mpi", ["mlx5_0:1"], "nics: 'mpi' is not one of ucx, nvshmem, uccl, nccl (none"),
        ("none,ucx", ["mlx5_0:1"], "nics: 'none' is not one of ucx"),
        ("ucx", [], "not set: UCX_NET_DEVICES; the plan has no active device of InfiniBand"),
    ],
)
def test_a_line_says_why_no_variable_is_set(
    root: dict[str, str], said: str, ports: list[str], line: str
) -> None:
    (found,) = export_nics(said, ports, root)
    assert found.startswith(line)
    assert told() == {}
