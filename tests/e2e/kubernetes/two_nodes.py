"""A cluster whose node seems to have two NUMA nodes, a CPU and a GPU on each.

kubelet finds NUMA nodes in /sys, so its Topology Manager sees both in the files that are mounted
there. The CPUs are this machine's, and the cpusets are real.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import yaml

from affinityd.topology.model import Topology
from tests.e2e.kubernetes.cluster import CHROOT, KUBELET, NODE, Cluster, plugin
from tests.support.daemons import eventually
from tests.support.machines.sysfs_tree import write_tree
from tests.support.tiny import tiny

NODES = "sys/devices/system/node"
ALL_CPUS = "sys/devices/system/cpu"
MACHINE = "/rig/machine"  #: the files of the machine, on the node
#: GPU → its NUMA node; tests.support.tiny.CPUS has the node's CPU at the same place.
GPUS = {f"GPU-{gpu}a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001": gpu for gpu in range(2)}
SOONER = {"nodeStatusUpdateFrequency": "1s"}  #: otherwise the node has its GPUs only after 10 s
#: Chart values with which the daemon sees the machine.
VALUES: Mapping[str, Any] = {
    "extraArgs": [f"--root={MACHINE}"],
    "extraVolumes": [{"name": "machine", "hostPath": {"path": MACHINE}}],
    "extraVolumeMounts": [{"name": "machine", "mountPath": MACHINE, "readOnly": True}],
}


def mount(cluster: Cluster) -> None:
    """Mount a /sys with two NUMA nodes, for a kubelet that starts later."""
    machine = tiny()
    named = zip(machine.gpus, GPUS, strict=True)
    gpus = tuple(replace(gpu, uuid=it) for gpu, it in named)
    mount_machine(cluster, replace(machine, gpus=gpus), NODES)


def mount_machine(cluster: Cluster, machine: Topology, *folders: str) -> None:
    """Mount a machine's files over these folders of the node's /sys."""
    tree = CHROOT / MACHINE.lstrip("/")
    shutil.rmtree(tree, ignore_errors=True)
    write_tree(machine, tree)
    for core in machine.cores:
        for cpu in core.cpus:
            (tree / NODES / f"node{core.node}/cpu{cpu}").symlink_to(f"../../cpu/cpu{cpu}")
    for folder in folders:
        cluster.rig("run", "mount", "--bind", f"{MACHINE}/{folder}", f"/{folder}")


@contextmanager
def kubelet(
    cluster: Cluster, *, cpu: str = "static", topology: str = "none", gpus: Mapping[str, int] = GPUS
) -> Iterator[None]:
    """Restart kubelet with these policies, and announce the GPUs to it.

    The static policy keeps the first CPU for the pool.
    """
    reserved = {"cpu": "100m"} if cpu == "static" else {}
    policies = {"cpuManagerPolicy": cpu, "topologyManagerPolicy": topology}
    restart(cluster, {**policies, "systemReserved": reserved, "reservedSystemCPUs": ""})
    with plugin(cluster, gpus, first=[*GPUS].index(next(iter(gpus)))):
        yield


def restart(cluster: Cluster, settings: Mapping[str, object]) -> None:
    """Restart kubelet without its checkpoints; `settings` replace fields of its configuration."""
    file, command = CHROOT / "rig/kubelet.yaml", cluster.stop("kubelet")
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **SOONER, **settings}))
    gone = {amount: {"nvidia.com/gpu": None} for amount in ("capacity", "allocatable")}
    patch = json.dumps({"status": gone})  # removes GPUs of an earlier plugin: kubelet keeps them
    cluster.run(f"kubectl patch node {NODE} --subresource status --type merge --patch '{patch}'")
    plugins = KUBELET / "device-plugins"
    states = (KUBELET / f"{name}_manager_state" for name in ("cpu", "dra"))
    for path in (*states, *plugins.iterdir()):
        path.unlink(missing_ok=True)
    cluster.start("kubelet", command)
    eventually((plugins / "kubelet.sock").exists, "kubelet listens to device plugins")
