"""The file of a measurement, which `affinityd measure --save` writes and the daemon reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import inf
from pathlib import Path

from affinityd.errors import OutputError
from affinityd.json_codec import dumps, loads
from affinityd.linux.files import EXECUTABLE, read_regular, write_whole
from affinityd.measure.document import TO_DEVICE, VERSION, Measurement
from affinityd.measure.ratios import ratios
from affinityd.topology.model import Topology

MAX_BYTES = 16 * 1024 * 1024


def save(found: Measurement, path: Path) -> None:
    """Write it atomically, readable by every user, with its folder. Raises OutputError."""
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            path.parent.chmod(EXECUTABLE)  # independent of the umask
        write_whole(path, f"{dumps(found)}\n".encode())
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None


def read(path: str) -> Measurement:
    """Read it back. Raises OSError; ValueError, one line."""
    found = loads(Measurement, read_regular(path, MAX_BYTES), os.path.basename(path))  # noqa: PTH119
    if found.version != VERSION:
        raise ValueError(f"{path} is of version {found.version}, not {VERSION}")
    return found


def gpu_ratios(
    path: str, topology: Topology
) -> tuple[Mapping[tuple[str, int], Mapping[int, float]], tuple[str, ...]]:
    """Return the ratios of host-to-device copies from pinned memory, and notices for people.

    They are by a GPU's key and the NUMA node of CPUs: near's bandwidth over that node's. A GPU that
    is not the measured one, by its PCI bus id and UUID, has none, and no node that is not here.
    Without a file there are neither; one that cannot be read is a notice.
    """
    try:
        found = read(path)
    except FileNotFoundError:
        return {}, ()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return {}, (f"{path} is not used: {why}",)
    there = {(it.pci_bus_id, it.uuid) for it in found.gpus}
    its = ratios(found.figures, found.gpus, TO_DEVICE)
    return {
        gpu.key: {
            node: ratio
            for node, ratio in its[gpu.pci_bus_id].items()
            if node in topology.nodes_with_cpus and 0 < ratio < inf
        }
        for gpu in topology.gpus
        if (gpu.pci_bus_id, gpu.uuid) in there and gpu.pci_bus_id in its
    }, ()
