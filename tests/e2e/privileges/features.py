"""For each feature of the daemon, a check that it works."""

import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from affinityd.errors import AffinityError
from affinityd.topology.document import read_node
from affinityd.topology.model import Gpu
from tests.e2e.privileges.actors import JOB, Actors
from tests.support.daemons import eventually, is_ready
from tests.support.nri import Runtime, created
from tests.support.scanning_node import AskedNode
from tests.support.tiny import BOTH, CPUS, NEAR

OK = 200  #: HTTP's
UUID = "GPU-8a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"
GPUS = (
    Gpu(0, "nvidia", "0000:e1:00.0", numa_node=0, minor=0),
    Gpu(0, "amd", "0000:e2:00.0", numa_node=0, render_minor=128),
    Gpu(0, "huawei", "0000:e3:00.0", numa_node=0),
)
NAMESPACE = "inference"  #: as kubelet names it
USER_NAME = "trainer"


@dataclass
class Node(AskedNode):
    actors: Actors
    port: int
    runtime: Runtime
    is_known: bool = False  #: whether the runtime knows the plugin

    def settle(self) -> None:
        eventually(lambda: is_ready(self.daemon), "the daemon is ready")
        eventually(lambda: self.daemon.get("/audit").status == OK, "it has scanned")
        self.wait_for_scans(1)

    def working(self) -> frozenset[str]:
        return frozenset(name for name, works in WORKS.items() if _is_true(works, self))

    def must_lose(self, lost: frozenset[str], item: str) -> None:
        """Check that the daemon has all but these features, and gives no wrong answer."""
        left = frozenset(WORKS) - lost
        with suppress(AssertionError):  # the next line says which features are missing
            eventually(lambda: self.working() == left, f"it has {', '.join(left)}")
        assert self.working() == left, f"without {item}: {sorted(self.working() ^ left)}"
        assert self.is_right()

    def is_right(self) -> bool:
        try:
            allowed = self.actors.plan(self.daemon.socket)["allowed"]
        except LookupError:  # a refusal
            return True
        answer = allowed["cpulist"], allowed["source"], allowed["within"]
        return answer in {(BOTH, "caller", BOTH), (BOTH, "caller", None), (BOTH, "node", None)}


def _is_true(works: Callable[[Node], bool], node: Node) -> bool:
    try:
        return works(node)
    except (LookupError, OSError, AssertionError, TypeError, ValueError, AffinityError):
        return False


def _audited(node: Node, pid: int) -> Any:  # noqa: ANN401 - a document
    (process,) = (it for it in node.audit()["processes"] if it["pid"] == pid)
    assert process["masks"]
    (gpu,) = (it for it in node.audit()["gpus"] if it["vendor"] == process["vendor"])
    assert gpu["unknown"] is None
    return process


def _knows(node: Node) -> bool:
    allowed = node.actors.plan(node.daemon.socket)["allowed"]
    return (allowed["source"], allowed["within"]) == ("caller", BOTH)


def _plans(node: Node) -> bool:
    gpus = ",".join(gpu.pci_bus_id for gpu in GPUS)
    ranks = node.daemon.plan(f"gpus={gpus}&mode=node&cpuset={BOTH}")["ranks"]
    return [(it["cpulist"], it["locality"]) for it in ranks] == [(NEAR, "local")] * len(GPUS)


def _has_gpus(node: Node) -> bool:
    gpus = node.daemon.get("/topology").json["topology"]["gpus"]
    return {it["vendor"] for it in gpus} >= {"amd", "huawei"}


def _is_published(node: Node) -> bool:
    published = read_node(node.daemon.socket.with_name("node.json"))
    return published.topology.online == frozenset(CPUS)


def _is_answered_over_tcp(node: Node) -> bool:
    target = f"http://127.0.0.1:{node.port}/healthz"
    asked = subprocess.run(["curl", "-sf", "-m", "5", target], capture_output=True, check=False)
    return asked.returncode == 0


def _is_known(memory: Any) -> bool:  # noqa: ANN401 - a document
    placed: dict[str, int] = memory["placed_bytes"]
    return placed["unknown"] == 0 and sum(placed.values()) > 0


def _adjusts(node: Node) -> bool:
    if not node.is_known and node.runtime.has_caller():
        node.runtime.accept()
        node.is_known = True
    given = f"NVIDIA_VISIBLE_DEVICES={UUID}"  # by the device plugin
    asked = created(devices=[], env=[given], shares=300, cgroup="/")  # asks for 0.3 CPUs
    return node.is_known and node.runtime.create(asked).cpus == NEAR


#: Feature → a check that it works.
WORKS: Mapping[str, Callable[[Node], bool]] = {
    "a socket": lambda node: node.daemon.get("/healthz").status == 200,
    "TCP": _is_answered_over_tcp,
    "metrics": lambda node: node.samples("build_info", "version") != {},
    "CPUs": lambda node: node.daemon.get("/readyz").status == 200,
    "GPUs": _has_gpus,
    "plans": _plans,
    "callers": _knows,
    "node.json": _is_published,
    "NVML": lambda node: UUID in node.daemon.get("/topology").text,
    "the audit of NVIDIA GPUs": lambda node: bool(_audited(node, node.actors.job)),
    "the audit of AMD GPUs": lambda node: bool(_audited(node, node.actors.of_amd)),
    "the audit of device files": lambda node: bool(_audited(node, node.actors.of_npu)),
    "memory": lambda node: _is_known(_audited(node, node.actors.job)["host_memory"]),
    "jobs": lambda node: _audited(node, node.actors.job)["job"]["id"] == str(JOB),
    "names of users": lambda node: _audited(node, node.actors.job)["user"] == USER_NAME,
    "names of pods": lambda node: _audited(node, node.actors.pod)["pod"]["namespace"] == NAMESPACE,
    "containers by NRI": _adjusts,
}
