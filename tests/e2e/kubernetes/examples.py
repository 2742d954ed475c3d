"""The manifests of deploy/examples, as a node of two CPUs and two GPUs can run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from tests.e2e.kubernetes.cluster import CHROOT
from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "deploy/examples"
#: What stands for this on the node is an image with python3, curl and taskset, and no PyTorch.
PYTORCH = "docker.io/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime"
#: An amount of the examples → what this node has of it. Whole CPUs stay whole.
AMOUNTS: Mapping[object, object] = {
    "64": "1",
    "8": "1",
    "4": "500m",
    8: 2,
    "512Gi": "256Mi",
    "32Gi": "256Mi",
    "16Gi": "128Mi",
}
#: torchrun, as far as it starts the ranks of one node.
TORCHRUN = """#!/usr/bin/python3
import os, subprocess, sys
command = sys.argv[sys.argv.index("--no-python") + 1 :]
for rank in "01":
    os.environ.update(LOCAL_RANK=rank, LOCAL_WORLD_SIZE="2")
    last = subprocess.Popen(command)
last.wait()
"""
#: Has a program stay after it has said where it runs.
STAYS = "; import sys, time; sys.stdout.flush(); time.sleep(1e5)"


def load(name: str, daemon: str) -> list[dict[str, Any]]:
    """Return the objects of an example, fitted to the node; `daemon`: the address of its pod.

    Images, volumes, variables and commands are as they are, but for the address of the Service,
    which has no DNS here, torchrun, and the rule that a pair runs on two nodes.
    """
    objects: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))
    for it in objects:
        if it["kind"] == "Pod":
            _fit(it["spec"], daemon)
    return objects


def _fit(spec: dict[str, Any], daemon: str) -> None:
    spec.pop("affinity", None)
    spec["hostAliases"] = [{"ip": daemon, "hostnames": ["affinityd.affinityd"]}]
    for container in (*spec["initContainers"], *spec["containers"]):
        for amounts in container["resources"].values():
            amounts.update({name: AMOUNTS.get(it, it) for name, it in amounts.items()})
    for container in spec["containers"]:
        container["args"][-1] += STAYS
        if container["command"][0] == "torchrun":
            program = CHROOT / "rig/torchrun"
            program.write_text(TORCHRUN)
            program.chmod(0o755)
            spec["volumes"].append({"name": "torchrun", "hostPath": {"path": "/rig/torchrun"}})
            inside = {"name": "torchrun", "mountPath": "/usr/local/bin/torchrun"}
            container["volumeMounts"].append(inside)
