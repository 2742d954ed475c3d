"""A DaemonSet as the pod that `podman play kube` takes: what kubelet would do is done here."""

from __future__ import annotations

from typing import Any

from tests.e2e.chart.rendering import Object

#: What a scheduler, kubelet or the API server reads, and podman refuses or does otherwise.
NOT_PODMANS = {
    *("affinity", "nodeSelector", "tolerations", "priorityClassName", "runtimeClassName"),
    *("serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"),
    *("hostPID", "imagePullSecrets", "terminationGracePeriodSeconds"),
}
#: podman would publish the ports on this machine, and probe by a curl that the image has not.
NOT_OF_CONTAINERS = {"ports", "startupProbe", "livenessProbe", "readinessProbe"}


def as_pod(daemon_set: Object, *, node: str) -> dict[str, Any]:
    """Return the pod that a DaemonSet makes on a node, as podman starts it."""
    template = daemon_set["spec"]["template"]
    spec = {name: part for name, part in template["spec"].items() if name not in NOT_PODMANS}
    for kind in ("initContainers", "containers"):
        spec[kind] = [_container(it, node) for it in spec.get(kind, ())]
    name = daemon_set["metadata"]["name"]
    labels = template["metadata"]["labels"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {**spec, "restartPolicy": "Never"},
    }


def _container(container: Object, node: str) -> dict[str, Any]:
    kept = {name: part for name, part in container.items() if name not in NOT_OF_CONTAINERS}
    kept["env"] = [_variable(it, node) for it in container.get("env", ())]
    kept["imagePullPolicy"] = "Never"  # it was built here
    return kept


def _variable(variable: Object, node: str) -> Object:
    field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
    return {"name": variable["name"], "value": node} if field == "spec.nodeName" else variable
