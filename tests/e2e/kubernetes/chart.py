"""The chart, installed by helm in a cluster of the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.e2e.kubernetes.cluster import NODE, Cluster

CHART = "deploy/helm/affinityd"
LABEL = "nvidia.com/gpu.present=true"  #: of `gpuNodeLabels`
PODS = "app.kubernetes.io/name=affinityd"


@dataclass(frozen=True)
class Chart:
    """The chart in a cluster, by its default names."""

    cluster: Cluster
    namespace: str = "affinityd"

    def helm(
        self, action: str, values: Mapping[str, Any], *options: str, chart: str = CHART
    ) -> None:
        """Install or upgrade it with these values, and wait until its daemon is ready."""
        words = ("--namespace", self.namespace, "--wait", "--values", "-", *options)
        script = f"helm {action} affinityd {chart} {' '.join(words)}"
        self.cluster.run(script, json.dumps(values))

    def uninstall(self) -> None:
        """Remove it, if it is there."""
        words = f"--namespace {self.namespace} --wait --ignore-not-found"
        self.cluster.run(f"helm uninstall affinityd {words}")

    def pods(self) -> list[Any]:
        """Return the daemons' pods, those that are about to end too."""
        found: list[Any] = self.cluster.get("pods", "-n", self.namespace, "-l", PODS)["items"]
        return found

    def pod(self) -> Any:  # noqa: ANN401 - a document
        """Return the daemon's pod, as it is now."""
        (pod,) = (it for it in self.pods() if "deletionTimestamp" not in it["metadata"])
        return pod

    def exec(self, command: str) -> str:
        """Return what a command prints in its daemon's container, whatever its status."""
        name = self.pod()["metadata"]["name"]
        script = f"kubectl -n {self.namespace} exec {name} -- {command}"
        return self.cluster.shell(script).stdout

    def ask(self, path: str, port: int = 9465) -> str:
        """Ask its daemon, by the address of its pod."""
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
