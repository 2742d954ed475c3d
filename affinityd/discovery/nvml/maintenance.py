"""Maintenance of NVIDIA's driver: NVML must not be called meanwhile, since NVML uses the driver.

A module in use is not unloaded, and a GPU in use is neither reset nor given another MIG mode.
Sources: NVIDIA/mig-parted deployments/systemd/{hooks.sh,service.sh,README.md} and
deployments/gpu-operator/reconfigure-mig.sh (they stop the driver's clients by name, then start
nvidia-mig-parted apply, which resets GPUs), NVIDIA/k8s-driver-manager cmd/driver-manager/main.go
(uninstall_driver evicts pods, for minutes, then calls delete_module(2) itself), kernel
Documentation/ABI/testing/sysfs-module (initstate), proc_pid_comm(5).
"""

from __future__ import annotations

import os
import re

from affinityd.linux.files import content, listed, text
from affinityd.linux.processes import PROC, ROOT, uid_of
from affinityd.text import quote

#: A file that an operator's hook makes before it changes the driver, and removes afterwards.
#: Its first line names the hook.
HOLD = "/run/affinityd/hold"

_any = re.compile(b"").search
_nvidias_module = re.compile(b"nvidia").search
#: Words of nvidia-smi that reset a GPU, remove it, or change MIG modes or instances.
_changes = re.compile(
    rb"\0(?:-r|--gpu-reset|-mig|--multi-instance-gpu|-[cd][gc]i|drain)(?:[\0=]|$)"
).search

#: The first 15 bytes of a program's name → words of its command line that change a driver or a GPU.
#: Not nvidia-mig-manager, nvidia-driver and nvidia-persistenced: they always run.
WORKERS = {
    b"nvidia-mig-part": _any,
    b"nvidia-installe": _any,
    b"nvidia-uninstal": _any,
    b"driver-manager": re.compile(b"uninstall_driver").search,
    b"nvidia-smi": _changes,
    b"modprobe": _nvidias_module,
    b"rmmod": _nvidias_module,
    b"insmod": _nvidias_module,
}


class DriverMaintenance:
    """Tells whether the driver is being changed."""

    def __init__(self, sys: str = "/sys", hold: str = HOLD, proc: str = PROC) -> None:
        self._sys = sys
        self._hold = hold
        self._proc = proc
        self._seen_once: set[str] = set()
        self._seen_twice: set[str] = set()
        self._working: set[str] = set()

    def reason(self) -> str | None:
        """Return why NVML must not be called now, and what ends that; None: NVML may be called."""
        state = text(f"{self._sys}/module/nvidia/initstate")
        if state not in {"", "live"}:  # "": the module is not loaded, or built into the kernel
            return f"NVIDIA's driver is {state}: it is being replaced"
        if os.path.lexists(self._hold):
            name = text(self._hold).partition("\n")[0].strip()
            by = f" by {quote(name)}" if name else ""
            return f"NVML calls are on hold{by}, until {self._hold} is removed"
        # A process is read twice only, since reading all of them each time would take most of a
        # scan: when it is new, and the next time, as it may have called execve(2) in between. A
        # process that becomes such a program later, without fork(2), is missed.
        there = {name for name in listed(self._proc) if name.isdigit()}
        unread = there - self._seen_twice
        self._seen_twice = there & self._seen_once
        self._seen_once = there
        self._working = {pid for pid in unread | self._working if _works(pid, self._proc)}
        if not self._working:
            return None
        name = text(f"{self._proc}/{min(self._working, key=int)}/comm") or "a program"
        return f"{name} works on NVIDIA's driver; NVML is asked again when that program has ended"


def _works(pid: str, proc: str) -> bool:
    """Whether a process of root changes a driver; other users may give a program any name."""
    changes = WORKERS.get((content(f"{proc}/{pid}/comm") or b"").rstrip(b"\n"))
    # Check the uid first: another user's command line may be on a file system that hangs.
    if changes is None or uid_of(int(pid), proc) != ROOT:
        return False
    words = content(f"{proc}/{pid}/cmdline")  # empty for a zombie
    return bool(words and changes(words))
