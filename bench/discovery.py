"""One discovery of a 256-CPU DGX A100 against lstopo's, on the same tree, in one run.

    python -m bench.discovery [--runs N]

Prints medians in milliseconds and the ratio. lstopo is Debian's hwloc-nox; its time includes
the start of its process, which each caller pays for.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from affinityd.discovery import discover, open_tree
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import BRIDGE_CLASS, put, write_tree

LSTOPO = "lstopo-no-graphics"

#: Where a tree is read from memory, as sysfs is.
MEMORY = "/dev/shm"  # noqa: S108 - a folder of its own is made in it

#: Host bridges and functions that a machine of this size has besides GPUs and adapters.
OTHER_DEVICES = 200


@dataclass(frozen=True)
class Times:
    """Medians in seconds."""

    discovery: float
    lstopo: float

    @property
    def ratio(self) -> float:
        """Discovery's time as a part of lstopo's."""
        return self.discovery / self.lstopo


def measure(runs: int) -> Times:
    """Time both, in turns, on one tree. Raises FileNotFoundError without lstopo."""
    root = Path(tempfile.mkdtemp(prefix="affinityd-bench-", dir=MEMORY))
    try:
        write_dgx(root)
        discover(open_tree(str(root)), None)  # the first time pays for imports and caches
        pairs = [(_time_discovery(root), _time_lstopo(root)) for _ in range(runs)]
    finally:
        shutil.rmtree(root)
    return Times(*(median(times) for times in zip(*pairs, strict=True)))


def write_dgx(root: Path) -> None:
    """Write a DGX A100 with all that stands on its bus."""
    write_tree(machine("dgx-a100"), root)
    for number in range(OTHER_DEVICES):
        address = f"0000:{0xC0 + number // 32:02x}:{number % 32:02x}.0"
        folder = root / "sys/bus/pci/devices" / address
        put(folder / "class", BRIDGE_CLASS)
        put(folder / "vendor", "0x1022")
        put(folder / "device", "0x1480")
        put(folder / "numa_node", number % 8)


def lstopo_environment(root: Path) -> dict[str, str]:
    """Return the environment in which lstopo reads a tree, and nothing but the tree."""
    tree = {"HWLOC_FSROOT": str(root), "HWLOC_THISSYSTEM": "0", "HWLOC_COMPONENTS": "-x86"}
    return {**os.environ, **tree}


def _time_discovery(root: Path) -> float:
    tree = open_tree(str(root))
    start = perf_counter()
    discover(tree, None)
    return perf_counter() - start


def _time_lstopo(root: Path) -> float:
    environment = lstopo_environment(root)
    start = perf_counter()
    subprocess.run([LSTOPO, "--of", "xml"], env=environment, check=True, capture_output=True)
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    times = measure(parser.parse_args().runs)
    print(f"discovery {times.discovery * 1e3:.1f} ms")
    print(f"lstopo    {times.lstopo * 1e3:.1f} ms")
    print(f"ratio     {times.ratio:.2f}")


if __name__ == "__main__":
    main()
