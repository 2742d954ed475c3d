"""Whether a process uses the RDMA devices near its GPUs: by its variables and its open files. Pure.

NCCL_IB_HCA is `[^][=]name[:port],…`; `^` excludes, and without `=` each name is a prefix (NCCL,
src/transport/net_ib). UCX, NVSHMEM and UCCL name devices exactly. Slingshot: fi_cxi(7).
"""

# ruff: noqa: PTH115 - a process may have thousands of files

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from affinityd.linux.files import environment_of, listed, text
from affinityd.request.environment import NIC_VARIABLES, nic_value
from affinityd.topology.model import SYS, Gpu, Topology
from affinityd.topology.nearness import name_gpus
from affinityd.topology.rdma import NearNic, nics_of_gpus, verbs_ports


@dataclass(frozen=True)
class NicUse:
    """The RDMA devices that a process names, and those that it has opened."""

    variables: Mapping[str, str] = field(default_factory=dict)  #: the NIC_VARIABLES that are set
    opened: tuple[str, ...] = ()  #: devices


def far_nics(topology: Topology, gpus: Sequence[Gpu], use: NicUse) -> Iterator[str]:
    """Yield a sentence with a remedy if a process uses none of the NICs near its GPUs."""
    nics = nics_of_gpus(topology)
    best: list[NearNic] = []
    nearest: set[str] = set()
    for gpu in gpus:
        best += nics[gpu.key].best()
        nearest.update(nic.link for nic in nics[gpu.key].nearest)
    if not best or nearest == {SYS}:
        return
    ports = verbs_ports(best)
    first = best[0].port.device
    names = name_gpus(gpus, with_vendor=topology.has_several_vendors)
    where = f"the NUMA node of {names}; {first} is nearer ({best[0].link})"
    for library, variable in NIC_VARIABLES.items():
        said = use.variables.get(variable, "")
        if ports and _are_far(topology, gpus, _named(topology, library, said)):
            yield (
                f"{variable}={said} names no NIC on {where}: set {variable}="
                f"{nic_value(library, ports)}, or start it with affinityd exec --nics {library}"
            )
    if _are_far(topology, gpus, use.opened):
        remedy = f"set FI_CXI_DEVICE_NAME={first}"
        if ports:
            remedy = "start it with affinityd exec --nics ucx,nvshmem,uccl"
        yield f"its only open RDMA devices, {', '.join(use.opened)}, are not on {where}: {remedy}"


def _are_far(topology: Topology, gpus: Sequence[Gpu], devices: Collection[str]) -> bool:
    """Whether `devices` exist, and all of them are in other NUMA nodes than the GPUs."""
    links: set[str] = set()
    for nic in topology.nics:
        if any(port.device in devices for port in nic.ports):
            links.update(topology.nearness(gpu, nic) for gpu in gpus)
    return links == {SYS}


def _named(topology: Topology, library: str, said: str) -> Collection[str]:
    """Return the devices that a library selects by a list like `mlx5_0:1,mlx5_1`."""
    if said.startswith("^"):
        return ()
    names = []
    for entry in said.removeprefix("=").split(","):
        name = entry.partition(":")[0].strip()
        if name:
            names.append(name)
    if library != "nccl" or said.startswith("="):
        return names
    starts = tuple(names)
    devices: list[str] = []
    for nic in topology.nics:
        devices += [port.device for port in nic.ports if port.device.startswith(starts)]
    return devices


def nic_use(pid: int, root: str = "") -> NicUse:
    """Return the RDMA devices that a process has chosen and opened, as far as readable.

    Files: /dev/infiniband/uverbsN, named by /sys/class/infiniband_verbs/uverbsN/ibdev; /dev/cxiN.
    """
    environ = environment_of(pid, root) or {}
    variables = {name: said for name in NIC_VARIABLES.values() if (said := environ.get(name))}
    folder = f"{root}/proc/{pid}/fd"
    opened = set()
    for name in listed(folder):
        with suppress(OSError):
            file = os.readlink(f"{folder}/{name}")
            if file.startswith("/dev/infiniband/uverbs"):
                device = file.removeprefix("/dev/infiniband/")
                opened.add(text(f"{root}/sys/class/infiniband_verbs/{device}/ibdev"))
            elif file.startswith("/dev/cxi"):
                opened.add(file.removeprefix("/dev/"))
    return NicUse(variables, tuple(sorted(opened - {""})))
