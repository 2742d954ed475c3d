"""Which choices of RDMA devices are mistakes, by the published rules of NCCL and UCX."""

import pytest

from affinityd.audit.sources.nics import NicUse, far_nics
from tests.support.machines.facts import machine
from tests.support.tables import rows

H100, MI250X = machine("dgx-h100"), machine("mi250x")
#: H100: mlx5_0 is near GPU 0; mlx5_9, mlx5_10 and mlx5_11 are on the other node.
FAR = "names no NIC on the NUMA node of GPU 0; mlx5_0 is nearer (PXB): set "
BY_EXEC = ", or start it with affinityd exec --nics "


def findings(gpu: int, *opened: str, **variables: str) -> list[str]:
    return list(far_nics(H100, [H100.gpus[gpu]], NicUse(variables, opened)))


@pytest.mark.parametrize(
    ("variable", "said", "finding"),
    rows(f"""
the nearest          | UCX_NET_DEVICES   | mlx5_0:1          |
one of two is near   | UCX_NET_DEVICES   | mlx5_9:1,mlx5_3:1 |
all devices          | UCX_NET_DEVICES   | all               |
no RDMA device       | UCX_NET_DEVICES   | eth0              |
a far device         | UCX_NET_DEVICES   | mlx5_9:1  | {FAR}UCX_NET_DEVICES=mlx5_0:1{BY_EXEC}ucx
two are far | NVSHMEM_HCA_LIST | mlx5_9,mlx5_10 | {FAR}NVSHMEM_HCA_LIST=mlx5_0:1{BY_EXEC}nvshmem
far, no port is told | UCCL_P2P_RDMA_DEV | mlx5_9    | {FAR}UCCL_P2P_RDMA_DEV=mlx5_0{BY_EXEC}uccl
far, no prefix       | NCCL_IB_HCA       | =mlx5_9:1 | {FAR}NCCL_IB_HCA==mlx5_0:1{BY_EXEC}nccl
a prefix on purpose  | NCCL_IB_HCA       | mlx5      |
a prefix of only one | NCCL_IB_HCA       | mlx5_0    |
"""),
)
def test_a_variable_that_names_a_nic_of_another_node_is_a_finding(
    variable: str, said: str, finding: str
) -> None:
    expected = [f"{variable}={said} {finding}"] if finding else []
    assert findings(0, **{variable: said}) == expected


def test_open_device_files_show_which_devices_a_process_uses() -> None:
    assert findings(0, "mlx5_0", "mlx5_9") == findings(0) == []
    (found,) = findings(0, "mlx5_9", "mlx5_10")
    assert found == (
        "its only open RDMA devices, mlx5_9, mlx5_10, are not on the NUMA node of GPU 0; mlx5_0 is "
        "nearer (PXB): start it with affinityd exec --nics ucx,nvshmem,uccl"
    )
    (found,) = far_nics(MI250X, [MI250X.gpus[0]], NicUse(opened=("cxi2",)))
    assert found.endswith("cxi0 is nearer (NODE): set FI_CXI_DEVICE_NAME=cxi0")
