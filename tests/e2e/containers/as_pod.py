"""Manifests as `podman play kube` takes them: what kubelet would do is done here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.chart.rendering import Object
from tests.e2e.containers.podman import attempt, podman

#: What a scheduler, kubelet or the API server reads, and podman refuses or does otherwise.
NOT_PODMANS = {
    *("affinity", "nodeSelector", "tolerations", "priorityClassName", "runtimeClassName"),
    *("serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"),
    *("hostPID", "imagePullSecrets", "terminationGracePeriodSeconds"),
}
#: podman would publish the ports on this machine, and probe by a curl that the image has not.
NOT_OF_CONTAINERS = {"ports", "startupProbe", "livenessProbe", "readinessProbe"}


def as_pod(daemon_set: Object, *, node: str) -> Object:
    """Return the pod that a DaemonSet makes on a node, as podman starts it."""
    template = daemon_set["spec"]["template"]
    spec = {name: part for name, part in template["spec"].items() if name not in NOT_PODMANS}
    for kind in ("initContainers", "containers"):
        spec[kind] = [_container(it, node) for it in spec.get(kind, ())]
    about = {"name": daemon_set["metadata"]["name"], "labels": template["metadata"]["labels"]}
    spec["restartPolicy"] = "Never"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def _container(container: Object, node: str) -> dict[str, Any]:
    kept = {name: part for name, part in container.items() if name not in NOT_OF_CONTAINERS}
    kept["env"] = [_variable(it, node) for it in container.get("env", ())]
    kept["imagePullPolicy"] = "Never"  # it was built here
    return kept


def _variable(variable: Object, node: str) -> Object:
    field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
    return {"name": variable["name"], "value": node} if field == "spec.nodeName" else variable


@contextmanager
def played(pod: Object, folder: Path, network: str) -> Iterator[None]:
    """Run a pod for as long as the block takes."""
    manifest = folder / "pod.json"
    manifest.write_text(json.dumps(pod))
    try:
        podman("play", "kube", f"--network={network}", manifest)
        yield
    finally:
        attempt("pod", "rm", "--force", "--ignore", "--time=0", pod["metadata"]["name"])
