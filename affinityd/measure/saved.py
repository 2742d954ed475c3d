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
    return _parsed(path, read_regular(path, MAX_BYTES))


def _parsed(path: str, content: bytes) -> Measurement:
    found = loads(Measurement, content, os.path.basename(path))  # noqa: PTH119
    if found.version != VERSION:
        raise ValueError(f"{path} is of version {found.version}, not {VERSION}")
    return found


class GpuRatios:
    """The ratios of a file, which is read again only when its inode, size or time has changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._found: Measurement | None = None
        self._notices: tuple[str, ...] = ()

    def __call__(
        self, topology: Topology
    ) -> tuple[Mapping[tuple[str, int], Mapping[int, float]], tuple[str, ...]]:
        """Return the ratios of host-to-device copies from pinned memory, and notices for people.

        They are by a GPU's key and the NUMA node of CPUs: near's bandwidth over that node's. A GPU
        that is not the measured one, by its PCI bus id and UUID, has none, and no node that is not
        here. Without a file there are neither; one that cannot be read is a notice.
        """
        try:
            self._look()
        except FileNotFoundError:
            self._seen, self._found, self._notices = None, None, ()
        except OSError as error:  # it is tried again: its file may be as it was
            self._seen = None
            self._leave(error.strerror)
        except ValueError as error:
            self._leave(error)
        return _of_gpus(self._found, topology) if self._found else {}, self._notices

    def _leave(self, why: object) -> None:
        self._found, self._notices = None, (f"{self._path} is not used: {why}",)

    def _look(self) -> None:
        """Read the file if it has changed. Raises OSError, ValueError."""
        status = os.stat(self._path)  # noqa: PTH116 - the path is a str
        now = status.st_ino, status.st_size, status.st_mtime_ns
        if now != self._seen:
            content = read_regular(self._path, MAX_BYTES)
            self._seen = now
            self._found, self._notices = _parsed(self._path, content), ()


def _of_gpus(
    found: Measurement, topology: Topology
) -> Mapping[tuple[str, int], Mapping[int, float]]:
    there = {(it.pci_bus_id, it.uuid) for it in found.gpus}
    its = ratios(found.figures, found.gpus, TO_DEVICE)
    here = {
        gpu.key: {
            node: ratio
            for node, ratio in its[gpu.pci_bus_id].items()
            if node in topology.nodes_with_cpus and 0 < ratio < inf
        }
        for gpu in topology.gpus
        if (gpu.pci_bus_id, gpu.uuid) in there and gpu.pci_bus_id in its
    }
    return {key: by_node for key, by_node in here.items() if by_node}
