"""The GPUs of a container that is being created, as a plan's `granted` names them. Pure.

Its device files come first: they say what it may open. CDI names and the variables of container
runtimes say it where the files come later. `all`, a folder and the like prove nothing.
Sources: NVIDIA Container Toolkit, "NVIDIA_VISIBLE_DEVICES"; its k8s-device-plugin,
"deviceListStrategy"; Ascend Docker Runtime, "ASCEND_VISIBLE_DEVICES"; the names of DRA drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from affinityd.kubernetes.nri.messages import Container

NVIDIA_VISIBLE, ASCEND_VISIBLE = "NVIDIA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"
CDI_ANNOTATION = "cdi.k8s.io/"  #: begins the annotations that name devices of CDI

#: Device files, the first kind that a container has: NVIDIA's driver brings render nodes, too.
FILES = (
    (re.compile(r"/dev/nvidia([0-9]+)", re.ASCII), "minor:"),
    (re.compile(r"/dev/dri/renderD([0-9]+)", re.ASCII), "drm:"),
    (re.compile(r"/dev/davinci([0-9]+)", re.ASCII), ""),
)
CDI = (
    (re.compile(r"k8s\.gpu\.[a-z.]+/claim=.*-gpu-([0-9]+)", re.ASCII), "minor:"),
    (re.compile(r"[a-z0-9.-]+/(?:gpu|mig|npu)=([0-9]+|GPU-.+|MIG-.+)", re.ASCII), ""),
)
#: Folder of the mounts by which NVIDIA's device plugin may name devices.
BY_MOUNT = re.compile(r"/(?:var/)?run/nvidia-container-devices/((?:GPU|MIG)-[^/]+)")
INDICES = re.compile(r"[0-9]+(?:,[0-9]+)*", re.ASCII)
LISTED = re.compile(r"(?:[0-9]+|GPU-[^,]+|MIG-[^,]+)(?:,|$)", re.ASCII)


def granted(container: Container) -> str:
    """Return the container's GPUs, separated by commas; "" where it has none, or none are known."""
    ways = (*_by_files(container), _by_cdi(container), *_by_variables(container))
    return next(filter(None, (",".join(names) for names in ways)), "")


def listed(container: Container) -> str | None:
    """Return the value of NVIDIA's variable; None: it proves nothing."""
    value = container.environment.get(NVIDIA_VISIBLE, "")
    return value if LISTED.match(value) else None


def _by_files(container: Container) -> Iterator[list[str]]:
    for pattern, kind in FILES:
        yield [f"{kind}{it[1]}" for name in container.devices if (it := pattern.fullmatch(name))]


def _by_cdi(container: Container) -> list[str]:
    annotations = container.annotations.items()
    texts = (text for name, text in annotations if name.startswith(CDI_ANNOTATION))
    names = {*container.cdi_devices, *(name for text in texts for name in text.split(","))}
    return [
        f"{kind}{found[1]}"
        for name in sorted(names)
        for pattern, kind in CDI
        if (found := pattern.fullmatch(name))
    ]


def _by_variables(container: Container) -> Iterator[list[str]]:
    yield [found[1] for it in container.mounts if (found := BY_MOUNT.fullmatch(it))]
    yield (listed(container) or "").split(",")
    ascend = container.environment.get(ASCEND_VISIBLE, "")
    yield ascend.split(",") if INDICES.fullmatch(ascend) else []
