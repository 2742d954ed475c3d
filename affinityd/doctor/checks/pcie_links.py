"""Whether the PCIe links to the GPUs have all their lanes.

A GPU that idles lowers its link's speed, and NVIDIA says that of the width too (nvidia-smi(1),
"pcie.link.gen.gpucurrent", "pcie.link.width.current": "may be reduced when the GPU is not in use").
Data-center GPUs keep their lanes: lost ones are a warning, and a lower speed is only mentioned.

Sources: kernel Documentation/ABI/testing/sysfs-bus-pci (current_link_width, max_link_width, …),
drivers/pci/pci.c `pcie_bandwidth_available`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from affinityd.discovery.pci import DEVICES, is_pci_address
from affinityd.discovery.tree import Tree
from affinityd.discovery.values import read_number
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResult, CheckResults, NotApplicableError, named, ok, warn
from affinityd.grouping import grouped
from affinityd.topology.model import Gpu

#: The kernel's width of a missing link: it is down, or the device is on no link.
NO_WIDTH = {0, 255}


@dataclass(frozen=True)
class PcieLink:
    """A link, seen from the device at its lower end; None: unknown."""

    device: str
    port: str | None  #: the device at its upper end
    lanes: int  #: of the device: current_link_width
    max_lanes: int  #: of the device: max_link_width
    port_lanes: int | None  #: of the port: max_link_width
    speeds: str | None  #: current_link_speed, where that is below the max_link_speed of both ends


def pcie_link(facts: NodeFacts) -> CheckResults:
    """Judge whether the link of every GPU, and of every switch above it, has all its lanes."""
    users: dict[PcieLink, list[Gpu]] = {}  # the GPUs at and below a link's device
    for gpu in facts.topology.gpus:
        for link in _links(facts.tree, gpu):
            users.setdefault(link, []).append(gpu)
    if not users:
        raise NotApplicableError("no current_link_width of a GPU can be read")
    for link, gpus in users.items():
        if link.lanes < link.max_lanes:
            yield _narrow(link, gpus)
    slow = grouped((link for link in users if link.speeds), lambda link: link.speeds)
    idle = (
        f"; {named(gpu for link in its for gpu in users[link])} at {speeds}, as is usual while idle"
        for speeds, its in slow.items()
    )
    yield ok(f"every link of a GPU has all its lanes{''.join(idle)}")


def _narrow(link: PcieLink, gpus: list[Gpu]) -> CheckResult:
    own = [gpu for gpu in gpus if gpu.pci_bus_id == link.device]
    name = f"{named(own)} ({link.device})" if own else f"switch {link.device} above {named(gpus)}"
    if link.port_lanes is not None and link.port_lanes <= link.lanes:
        cause = f", as many as the port above it, {link.port}, has"
        remedy = f"put the card into a slot with {link.max_lanes} lanes, if the machine has one"
    else:
        cause = ""
        remedy = (
            "check again while the GPU works; then reseat card, riser and cable, and check "
            "the slot's bifurcation in the firmware"
        )
    return warn(f"{name}: link of {link.lanes} lanes of {link.max_lanes}{cause}", remedy, gpus)


def _links(tree: Tree, gpu: Gpu) -> Iterator[PcieLink]:
    """Yield the links between a GPU and the processor that tell their width, its own first.

    A switch is two devices on the way, its upstream port and a downstream one: no link is between
    those.
    """
    way = [part for part in gpu.pci_path if is_pci_address(part)][::-1] or [gpu.pci_bus_id]
    for device, port in zip(way[::2], [*way[1::2], None], strict=False):
        lanes = _width(tree, device, "current_link_width")
        max_lanes = _width(tree, device, "max_link_width")
        port_lanes = _width(tree, port, "max_link_width") if port else None
        if lanes is not None and max_lanes is not None:
            yield PcieLink(device, port, lanes, max_lanes, port_lanes, _speeds(tree, device, port))


def _width(tree: Tree, device: str, name: str) -> int | None:
    width = read_number(tree, f"{DEVICES}/{device}/{name}")
    return None if width in NO_WIDTH else width


def _speeds(tree: Tree, device: str, port: str | None) -> str | None:
    """Return `2.5 GT/s of 16` where a link is slower than its ends; None: it is not."""
    now = _speed(tree, device, "current_link_speed")
    ends = [_speed(tree, end, "max_link_speed") for end in (device, port) if end]
    top = min((speed for speed in ends if speed is not None), default=None)
    return f"{now:g} GT/s of {top:g}" if now is not None and top is not None and now < top else None


def _speed(tree: Tree, device: str, name: str) -> float | None:
    """Read `16.0 GT/s PCIe`; None for `Unknown`."""
    text = tree.read(f"{DEVICES}/{device}/{name}") or ""
    try:
        return float(text.partition(" ")[0])
    except ValueError:
        return None
