"""A daemon that knows who asks: on this machine, as if it were a DGX A100.

Who asks is looked up on a live machine alone. So its `/sys/devices/system` is mounted over, in a
mount namespace of the daemon's own, and NVML, a real library, says which GPUs there are. Needs root
and gcc.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from affinityd.topology.model import Topology
from tests.support.daemons import Daemon
from tests.support.machines.facts import machine
from tests.support.made_nodes import DRIVER, running_on

GPUS = 8


@contextmanager
def live(folder: Path, *arguments: str) -> Iterator[Daemon]:
    """Run it, from its first plan on."""
    dgx = machine("dgx-a100")
    folder.mkdir()
    with running_on(dgx, folder, _facts(dgx), *arguments) as daemon:
        assert daemon.plan("gpus=0&mode=node")["allowed"]["source"] == "caller"
        yield daemon


def _facts(dgx: Topology) -> str:
    lines = [f"driver {DRIVER}"]
    for number, gpu in enumerate(dgx.gpus):
        lines += ["gpu", f"uuid GPU-{number}a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"]
        lines += [f"minor {number}", f"pci 0000{gpu.pci_bus_id.upper()}", "model NVIDIA A100"]
    return "\n".join([*lines, ""])


def resident(process: int) -> int:
    """Return a process's resident memory in bytes, proc_pid_status(5)."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def cpu_seconds(process: int) -> float:
    """Return the CPU time of a process's main thread, kernel Documentation/scheduler."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9
