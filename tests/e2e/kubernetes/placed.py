"""Pods of a cluster as the node sees them: their processes, cpusets and masks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from affinityd.cpuset import parse_list
from tests.e2e.containers import images
from tests.e2e.kubernetes import two_nodes
from tests.e2e.kubernetes.chart import Chart, installed
from tests.e2e.kubernetes.cluster import Cluster, Process, running
from tests.e2e.kubernetes.two_nodes import GPUS
from tests.support.daemons import PATIENCE, eventually
from tests.support.paths import REPOSITORY
from tests.support.tiny import CPUS

TOLD = {"AFFINITYD_CPULIST", "AFFINITYD_UNPINNED"}  #: a program that `run` started has one of these


@dataclass(frozen=True)
class Pod:
    cluster: Cluster
    namespace: str
    name: str

    @property
    def now(self) -> Any:  # noqa: ANN401 - a document
        return self.cluster.get("pod", self.name, "--namespace", self.namespace)

    def wait(self, path: str, value: str) -> None:
        field = f"--for=jsonpath='{{.status.{path}}}={value}'"
        words = f"kubectl wait pod {self.name} --namespace {self.namespace} {field}"
        ended = self.cluster.shell(f"{words} --timeout={PATIENCE:.0f}s")
        assert ended.status == 0, (ended.stderr, self.now["status"], self.log)

    @property
    def log(self) -> str:
        words = f"--namespace {self.namespace} {self.name} --all-containers"
        return self.cluster.shell(f"kubectl logs {words}").stdout

    def processes(self, number: int = 1) -> list[Process]:
        """Return the programs that `run` has started in the pod, once there are `number`."""
        self.wait("phase", "Running")
        uid = self.now["metadata"]["uid"]
        programs: list[Process] = []

        def are_there() -> bool:
            started = map(Process, self.cluster.pids(uid))
            programs[:] = [it for it in started if TOLD & it.environment.keys()]
            return len(programs) == number

        eventually(are_there, f"{self.name} has {number} programs")
        return programs


@contextmanager
def prepared(folder: Path) -> Iterator[Cluster]:
    """Run a cluster whose node has the chart's daemon, the examples' images and two NUMA nodes."""
    with running(folder) as cluster:
        two_nodes.mount(cluster)  # before the daemon: another test's machine may be there still
        with installed(cluster, two_nodes.VALUES):
            cluster.load(images.client("debian"), PYTORCH)
            yield cluster


def pods(cluster: Cluster, example: str) -> Iterator[dict[str, Any]]:
    """Yield the pods of an example, after its other objects are applied."""
    daemon: str = Chart(cluster).pod()["status"]["podIP"]
    for document in load_example(example, daemon):
        if document["kind"] == "Pod":
            yield document
        else:
            cluster.apply(document)


@contextmanager
def created(cluster: Cluster, manifest: Mapping[str, Any]) -> Iterator[Pod]:
    about = manifest["metadata"]
    pod = Pod(cluster, about.get("namespace", "default"), about["name"])
    cluster.apply(manifest)
    try:
        yield pod
    finally:
        cluster.run(
            f"kubectl delete pod {pod.name} --namespace {pod.namespace} --grace-period=1 --wait"
        )


def near(process: Process) -> str:
    """Return the CPU near the GPU that a process uses."""
    return str(CPUS[GPUS[process.environment["NVIDIA_VISIBLE_DEVICES"]]])


def check(process: Process) -> None:
    """Check that a process has near CPUs if its cpuset has any, and that its variables agree."""
    is_local = parse_list(near(process)) <= parse_list(process.cpuset)
    assert process.cpus == (near(process) if is_local else process.cpuset)
    assert process.environment["AFFINITYD_CPULIST"] == process.cpus
    assert process.environment["AFFINITYD_LOCALITY"] == ("local" if is_local else "remote")


# The manifests of deploy/examples, as a node of two CPUs and two GPUs can run them.

FOLDER = REPOSITORY / "deploy/examples"
#: On the node an image with python3, curl and taskset, without PyTorch, stands for this one.
PYTORCH = "docker.io/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime"
#: An amount in the examples → the amount on this node. Whole CPUs stay whole.
AMOUNTS: Mapping[object, object] = {
    "8": "1",
    "4": "500m",
    "32Gi": "256Mi",
    "16Gi": "128Mi",
}
#: Keeps a program running after it has printed where it runs.
STAYS = "; import sys, time; sys.stdout.flush(); time.sleep(1e5)"


def load_example(name: str, daemon: str) -> list[dict[str, Any]]:
    """Return an example's objects, adapted to the node; `daemon`: the address of the daemon's pod.

    Images, volumes, variables and commands are unchanged, except the address of the Service, which
    has no DNS here, and the rule that a pair runs on two nodes.
    """
    objects: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))
    for document in objects:
        if document["kind"] == "Pod":
            _fit(document["spec"], daemon)
    return objects


def _fit(spec: dict[str, Any], daemon: str) -> None:
    spec.pop("affinity", None)
    spec["hostAliases"] = [{"ip": daemon, "hostnames": ["affinityd.affinityd"]}]
    for container in (*spec["initContainers"], *spec["containers"]):
        for amounts in container["resources"].values():
            amounts.update({name: AMOUNTS.get(it, it) for name, it in amounts.items()})
    for container in spec["containers"]:
        container["args"][-1] += STAYS
