"""Writes the interfaces of adapters as a kernel shows them: RDMA devices, ports, bonds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from affinityd.topology.model import SLINGSHOT, Nic, RdmaPort


def write_interfaces(root: Path, nic: Nic) -> None:
    """Write the interfaces of an adapter whose PCI device is there."""
    home = root / f"sys/bus/pci/devices/{nic.pci_bus_id}"
    devices = {port.device: port for port in nic.ports}
    for name in nic.names:
        port = devices.get(name)
        is_slingshot = port is not None and port.link_layer == SLINGSHOT
        is_rdma = port is not None or "_" in name
        kind = "cxi" if is_slingshot else "infiniband" if is_rdma else "net"
        folder = home / kind / name
        folder.mkdir(parents=True)
        if port is not None:
            link(root / f"sys/class/{kind}/{name}", folder)
        if kind == "net" and nic.bond is not None:
            _write(root / f"sys/class/net/{nic.bond}/bonding/mode", "802.3ad 4")
            link(folder / "master", root / f"sys/class/net/{nic.bond}")
    for port in nic.ports:
        for path, text in files_of_port(port):
            _write(home / path, text)
        if port.link_layer == SLINGSHOT:
            link(home / f"cxi/{port.device}/device", home)
        else:
            number = port.device[len(port.device.rstrip("0123456789")) :]
            _write(home / f"infiniband_verbs/uverbs{number}/ibdev", port.device)
            link(home / f"infiniband/{port.device}/device", home)
    if nic.physical is not None:
        link(home / "physfn", home.parent / nic.physical)


def files_of_port(port: RdmaPort) -> Iterator[tuple[str, str]]:
    """Yield the files of a port below its PCI device, and their texts."""
    if port.link_layer == SLINGSHOT:
        yield "port/link", "up" if port.is_active else "down"
        if port.gbps is not None:
            yield "port/speed", f"BS_{port.gbps}G"
        return
    folder = f"infiniband/{port.device}/ports/{port.number}"
    yield f"{folder}/state", "4: ACTIVE" if port.is_active else "1: DOWN"
    if port.gbps is not None:
        yield f"{folder}/rate", f"{port.gbps} Gb/sec (4X NDR)"
    yield f"{folder}/link_layer", port.link_layer or "Unknown"
    if port.netdev is not None:
        yield f"{folder}/gid_attrs/ndevs/0", port.netdev


def link(place: Path, target: Path) -> None:
    if not place.is_symlink():
        place.parent.mkdir(parents=True, exist_ok=True)
        home = place.parent.resolve()
        place.symlink_to(os.path.relpath(target.resolve(), home))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
