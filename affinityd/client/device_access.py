"""The GPUs that this process may open: what a container or a device cgroup gave it.

Found by access(2) on the device files: it honours the device cgroup and opens nothing. A file's
number is the device's minor, whatever the process calls the GPU.
"""

# ruff: noqa: PTH208 - pathlib costs more to import than Python to start

from __future__ import annotations

import os

#: What each vendor's driver makes.
DRIVERS = {"nvidia": "/dev/nvidiactl", "amd": "/dev/kfd", "huawei": "/dev/davinci_manager"}
AMD = "0x1002"  #: the PCI vendor, in /sys/class/drm/renderDN/device/vendor


def vendors() -> list[str]:
    """Return the vendors whose drivers are here."""
    return [vendor for vendor, path in DRIVERS.items() if os.path.exists(path)]  # noqa: PTH110


def granted_gpus(dev: str = "/dev", sys: str = "/sys") -> str | None:
    """Return the request's `granted`; None where there are no device files to tell it by.

    NVIDIA's /dev/nvidiaN, else AMD's /dev/dri/renderDN. With NVIDIA's files there and none of them
    to be opened it is "none"; AMD's may also be closed to a user that is in no group of theirs.
    """
    minors = _numbered(dev, "nvidia")
    if minors:
        mine = [minor for minor in minors if _may_open(f"{dev}/nvidia{minor}")]
        return ",".join(f"minor:{minor}" for minor in mine) or "none"
    renders = [
        f"drm:{minor}"
        for minor in _numbered(f"{dev}/dri", "renderD")
        if _may_open(f"{dev}/dri/renderD{minor}") and _is_amd(sys, minor)
    ]
    return ",".join(renders) or None


def _numbered(folder: str, prefix: str) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    numbers = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())


def _may_open(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _is_amd(sys: str, minor: int) -> bool:
    try:
        with open(f"{sys}/class/drm/renderD{minor}/device/vendor") as file:  # noqa: PTH123
            return file.read().strip() == AMD
    except OSError:
        return False
