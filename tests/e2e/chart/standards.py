"""What Kubernetes' Pod Security Standards bar, as the pages of its documentation list it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from kubernetes_validate import utils

from tests.e2e.chart.rendering import Object

Spec = Mapping[str, Any]

CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
SECCOMP = {"RuntimeDefault", "Localhost"}
VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}


def against_baseline(pod: Spec) -> Iterator[str]:
    """Yield what the standard `baseline` bars in a pod's spec."""
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    yield from ("hostPath" for volume in pod.get("volumes", ()) if "hostPath" in volume)
    if _context(pod).get("sysctls"):
        yield "sysctls"
    for container in _containers(pod):
        context = _context(container)
        added = set(context.get("capabilities", {}).get("add", ()))
        yield from (f"capability {name}" for name in sorted(added - CAPABILITIES))
        yield from ("hostPort" for port in container.get("ports", ()) if port.get("hostPort"))
        if context.get("privileged"):
            yield "privileged"
        if context.get("procMount", "Default") != "Default":
            yield "procMount"
    for context in (_context(part) for part in (pod, *_containers(pod))):
        selinux = context.get("seLinuxOptions", {})
        if selinux.get("type", "") not in SELINUX or selinux.get("user") or selinux.get("role"):
            yield "seLinuxOptions"
        if context.get("seccompProfile", {}).get("type") == "Unconfined":
            yield "seccomp Unconfined"


def against_restricted(pod: Spec) -> Iterator[str]:
    """Yield what the standard `restricted` bars in a pod's spec."""
    yield from against_baseline(pod)
    kinds = {kind for volume in pod.get("volumes", ()) for kind in volume.keys() - {"name"}}
    yield from (f"volume {kind}" for kind in sorted(kinds - VOLUMES))
    for container in _containers(pod):
        context = {**_context(pod), **_context(container)}
        capabilities = context.get("capabilities", {})
        if context.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
            yield "root"
        if context.get("seccompProfile", {}).get("type") not in SECCOMP:
            yield "no seccomp profile"
        if "ALL" not in capabilities.get("drop", ()):
            yield "capabilities not dropped"
        if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            yield "capabilities added"


def _containers(pod: Spec) -> list[Spec]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _context(part: Spec) -> Spec:
    context: Spec = part.get("securityContext") or {}
    return context


# Kubernetes' own schemas of its objects.


#: What the chart and the examples are for.
OLDEST, NEWEST = "1.28", utils.major_minor(utils.latest_version())

# It would read the same megabytes anew for each object.
utils.schema_contents = cache(utils.schema_contents)


def validate(objects: Iterable[Object], *versions: str) -> None:
    """Let the schemas of these releases judge objects, none of which may have an unknown field."""
    for it in objects:
        for version in versions:
            assert utils.validate(it, version, strict=True) == version
