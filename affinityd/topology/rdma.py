"""The best RDMA devices for each GPU: the nearest, divided as NCCL divides them. Pure.

Source of the division: NCCL 2.30, src/graph/topo.cc, ncclTopoGetLocalNetType.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from affinityd.topology.model import LINKS, Gpu, Nic, RdmaPort, Topology

GpuKey = tuple[str, int]
_PUNCTUATION = str.maketrans("_.-", "000")  #: punctuation that a device's name may have


class NearNic(NamedTuple):
    """A port of an RDMA device, as seen from a GPU."""

    nic: Nic
    port: RdmaPort
    link: str  #: one of LINKS


class GpuNics(NamedTuple):
    """The RDMA devices for a GPU."""

    nearest: tuple[NearNic, ...] = ()  #: all of the nearest devices, best first
    own: int = 0  #: how many of the nearest are this GPU's own part

    def best(self, number: int | None = None) -> tuple[NearNic, ...]:
        """Return the nearest devices, `number` of them; None: the GPU's own part."""
        return self.nearest[: self.own if number is None else number]


@lru_cache(maxsize=4)
def nics_of_gpus(topology: Topology) -> Mapping[GpuKey, GpuNics]:
    """Return the RDMA devices of every GPU; empty if the machine has no active port.

    Of ports with the nearest link, the fastest come first. GPUs that are equally near to the same
    ports begin at different ports, and no GPU takes more than its part.
    """
    ports = usable_ports(topology.nics)
    nearest: dict[GpuKey, Sequence[NearNic]] = {}
    alike: dict[tuple[RdmaPort, ...], list[Gpu]] = {}  # fastest nearest ports → GPUs
    for gpu in topology.gpus:
        by_link: dict[str, list[NearNic]] = {link: [] for link in LINKS}
        for nic, port in ports:
            link = topology.nearness(gpu, nic)
            by_link[link].append(NearNic(nic, port, link))
        near: list[NearNic] = []
        for link in LINKS:  # nearest first
            near = near or by_link[link]
        near.sort(key=_speed, reverse=True)
        fastest = tuple(other.port for other in near if other.port.gbps == near[0].port.gbps)
        nearest[gpu.key] = near
        alike.setdefault(fastest, []).append(gpu)
    nics = {}
    for fastest, gpus in alike.items():
        for gpu, place in zip(gpus, _places(gpus), strict=True):
            nics[gpu.key] = _divided(nearest[gpu.key], len(fastest), place, len(gpus))
    return nics


def _speed(nic: NearNic) -> int:
    return nic.port.gbps or 0


def verbs_ports(nics: Iterable[NearNic]) -> tuple[str, ...]:
    """Return the ports by the names of verbs libraries, mlx5_2:1, each once; Slingshot has none."""
    names: dict[str, None] = {}
    for _, port, _ in nics:
        # Other names would break a library's list, or a shell.
        is_plain = port.device.isascii() and port.device.translate(_PUNCTUATION).isalnum()
        if port.has_verbs and is_plain:
            names[f"{port.device}:{port.number}"] = None
    return tuple(names)


def usable_ports(nics: Sequence[Nic]) -> tuple[tuple[Nic, RdmaPort], ...]:
    """Return the active ports that carry a job's traffic, in the order of their PCI paths.

    Left out are: virtual functions of a device that is here, up or down; members of a bond that is
    a device itself; and ports slower than half the fastest, for management and storage.
    """
    physical = {nic.pci_bus_id for nic in nics}
    ports: list[tuple[Nic, RdmaPort]] = []
    for nic in sorted(nics, key=lambda nic: nic.pci_path or (nic.pci_bus_id,)):
        ports += [(nic, port) for port in nic.ports]
    bonds = {nic.bond for nic, port in ports if _is_bond(nic, port)}
    active = []
    for nic, port in ports:
        is_member = nic.bond in bonds and not _is_bond(nic, port)
        if port.is_active and nic.physical not in physical and not is_member:
            active.append((nic, port))
    fastest = max((port.gbps or 0 for _, port in active), default=0)
    return tuple(
        (nic, port) for nic, port in active if port.gbps is None or 2 * port.gbps >= fastest
    )


def _is_bond(nic: Nic, port: RdmaPort) -> bool:
    return nic.bond is not None and (port.netdev == nic.bond or "bond" in port.device)


def _places(gpus: Sequence[Gpu]) -> Iterator[int]:
    """Yield where GPUs begin: at their index, as in NCCL; if two collide, at their positions."""
    numbers = [gpu.index % len(gpus) for gpu in gpus]
    yield from numbers if len(set(numbers)) == len(gpus) else range(len(gpus))


def _divided(nearest: Sequence[NearNic], fastest: int, place: int, gpus: int) -> GpuNics:
    """Return the devices of the GPU at a position: its part of the fastest devices first."""
    if not nearest:
        return GpuNics()
    if fastest & (fastest - 1) == 0:  # a power of two: the order of the place's bits is reversed
        bits = fastest.bit_length() - 1
        reversed_place = 0
        for bit in range(bits):
            if place >> bit & 1:
                reversed_place |= 1 << (bits - 1 - bit)
        place = reversed_place
    start = place % fastest
    turned = (*nearest[start:fastest], *nearest[:start])
    return GpuNics((*turned, *nearest[fastest:]), own=-(-fastest // gpus))
