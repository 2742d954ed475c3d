"""The chart, installed by helm in a cluster of the tests."""

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.e2e.kubernetes import machine
from tests.e2e.kubernetes.cluster import AFFINITYD, IMAGE, NODE, Cluster
from tests.support.daemons import PATIENCE, eventually
from tests.support.tiny import Ended

CHART = "deploy/helm/affinityd"
LABEL = "nvidia.com/gpu.present=true"  #: one of the chart's `gpuNodeLabels`
PODS = "app.kubernetes.io/name=affinityd"


@dataclass(frozen=True)
class Chart:
    cluster: Cluster
    namespace: str = "affinityd"

    def helm(
        self, action: str, values: Mapping[str, Any], *options: str, chart: str = CHART
    ) -> None:
        """Install or upgrade the chart with these values, and wait until its daemon is ready."""
        words = ("--namespace", self.namespace, "--wait", "--values", "-", *options)
        script = f"helm {action} affinityd {chart} {' '.join(words)}"
        self.cluster.run(script, json.dumps(values))

    def uninstall(self) -> None:
        words = f"--namespace {self.namespace} --wait --ignore-not-found"
        self.cluster.run(f"helm uninstall affinityd {words}")

    def pods(self) -> list[Any]:
        """Return the daemons' pods, also those that are terminating."""
        pods: list[Any] = self.cluster.get("pods", "-n", self.namespace, "-l", PODS)["items"]
        return pods

    def pod(self) -> Any:  # noqa: ANN401 - a document
        """Return the daemon's pod in its current state."""
        (pod,) = (it for it in self.pods() if "deletionTimestamp" not in it["metadata"])
        return pod

    def shell(self, command: str) -> Ended:
        name = self.pod()["metadata"]["name"]
        return self.cluster.shell(f"kubectl -n {self.namespace} exec {name} -- {command}")

    def exec(self, command: str) -> str:
        """Return the output of a command in the daemon's container, whatever its status."""
        return self.shell(command).stdout

    def ask(self, path: str, port: int = 9465) -> str:
        url = f"http://{self.pod()['status']['podIP']}:{port}{path}"
        return self.cluster.run(f"curl -sS --fail-with-body '{url}'")


@contextmanager
def installed(
    cluster: Cluster, values: Mapping[str, Any] | None = None, namespace: str = "affinityd"
) -> Iterator[Chart]:
    """Install the chart with the image of the working tree, until the block ends."""
    chart = Chart(cluster, namespace)
    cluster.load_affinityd()
    cluster.run(f"kubectl label node {NODE} {LABEL} --overwrite")
    chart.helm("install", values or {}, "--create-namespace")
    try:
        yield chart
    finally:
        chart.uninstall()


# The rig has neither CoreDNS, for a Service's name, nor kube-proxy, for a Service's address.

DNS = "10.96.0.10"  #: kubelet's clusterDNS, in the rig
PORT = 9466


@contextmanager
def named(chart: Chart) -> Iterator[None]:
    """Make the Service's name resolve, and its address lead to the daemon's pod."""
    run = chart.cluster.run
    service = chart.cluster.get("service", "affinityd", "-n", chart.namespace)
    address, name = service["spec"]["clusterIP"], f"affinityd.{chart.namespace}"
    endpoint = _endpoint(chart)
    names = f"--host-record={name},{address}"
    if endpoint:
        names += f" --host-record=affinityd-metrics.{chart.namespace},{endpoint}"
    to = f"{endpoint or DNS}:{PORT}"  # nothing listens at the address of DNS
    rule = f"PREROUTING -d {address} -p tcp --dport {PORT} -j DNAT --to {to}"
    run(f"sysctl -qw net.ipv4.ip_forward=1; ip address add {DNS}/32 dev lo")
    run(f"iptables -t nat -A {rule}")
    resolver = (
        f"dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --user=root --no-hosts "
        f"--no-resolv --bind-interfaces --listen-address={DNS} {names}"
    )
    command = [*chart.cluster.network, *shlex.split(resolver)]
    with subprocess.Popen(command) as process:
        try:
            listens = f"ss -Hlun src {DNS}:53 | grep -q ."
            eventually(lambda: chart.cluster.shell(listens).status == 0, "the names are answered")
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)
            run(f"iptables -t nat -D {rule}; ip address del {DNS}/32 dev lo")


