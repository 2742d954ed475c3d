"""Discovery beside lstopo on one tree, in turns.

    python -m bench.discovery [--rounds N]

The tree is of a DGX A100. lstopo is Debian's hwloc-nox; its time includes the start of its process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from affinityd.discovery import discover, open_tree
from bench.ratio import Ratio
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import BRIDGE_CLASS, put, write_tree

LSTOPO = "lstopo-no-graphics"

#: Where a tree is read from memory, as sysfs is.
MEMORY = "/dev/shm"  # noqa: S108 - a folder of its own is made in it

#: Host bridges and functions that a machine of this size has besides GPUs and adapters.
OTHER_DEVICES = 200


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


def time_discovery(root: Path) -> float:
    tree = open_tree(str(root))
    start = perf_counter()
    discover(tree, None)
    return perf_counter() - start


def _time_lstopo(root: Path) -> float:
    environment = lstopo_environment(root)
    start = perf_counter()
    subprocess.run([LSTOPO, "--of", "xml"], env=environment, check=True, capture_output=True)
    return perf_counter() - start


def compared(rounds: int) -> Sequence[float]:
    """Return the time of discovery by lstopo's, on one tree, in turns.

    Raises FileNotFoundError without lstopo.
    """
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-", dir=MEMORY) as name:
        root = Path(name)
        write_dgx(root)
        time_discovery(root)  # the first time pays for imports and caches
        return [time_discovery(root) / _time_lstopo(root) for _ in range(rounds)]


def measure(rounds: int = 11) -> tuple[Ratio, ...]:
    """Return the row."""
    return (Ratio("discovery, 256 CPUs", "lstopo", "≤ 0.25", compared(rounds)),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    for ratio in measure(parser.parse_args().rounds):
        print(ratio)


if __name__ == "__main__":
    main()
