"""Pods of a cluster as the node has them: their processes, cpusets and masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from affinityd.cpuset import CpuSet, parse_list
from tests.e2e.containers import images
from tests.e2e.kubernetes import examples, two_nodes
from tests.e2e.kubernetes.chart import Chart, installed
from tests.e2e.kubernetes.cluster import CPUSETS, Cluster, running
from tests.e2e.kubernetes.two_nodes import GPUS
from tests.support.daemons import PATIENCE, eventually
from tests.support.tiny import CPUS

TOLD = {"AFFINITYD_CPULIST", "AFFINITYD_UNPINNED"}  #: one of them is in a started program


@dataclass(frozen=True)
class Process:
    """A process of a container, seen from the node."""

    pid: int

    @property
    def cpus(self) -> CpuSet:
        """Where it may run."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (text,) = (line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:"))
        return parse_list(text)

    @property
    def cpuset(self) -> CpuSet:
        """What kubelet gave its container."""
        lines = Path(f"/proc/{self.pid}/cgroup").read_text().splitlines()
        (folder,) = (line.split(":")[2] for line in lines if ":cpuset:" in line)
        return parse_list(Path(f"{CPUSETS}{folder}/cpuset.cpus").read_text())

    @property
    def environment(self) -> Mapping[str, str]:
        entries = Path(f"/proc/{self.pid}/environ").read_text().rstrip("\0").split("\0")
        return {name: value for name, _, value in (entry.partition("=") for entry in entries)}

    @property
    def near(self) -> CpuSet:
        """The CPU near the GPU that it is to use: of its rank, where a launcher started it."""
        gpus = self.environment["NVIDIA_VISIBLE_DEVICES"].split(",")
        gpu = sorted(gpus, key=GPUS.__getitem__)[int(self.environment.get("LOCAL_RANK", "0"))]
        return frozenset({CPUS[GPUS[gpu]]})


@dataclass(frozen=True)
class Pod:
    """A pod that was created."""

    cluster: Cluster
    namespace: str
    name: str

    @property
    def now(self) -> Any:  # noqa: ANN401 - a document
        return self.cluster.get("pod", self.name, "--namespace", self.namespace)

    def wait(self, path: str, value: str) -> None:
        """Wait until a field of its status has a value."""
        field = f"--for=jsonpath='{{.status.{path}}}={value}'"
        words = f"kubectl wait pod {self.name} --namespace {self.namespace} {field}"
        ended = self.cluster.shell(f"{words} --timeout={PATIENCE:.0f}s")
        assert ended.status == 0, (ended.stderr, self.now["status"], self.log)

    @property
    def refusal(self) -> str:
        """Why kubelet has refused it, once it has."""
        self.wait("phase", "Failed")
        reason: str = self.now["status"]["reason"]
        return reason

    @property
    def log(self) -> str:
        """What its containers print, the init container first."""
        words = f"--namespace {self.namespace} {self.name} --all-containers"
        return self.cluster.shell(f"kubectl logs {words}").stdout

    def processes(self, number: int = 1) -> list[Process]:
        """Return the programs that `run` has started in it, once there are so many."""
        self.wait("phase", "Running")
        uid = self.now["metadata"]["uid"]
        found: list[Process] = []

        def are_there() -> bool:
            started = map(Process, self.cluster.pids(uid))
            found[:] = [it for it in started if TOLD & it.environment.keys()]
            return len(found) == number

        eventually(are_there, f"{self.name} has {number} programs")
        return found


@contextmanager
def prepared(folder: Path) -> Iterator[Cluster]:
    """Run a cluster whose node has the chart's daemon, the examples' images and two NUMA nodes."""
    with running(folder) as cluster:
        two_nodes.mount(cluster)  # before the daemon: another test's machine may be there still
        with installed(cluster, two_nodes.VALUES):
            cluster.load(images.client("debian"), examples.PYTORCH)
            yield cluster


def pods(cluster: Cluster, example: str) -> Iterator[dict[str, Any]]:
    """Yield the pods of an example, after its other objects are applied."""
    daemon: str = Chart(cluster).pod()["status"]["podIP"]
    for it in examples.load(example, daemon):
        if it["kind"] == "Pod":
            yield it
        else:
            cluster.apply(it)


@contextmanager
def created(cluster: Cluster, manifest: Mapping[str, Any]) -> Iterator[Pod]:
    """Create a pod; it is gone after the block."""
    about = manifest["metadata"]
    pod = Pod(cluster, about.get("namespace", "default"), about["name"])
    cluster.apply(manifest)
    try:
        yield pod
    finally:
        cluster.run(
            f"kubectl delete pod {pod.name} --namespace {pod.namespace} --grace-period=1 --wait"
        )


def check(process: Process) -> None:
    """Check that a process has near CPUs if its cpuset has any, and says so."""
    cpuset, near = process.cpuset, process.near
    said = process.environment
    assert process.cpus == (cpuset & near or cpuset)
    assert parse_list(said["AFFINITYD_CPULIST"]) == process.cpus
    assert said["AFFINITYD_LOCALITY"] == ("local" if cpuset & near else "remote")
