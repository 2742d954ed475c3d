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
from affinityd.cpuset import several
from affinityd.linux.files import environment_of, listed, text
from affinityd.request.environment import NIC_VARIABLES, nic_value
from affinityd.topology.model import SYS, Gpu, Topology
from affinityd.topology.rdma import nics_of_gpus, verbs_ports

NCCL = "nccl"


@dataclass(frozen=True)
class NicUse:
    """The RDMA devices that a process names, and those that it has open."""

    variables: Mapping[str, str] = field(default_factory=dict)  #: of NIC_VARIABLES the set ones
    opened: tuple[str, ...] = ()  #: devices


class NicJudge:
    """Judges processes on one machine."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._nics = nics_of_gpus(topology)
        self._devices = tuple(port.device for nic in topology.nics for port in nic.ports)

    def findings(self, gpus: Sequence[Gpu], use: NicUse) -> Iterator[str]:
        """Yield sentences, each with its remedy, about a process on these GPUs."""
        best = [it for gpu in gpus for it in self._nics[gpu.key].best()]
        if not best:
            return
        ports, first = verbs_ports(best), best[0].port.device
        nearer = f"{first} is nearer ({best[0].link})"
        for library, variable in NIC_VARIABLES.items():
            said = use.variables.get(variable, "")
            if ports and self._is_far(gpus, self._named(library, said)):
                yield (
                    f"{variable}={said} names no NIC on the NUMA node of {_names(gpus)}; {nearer}: "
                    + NEARER_NICS.format(
                        variable=variable, value=nic_value(library, ports), library=library
                    )
                )
        if self._is_far(gpus, use.opened):
            opened = ", ".join(use.opened)
            remedy = START_WITH_NICS if ports else SET_LIBFABRIC.format(device=first)
            yield (
                f"its only open RDMA devices, {opened}, are not on the NUMA node of "
                f"{_names(gpus)}; {nearer}: {remedy}"
            )

    def _is_far(self, gpus: Sequence[Gpu], devices: Collection[str]) -> bool:
        """Whether devices are all on other nodes than the GPUs, and a nearer one is there."""
        links = {
            self._topology.nearness(gpu, nic)
            for nic in self._topology.nics
            if any(port.device in devices for port in nic.ports)
            for gpu in gpus
        }
        nearest = {it.link for gpu in gpus for it in self._nics[gpu.key].nearest}
        return links == {SYS} and nearest != {SYS}

    def _named(self, library: str, said: str) -> tuple[str, ...]:
        if said.startswith("^"):
            return ()
        names = _listed(said.removeprefix("="))
        if library != NCCL or said.startswith("="):
            return tuple(names)
        return tuple(it for it in self._devices if it.startswith(tuple(names)))


def _listed(text: str) -> list[str]:
    """Return the names of a list like `mlx5_0:1,mlx5_1`, without ports."""
    return [name for it in text.split(",") if (name := it.partition(":")[0].strip())]


def _names(gpus: Sequence[Gpu]) -> str:
    return several("GPU", (gpu.index for gpu in gpus))


# The RDMA devices that a process has open, and the variables that choose them.
#
# Sources: proc_pid_fd(5), proc_pid_environ(5); /sys/class/infiniband_verbs/uverbsN/ibdev, kernel
# drivers/infiniband/core/uverbs_main.c; Slingshot's files are /dev/cxiN.

VERBS, SLINGSHOT = "/dev/infiniband/uverbs", "/dev/cxi"


def nic_use(pid: int, root: str = "") -> NicUse:
    """Return a process's choice of RDMA devices, and those that it has open, where readable."""
    environ = environment_of(pid, root) or {}
    variables = {name: said for name in NIC_VARIABLES.values() if (said := environ.get(name))}
    folder, opened = f"{root}/proc/{pid}/fd", set()
    for name in listed(folder):
        with suppress(OSError):
            file = os.readlink(f"{folder}/{name}")
            if file.startswith(VERBS):
                number = file.removeprefix(VERBS)
                opened.add(text(f"{root}/sys/class/infiniband_verbs/uverbs{number}/ibdev"))
            elif file.startswith(SLINGSHOT):
                opened.add(file.removeprefix("/dev/"))
    return NicUse(variables, tuple(sorted(opened - {""})))
