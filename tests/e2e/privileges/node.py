"""A node whose daemon has all that its features need, or lacks one item.

Two CPUs are each on a NUMA node; near the first CPU are three GPUs: NVIDIA's, by the tests' NVML,
AMD's, by files in place of KFD, and an NPU, whose device file has a memory device's number.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from affinityd.linux.protobuf import DATA, END_STREAM, STREAM, field, frame
from affinityd.topology.model import Topology
from tests.e2e.privileges.actors import USER, Actors
from tests.e2e.privileges.confined import Confinement
from tests.e2e.privileges.features import GPUS, NAMESPACE, USER_NAME, UUID, Node
from tests.support import privileges
from tests.support.daemons import free_port, spawn
from tests.support.machines.sysfs_tree import put, write_tree
from tests.support.made_nodes import DRIVER
from tests.support.nri import Runtime
from tests.support.paths import open_folder
from tests.support.servers import answering, serving
from tests.support.shared_objects import environment
from tests.support.tiny import NEAR, tiny

KFD_ID = 50432  #: KFD's own number of AMD's GPU


def machine() -> Topology:
    return replace(tiny(), gpus=GPUS)


def _facts(actors: Actors) -> str:
    lines = [f"driver {DRIVER}", "device /dev/nvidiactl", "gpu", f"uuid {UUID}", "minor 0"]
    lines += [f"pci 0000{GPUS[0].pci_bus_id}", f"node {NEAR}"]
    lines += [f"process compute {it} {2**20}" for it in (actors.job, actors.pod)]
    return "\n".join([*lines, ""])


def _write_files(folder: Path, actors: Actors) -> None:
    write_tree(machine(), folder / "machine")
    kfd = folder / "machine/sys/class/kfd/kfd"
    put(kfd / "topology/nodes/1/gpu_id", KFD_ID)
    put(kfd / f"proc/{actors.of_amd}/vram_{KFD_ID}", 2**20)
    put(folder / "machine/proc/driver/nvidia/version", f"NVRM version: {DRIVER}")
    (folder / "run/affinityd").mkdir(parents=True)
    (folder / "passwd").write_text(f"{USER_NAME}:x:{USER}:{USER}::/:/bin/sh\n")
    for name in ("root", "kubelet", "nri"):
        (folder / name).mkdir()


def _pods() -> bytes:
    gpu = field(2, field(1, "nvidia.com/gpu") + field(2, UUID))
    container = field(3, field(1, "main") + gpu)
    pods = field(1, field(1, "chat-0") + field(2, NAMESPACE) + container)
    message = bytes([0]) + len(pods).to_bytes(4, "big") + pods
    return frame(DATA, END_STREAM, STREAM, message)


def _places(folder: Path, dev: Path) -> Mapping[str, Path]:
    return {
        "/sys/devices/system/cpu": folder / "machine/sys/devices/system/cpu",
        "/sys/devices/system/node": folder / "machine/sys/devices/system/node",
        "/sys/bus/pci/devices": folder / "machine/sys/bus/pci/devices",
        "/sys/class/kfd": folder / "machine/sys/class/kfd",
        "/sys/fs/cgroup": Path("/sys/fs/cgroup"),
        "/etc/passwd": folder / "passwd",
        "/dev/nvidiactl": dev / "nvidiactl",
        "/dev/davinci0": dev / "davinci0",
        "/var/lib/kubelet/pod-resources": folder / "kubelet",
        "/run/nri": folder / "nri",
    }


@contextmanager
def confined(actors: Actors, kind: str = "", lacks: str = "", only: str = "") -> Iterator[Node]:
    """Run a daemon without one item of the table, or with only the needs of one feature."""
    features = privileges.FEATURES if not only else (only,)

    def needed(what: str) -> frozenset[str]:
        all_of = frozenset().union(*(privileges.needs(name, what) for name in features))
        return all_of - {lacks} if what == kind else all_of

    actors.rest()
    with open_folder() as folder, ExitStack() as stack:
        _write_files(folder, actors)
        port = free_port()
        stack.enter_context(serving(folder / "kubelet/kubelet.sock", answering(_pods())))
        runtime = Runtime(folder / "nri/nri.sock")
        stack.callback(runtime.end)
        daemon = spawn(
            folder / "run/affinityd",
            *("--scan-interval", "1"),
            env={
                "AFFINITYD_SOCKET": "/run/affinityd/affinityd.sock",
                "AFFINITYD_CONFIG": "/nonexistent",
                "AFFINITYD_POD_RESOURCES": "/var/lib/kubelet/pod-resources/kubelet.sock",
                "AFFINITYD_NRI": "/run/nri/nri.sock",
                "AFFINITYD_NRI_NAMESPACES": "training",
                "PYTHONDONTWRITEBYTECODE": "1",
                **environment(_facts(actors), folder),
            },
            listen=f"127.0.0.1:{port}",
            before=_confinement(folder, actors, needed).before(folder / "root"),
        )
        daemon.socket = folder / "run/affinityd/affinityd.sock"  # the path outside of the root
        try:
            yield Node(daemon, folder, actors, port, runtime)
        finally:
            daemon.process.kill()
            daemon.process.wait()


def _confinement(
    folder: Path, actors: Actors, needed: Callable[[str], Collection[str]]
) -> Confinement:
    places, reads = _places(folder, actors.dev), needed("reads")
    shown = {place: source for place, source in places.items() if place in reads}
    if "/sys/bus/pci/devices" in shown:
        for entry in (folder / "machine/sys/devices").glob("*:*"):
            shown[f"/sys/devices/{entry.name}"] = entry
    nvml = Path(environment(_facts(actors), folder)["LD_LIBRARY_PATH"])
    shown |= {os.fspath(it): it for it in (nvml, folder / "nvml.facts")}
    writes = {"/run/affinityd"} & set(needed("writes"))
    written = dict.fromkeys(writes, folder / "run/affinityd")
    missing = [path for path in privileges.items("reads") if path.startswith("/proc/")]
    hidden = [
        path.replace("PID", str(pid))
        for path in missing
        if path not in reads
        for pid in (actors.pids if "PID" in path else [0])
    ]
    return Confinement(
        capabilities=needed("capabilities"),
        refused=set(privileges.items("calls")) - set(needed("calls")),
        shown=shown,
        written=written,
        hidden=hidden,
        driver=folder / "machine/proc/driver" if "/proc/driver/nvidia" in reads else None,
        namespaces=set(privileges.items("namespaces")) - set(needed("namespaces")),
    )
