"""A job's pod as the page has it: an init container, and a program that /affinity/run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.e2e.kubernetes import machine
from tests.e2e.kubernetes.cluster import AFFINITYD, IMAGE, Cluster
from tests.support.daemons import eventually

SLEEPS = ("sleep", "100000")  #: a program without /affinity/run
#: Says where it runs, and stays there.
LOOKS = (
    "/affinity/run",
    "sh",
    "-c",
    "grep Cpus_allowed_list /proc/self/status; sleep 100000 & wait",
)
HOLD = "until [ -e /affinity/go ]; do /bin/busybox sleep 0.1; done"


@dataclass(frozen=True)
class Job:
    """A job's pod; its program has GPU 0."""

    cluster: Cluster
    name: str

    def start(self, command: Sequence[str] = LOOKS, *, held: bool = False, gpus: int = 0) -> None:
        """Create it; `held`: it waits between its init container and its program for `go`.

        `gpus`: how many it asks kubelet for.
        """
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
            # Its one device file is what a device plugin gives.
            "securityContext": {"privileged": True},
            "resources": {"limits": {"nvidia.com/gpu": gpus}} if gpus else {},
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
        named = {"metadata": {"name": self.name, "namespace": "default"}, "spec": spec}
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", **named})

    def wait_for(self, container: str, state: str = "running") -> None:
        """Wait until one of its containers is `running` or `terminated`."""

        def is_so() -> bool:
            status = self.cluster.get("pod", self.name)["status"]
            kinds = ("initContainerStatuses", "containerStatuses")
            told = [it for kind in kinds for it in status.get(kind, ()) if it["name"] == container]
            return any(state in it["state"] for it in told)

        eventually(is_so, f"{container} of {self.name} is {state}")

    def go(self) -> None:
        """Let a held one go on."""
        self.cluster.run(f"kubectl exec {self.name} -c hold -- /bin/busybox touch /affinity/go")

    def log(self, container: str = "app") -> Sequence[str]:
        return self.cluster.run(f"kubectl logs {self.name} -c {container}").splitlines()

    def says(self) -> Sequence[str]:
        """Return the lines of its program and of `run`, once it runs."""
        self.wait_for("app")
        eventually(lambda: "Cpus_allowed_list" in "".join(self.log()), f"{self.name} has looked")
        return self.log()

    @property
    def pids(self) -> list[int]:
        uid: str = self.cluster.get("pod", self.name)["metadata"]["uid"]
        return self.cluster.pids(uid)


def _host(name: str, path: str, kind: str) -> Mapping[str, Any]:
    return {"name": name, "hostPath": {"path": path, "type": kind}}