def _endpoint(chart: Chart) -> str:
    """Return the address to which kube-proxy would send the Service's traffic, or nothing."""
    label = "kubernetes.io/service-name=affinityd"
    (part,) = chart.cluster.get("endpointslices", "-n", chart.namespace, "-l", label)["items"]
    if not part.get("endpoints"):
        return ""
    (endpoint,) = part["endpoints"]
    (address,) = endpoint["addresses"]
    assert endpoint["conditions"]["ready"]
    return str(address)


# A job's pod as the page has it: an init container, and a program that /affinity/run starts.

SLEEPS = ("sleep", "100000")  #: a program that /affinity/run does not start
#: A program that prints its CPUs, and goes on running.
SAYS = "grep Cpus_allowed_list /proc/self/status; sleep 100000 & wait"
LOOKS = ("/affinity/run", "sh", "-c", SAYS)
HOLD = "until [ -e /affinity/go ]; do /bin/busybox sleep 0.1; done"


@dataclass(frozen=True)
class Job:
    """A job's pod, whose program has GPU 0."""

    cluster: Cluster
    name: str

    def start(self, command: Sequence[str] = LOOKS, *, held: bool = False) -> None:
        """Create the pod; `held`: the pod waits for `go` before its program starts."""
        mounts = [
            {"name": "affinity", "mountPath": "/affinity"},
            {"name": "affinityd", "mountPath": "/run/affinityd", "readOnly": True},
        ]
        image: Mapping[str, Any] = {"image": AFFINITYD[0], "volumeMounts": mounts}
        shell = ["/bin/busybox", "sh", "-c"]
        hold = {"name": "hold", **image, "image": IMAGE, "command": [*shell, HOLD]}
        app = {
            "name": "app",
            **image,
            "command": [*command],
            # A device plugin would give the pod this device file.
            "securityContext": {"privileged": True},
            "volumeMounts": [*mounts, {"name": "gpu", "mountPath": "/dev/dri/renderD128"}],
        }
        affinity = {"name": "affinity", **image, "args": ["init", "--to", "/affinity"]}
        spec = {
            "terminationGracePeriodSeconds": 0,
            "initContainers": [affinity, *([hold] if held else [])],
            "containers": [app],
            "volumes": [
                {"name": "affinity", "emptyDir": {}},
                _host("affinityd", "/run/affinityd", "DirectoryOrCreate"),
                _host("gpu", machine.device_file(0), "CharDevice"),
            ],
        }
        about = {"name": self.name, "namespace": "default"}
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})

    def wait_for(self, container: str) -> None:
        """Wait until one of the pod's containers is running, or has run."""

        def is_running() -> bool:
            status = self.cluster.get("pod", self.name)["status"]
            kinds = ("initContainerStatuses", "containerStatuses")
            parts = [part for kind in kinds for part in status.get(kind, ())]
            return any("waiting" not in it["state"] for it in parts if it["name"] == container)

        eventually(is_running, f"{container} of {self.name} runs")

    def go(self) -> None:
        self.cluster.run(f"kubectl exec {self.name} -c hold -- /bin/busybox touch /affinity/go")

    def log(self, container: str = "app") -> Sequence[str]:
        return self.cluster.run(f"kubectl logs {self.name} -c {container}").splitlines()

    def says(self) -> set[str]:
        """Return the lines that `run` and the program have printed, once the program runs."""
        self.wait_for("app")
        eventually(lambda: "Cpus_allowed_list" in "".join(self.log()), f"{self.name} has looked")
        return {*self.log()}

    @property
    def pids(self) -> list[int]:
        uid: str = self.cluster.get("pod", self.name)["metadata"]["uid"]
        return self.cluster.pids(uid)


def _host(name: str, path: str, kind: str) -> Mapping[str, Any]:
    return {"name": name, "hostPath": {"path": path, "type": kind}}
