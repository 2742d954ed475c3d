"""A node whose kernel seems to have two NUMA nodes, each with a CPU and an AMD GPU.

AMD's driver has all of its facts in /sys, which a container can mount over; NVIDIA's has some in
/proc, over which a container cannot mount.
"""

import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.e2e.kubernetes.cluster import CHROOT
from tests.support.machines.sysfs_tree import write_tree
from tests.support.tiny import tiny

FOLDER = "/rig/machine"  #: the folder of the machine's files, on the node
_HERE = CHROOT / FOLDER.lstrip("/")
_KFD = _HERE / "sys/class/kfd/kfd"
DRM, MINOR = 226, 128  #: of /dev/dri/renderD128, kernel Documentation/admin-guide/devices.txt
GPU_ID = 4711  #: KFD's own number of GPU 0


def values() -> Mapping[str, Any]:
    """Write the machine's files; return the chart values with which the daemon sees them.

    The files are mounted over the kernel's: to the daemon the machine is live, not replayed.
    """
    shutil.rmtree(_HERE, ignore_errors=True)
    machine = tiny()
    gpus = tuple(
        replace(it, vendor="amd", uuid=uuid(it.index), render_minor=MINOR + it.index)
        for it in machine.gpus
    )
    write_tree(replace(machine, gpus=gpus), _HERE)
    for gpu in range(len(gpus)):
        (_KFD / f"topology/nodes/{gpu + 1}/gpu_id").write_text(f"{GPU_ID + gpu}\n")
        os.mknod(_device(gpu), stat.S_IFCHR, os.makedev(DRM, MINOR + gpu))
        _device(gpu).chmod(0o666)
    (_KFD / "proc").mkdir()
    seen = [it.name for it in (_HERE / "sys").iterdir()]
    return {
        "extraVolumes": [
            {"name": f"sys-{it}", "hostPath": {"path": f"{FOLDER}/sys/{it}"}} for it in seen
        ],
        "extraVolumeMounts": [
            {"name": f"sys-{it}", "mountPath": f"/sys/{it}", "readOnly": True} for it in seen
        ],
    }


def uuid(gpu: int) -> str:
    return f"GPU-{gpu + 1:016x}"  # a unique_id of 0 means that a GPU has none


def device_file(gpu: int) -> str:
    """Return the path of a GPU's device file on the node."""
    return f"{FOLDER}/{_device(gpu).name}"


def use(gpu: int, pid: int) -> None:
    """Make the driver say that a process holds memory of a GPU, from the next scan on."""
    held = _KFD / f"proc/{pid}/vram_{GPU_ID + gpu}"
    held.parent.mkdir()
    held.write_text(f"{2**30}\n")


def _device(gpu: int) -> Path:
    return _HERE / f"renderD{MINOR + gpu}"
