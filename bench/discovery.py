"""Discovery, and `affinityd topology` as a whole process, against lstopo on one tree, in turns.

    python -m bench.discovery [--rounds N]

The trees are of a DGX A100 and of a machine of 1,024 CPUs. lstopo is Debian's hwloc-nox; its time
includes the start of its process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from affinityd.discovery import discover, open_tree
from bench import planning
from bench.ratio import Ratio
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import BRIDGE_CLASS, put, write_tree

LSTOPO = "lstopo-no-graphics"
OURS = (sys.executable, Path(__file__).parents[1] / "bin/affinityd", "topology", "--format", "json")

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


def _time_command(root: Path) -> float:
    start = perf_counter()
    subprocess.run([*OURS, "--root", root], check=True, capture_output=True)
    return perf_counter() - start


def compared(
    rounds: int, ours: Callable[[Path], float], write: Callable[[Path], object] = write_dgx
) -> Sequence[float]:
    """Return our time by lstopo's, on one tree, in turns.

    Raises FileNotFoundError without lstopo.
    """
    root = Path(tempfile.mkdtemp(prefix="affinityd-bench-", dir=MEMORY))
    try:
        write(root)
        ours(root)  # the first time pays for imports and caches
        return [ours(root) / _time_lstopo(root) for _ in range(rounds)]
    finally:
        shutil.rmtree(root)


def measure(rounds: int = 11) -> tuple[Ratio, ...]:
    """Return the whole process's time, and that of discovery alone, by lstopo's process."""
    large = planning.machine().topology

    def write_large(root: Path) -> None:
        write_tree(large, root)

    return (
        Ratio("discovery, 256 CPUs", "lstopo", "≤ 0.25", compared(rounds, time_discovery)),
        Ratio("affinityd topology, 256 CPUs", "lstopo", "≤ 0.25", compared(rounds, _time_command)),
        Ratio(
            f"affinityd topology, {planning.CPUS} CPUs",
            "lstopo",
            "≤ 0.1",
            compared(rounds, _time_command, write_large),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    for ratio in measure(parser.parse_args().rounds):
        print(ratio)


if __name__ == "__main__":
    main()
