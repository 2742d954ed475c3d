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

from affinityd.audit.remedies import NEARER_NICS, SET_LIBFABRIC, START_WITH_NICS
from affinityd.linux.files import environment_of, listed, text
from affinityd.request.environment import NIC_VARIABLES, nic_value
from affinityd.topology.model import SYS, Gpu, Topology
from affinityd.topology.nearness import name_gpus
from affinityd.topology.rdma import nics_of_gpus, verbs_ports


@dataclass(frozen=True)
class NicUse:
    """The RDMA devices that a process names, and those that it has open."""

    variables: Mapping[str, str] = field(default_factory=dict)  #: of NIC_VARIABLES the set ones
    opened: tuple[str, ...] = ()  #: devices


def far_nics(topology: Topology, gpus: Sequence[Gpu], use: NicUse) -> Iterator[str]:
    """Yield sentences, each with its remedy, about a process that uses none of its GPUs' NICs."""
    nics = [nics_of_gpus(topology)[gpu.key] for gpu in gpus]
    best = [nic for its in nics for nic in its.best()]
    nearest = {nic.link for its in nics for nic in its.nearest}
    if not best or nearest == {SYS}:
        return

    def are_far(devices: Collection[str]) -> bool:
        links = {
            topology.nearness(gpu, nic)
            for nic in topology.nics
            if any(port.device in devices for port in nic.ports)
            for gpu in gpus
        }
        return links == {SYS}

    ports, first = verbs_ports(best), best[0].port.device
    names = name_gpus(gpus, with_vendor=topology.has_several_vendors)
    where = f"the NUMA node of {names}; {first} is nearer ({best[0].link})"
    for library, variable in NIC_VARIABLES.items():
        said = use.variables.get(variable, "")
        if ports and are_far(_named(topology, library, said)):
            value = nic_value(library, ports)
            remedy = NEARER_NICS.format(variable=variable, value=value, library=library)
            yield f"{variable}={said} names no NIC on {where}: {remedy}"
    if are_far(use.opened):
        remedy = START_WITH_NICS if ports else SET_LIBFABRIC.format(device=first)
        yield f"its only open RDMA devices, {', '.join(use.opened)}, are not on {where}: {remedy}"


def _named(topology: Topology, library: str, said: str) -> Collection[str]:
    """Return the devices that a list like `mlx5_0:1,mlx5_1` means to a library."""
    if said.startswith("^"):
        return ()
    listed = (it.partition(":")[0].strip() for it in said.removeprefix("=").split(","))
    names = tuple(filter(None, listed))
    if library != "nccl" or said.startswith("="):
        return names
    devices = (port.device for nic in topology.nics for port in nic.ports)
    return [device for device in devices if device.startswith(names)]


def nic_use(pid: int, root: str = "") -> NicUse:
    """Return a process's choice of RDMA devices, and those that it has open, where readable.

    Files: /dev/infiniband/uverbsN, named by /sys/class/infiniband_verbs/uverbsN/ibdev; /dev/cxiN.
    """
    environ = environment_of(pid, root) or {}
    variables = {name: said for name in NIC_VARIABLES.values() if (said := environ.get(name))}
    folder, opened = f"{root}/proc/{pid}/fd", set()
    for name in listed(folder):
        with suppress(OSError):
            file = os.readlink(f"{folder}/{name}")
            if file.startswith("/dev/infiniband/uverbs"):
                device = file.removeprefix("/dev/infiniband/")
                opened.add(text(f"{root}/sys/class/infiniband_verbs/{device}/ibdev"))
            elif file.startswith("/dev/cxi"):
                opened.add(file.removeprefix("/dev/"))
    return NicUse(variables, tuple(sorted(opened - {""})))
