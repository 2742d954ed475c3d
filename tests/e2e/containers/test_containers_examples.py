"""The manifests of deploy/examples, run by `podman play kube`.

What is changed in them is mechanical: the images are local ones, the socket's folder and the URL
are the test's daemon's, the limits fit this machine, and the GPUs are named as a device plugin
names them, in the app's NVIDIA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.containers import images, rig
from tests.e2e.containers.as_pod import played
from tests.e2e.containers.podman import attempt, podman
from tests.e2e.containers.rig import Container
from tests.support.paths import REPOSITORY
from tests.support.ports import free_port
from tests.support.tiny import FAR, NEAR, Ended, tiny_tree

EXAMPLES = REPOSITORY / "deploy" / "examples"

#: torchrun, as far as it starts the ranks of one node; PyTorch is not in the image.
TORCHRUN = """
import os, subprocess, sys
size = next(word.partition("=")[2] for word in sys.argv if word.startswith("--nproc_per_node="))
command = sys.argv[sys.argv.index("--no-python") + 1 :]
for rank in range(int(size)):
    said = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": size}
    subprocess.run(command, env={**os.environ, **said}, check=True)
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("node")
    tree = tiny_tree(folder / "machine")
    (folder / "torchrun").write_text(TORCHRUN)
    address = f"127.0.0.1:{free_port()}"
    (folder / "url").write_text(f"http://{address}")
    listen = ["--listen=none", f"--listen-plan={address}"]
    with rig.daemon(folder, *listen, root=tree, options=["--network=host"]) as daemon:
        yield daemon


def fitted(pod: dict[str, Any], node: Container, gpus: str) -> dict[str, Any]:
    """Return a pod of an example as this machine can run it."""
    folder = node.socket.parent.parent
    text = json.dumps(pod).replace("http://affinityd.affinityd:9466", (folder / "url").read_text())
    pod = json.loads(text.replace("--nproc_per_node=8", "--nproc_per_node=2"))
    spec = pod["spec"]
    for volume in spec["volumes"]:
        if "hostPath" in volume:
            volume["hostPath"]["path"] = str(node.socket.parent)
        volume.get("emptyDir", {}).pop("sizeLimit", None)
    program = {"path": str(folder / "torchrun"), "type": "File"}
    spec["volumes"].append({"name": "torchrun", "hostPath": program})
    for container in (*spec["initContainers"], *spec["containers"]):
        is_ours = container["image"].startswith("localhost/affinityd:")
        container["image"] = images.affinityd() if is_ours else images.client("debian")
        container["imagePullPolicy"] = "Never"
        container.pop("resources")
    app = spec["containers"][0]
    if app["command"][0] == "torchrun":
        app["command"] = ["/usr/bin/python3", "/torchrun", *app["command"][1:]]
    app["volumeMounts"].append({"name": "torchrun", "mountPath": "/torchrun"})
    app.setdefault("env", []).append({"name": "NVIDIA_VISIBLE_DEVICES", "value": gpus})
    return pod


#: Example → the GPUs of each of its pods, and what that prints.
RUN = {
    "one-gpu": [("1", f"CPUs {FAR}\n")],
    "burstable-shared-pool": [("0", f"CPUs {NEAR}\n")],
    "restricted": [("1", f"CPUs {FAR}\n")],
    "pytorchjob-pair": [("0", f"0 CPUs {NEAR}\n"), ("1", f"1 CPUs {FAR}\n")],
    "torchrun-8gpu": [("0,1", f"0 CPUs {NEAR}\n1 CPUs {FAR}\n")],
}


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda it: it.stem)
def test_an_example_runs_beside_its_gpus(node: Container, tmp_path: Path, example: Path) -> None:
    pods = [it for it in yaml.safe_load_all(example.read_text()) if it["kind"] == "Pod"]
    for each, (gpus, printed) in zip(pods, RUN[example.stem], strict=True):
        pod = fitted(each, node, gpus)
        app = f"{pod['metadata']['name']}-{pod['spec']['containers'][0]['name']}"
        with played(pod, tmp_path, "host"):
            podman("wait", "--interval=50ms", app)
            assert attempt("logs", app) == Ended(0, printed, "")
