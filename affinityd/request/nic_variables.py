"""The variables that give communication libraries their RDMA devices. Pure.

Sources: UCX docs/source/faq.md (UCX_NET_DEVICES), NVSHMEM's environment variables
(NVSHMEM_HCA_LIST, which counts only with NVSHMEM_ENABLE_NIC_PE_MAPPING=1), NCCL's
(NCCL_IB_HCA: prefixes, unless the list begins with `=`), UCCL's p2p.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


#: A library → its variable.
VARIABLES = {
    "ucx": "UCX_NET_DEVICES",
    "nvshmem": "NVSHMEM_HCA_LIST",
    "uccl": "UCCL_P2P_RDMA_DEV",
    "nccl": "NCCL_IB_HCA",
}
#: Those that do not choose near devices by themselves; NCCL does.
UNASKED = ("ucx", "nvshmem", "uccl")
#: VLLM_NIC_SELECTION_VARS: the same, each with what vLLM appends to a device (vllm#42083).
VLLM_SELECTION = "UCX_NET_DEVICES:1,NVSHMEM_HCA_LIST:1,UCCL_P2P_RDMA_DEV"


def value(library: str, ports: Sequence[str]) -> str:
    """Return the value of a library's variable for ports, each like `mlx5_2:1`."""
    if library == "uccl":
        return ",".join(dict.fromkeys(port.partition(":")[0] for port in ports))
    return ("=" if library == "nccl" else "") + ",".join(ports)
