"""A daemon that a real containerd has registered, and the containers that containerd creates."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from affinityd.topology.model import Topology
from tests.e2e.kubernetes.cluster import CHROOT, SLEEPER, SOCKET, Cluster, Process
from tests.support.daemons import eventually
from tests.support.daemons import running as daemon_running
from tests.support.made_nodes import DRIVER, entering
from tests.support.paths import REPOSITORY
from tests.support.scanning_node import AskedNode, facts
from tests.support.shared_objects import environment
from tests.support.tiny import tiny

#: The page, and its commands that switch NRI on for the namespaces `training` and `serving`.
PAGE = (REPOSITORY / "docs/kubernetes-nri.md").read_text()
SWITCH_ON = PAGE[PAGE.index("printf 'AFFINITYD_NRI") : PAGE.index("systemctl restart")]
CHOSEN, OTHER = "training", "other"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
#: What the restricted Pod Security Standard asks for.
UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def make_namespaces(cluster: Cluster) -> None:
    for name in (CHOSEN, OTHER):
        metadata = {"name": name, "labels": RESTRICTED}
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        account = {"apiVersion": "v1", "kind": "ServiceAccount"}
        cluster.apply({**account, "metadata": {"name": "default", "namespace": name}})


@contextmanager
def serving(
    cluster: Cluster,
    folder: Path,
    *arguments: str,
    before: Sequence[str] = (),
    machine: Topology | None = None,
) -> Iterator[AskedNode]:
    """Run a daemon with the node's /run, by the command `before`; containerd has registered it."""
    (folder / "run").symlink_to(CHROOT / "run")
    (cluster.root / SOCKET).parent.mkdir(exist_ok=True)
    config = folder / "affinityd.conf"
    cluster.run(SWITCH_ON.replace("/etc/affinityd.conf", os.fspath(config)))
    settings = (f"--socket=/{SOCKET}", "--scan-interval=off", *arguments)
    env = {
        **environment(facts_of(machine) if machine else facts({}), folder),
        "AFFINITYD_CONFIG": os.fspath(config),
        "AFFINITYD_SOCKET": os.fspath(cluster.root / SOCKET),
    }
    words = [*cluster.mounts, *entering(machine or tiny(), folder), *before]
    with daemon_running(folder, *settings, env=env, before=words) as daemon:
        node = AskedNode(daemon, folder)
        eventually(lambda: node.samples("nri_connected")[""] == 1, "containerd knows the plugin")
        yield node


def facts_of(machine: Topology) -> str:
    """Return NVML's facts of a machine's GPUs."""
    lines = [f"driver {DRIVER}"]
    for gpu in machine.gpus:
        lines += ["gpu", f"uuid {gpu.uuid}", f"minor {gpu.minor}", f"pci 0000{gpu.pci_bus_id}"]
    return "\n".join([*lines, ""])


def container(name: str, *, gpus: int = 1, limit: str = "500m", **env: str) -> Mapping[str, Any]:
    amount = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    variables = [{"name": key, "value": it} for key, it in {"WHO": name, **env}.items()]
    return {
        **SLEEPER,
        "name": name,
        "env": variables,
        "resources": {"requests": {"cpu": "10m", **amount}, "limits": {"cpu": limit, **amount}},
        "securityContext": UNPRIVILEGED,
    }


def started(
    cluster: Cluster,
    name: str,
    *containers: Mapping[str, Any],
    namespace: str = CHOSEN,
    annotations: Mapping[str, str] | None = None,
    **labels: str,
) -> dict[str, Process]:
    about = {"namespace": namespace, "labels": labels, "annotations": annotations or {}}
    pids = cluster.start_pod(name, {"containers": containers}, **about)
    return {process.environment["WHO"]: process for process in map(Process, pids)}


def removed(cluster: Cluster) -> None:
    """Remove all pods, so that their GPUs are free again."""
    for namespace in (CHOSEN, OTHER):
        cluster.run(f"kubectl delete pods --all --now -n {namespace}")
