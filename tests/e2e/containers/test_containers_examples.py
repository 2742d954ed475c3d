"""The manifests of deploy/examples, run by `podman play kube`.

What is changed in them is mechanical: the images are local ones, the socket's folder and the URL
are the test's daemon's, the limits fit this machine, and the GPUs are named as a device plugin
names them, in the app's NVIDIA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.containers import images, rig
from tests.e2e.containers.podman import attempt, podman
from tests.e2e.containers.rig import Container
from tests.support.paths import REPOSITORY
from tests.support.tiny import CPUS, tiny_tree

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
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listen = ["--listen=none", f"--listen-plan=127.0.0.1:{port}"]
    with rig.daemon(folder, *listen, root=tree, options=["--network=host"]) as daemon:
        (folder / "url").write_text(f"http://127.0.0.1:{port}")
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


@contextmanager
def played(pod: dict[str, Any], folder: Path) -> Iterator[str]:
    """Run a pod to its end; yield the name of its app's container."""
    manifest = folder / "pod.yaml"
    manifest.write_text(yaml.safe_dump(pod))
    name = pod["metadata"]["name"]
    try:
        podman("play", "kube", "--network=host", manifest)
        yield f"{name}-{pod['spec']['containers'][0]['name']}"
    finally:
        attempt("pod", "rm", "--force", "--ignore", "--time=0", name)


def pods_of(example: str) -> list[dict[str, Any]]:
    objects = yaml.safe_load_all((EXAMPLES / f"{example}.yaml").read_text())
    return [it for it in objects if it["kind"] == "Pod"]


def test_there_is_no_example_that_is_not_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == {
        *("one-gpu", "torchrun-8gpu", "pytorchjob-pair", "burstable-shared-pool", "restricted")
    }


@pytest.mark.parametrize(
    ("example", "gpus", "lines"),
    [
        pytest.param(("one-gpu", 0), "1", [f"CPUs {CPUS[1]}"], id="one GPU"),
        pytest.param(("burstable-shared-pool", 0), "0", [f"CPUs {CPUS[0]}"], id="shared pool"),
        pytest.param(("restricted", 0), "1", [f"CPUs {CPUS[1]}"], id="restricted"),
        pytest.param(("pytorchjob-pair", 0), "0", [f"0 CPUs {CPUS[0]}"], id="master"),
        pytest.param(("pytorchjob-pair", 1), "1", [f"1 CPUs {CPUS[1]}"], id="worker"),
        pytest.param(
            ("torchrun-8gpu", 0),
            "0,1",
            [f"0 CPUs {CPUS[0]}", f"1 CPUs {CPUS[1]}"],
            id="torchrun's ranks",
        ),
    ],
)
def test_an_example_runs_beside_its_gpus(
    node: Container, tmp_path: Path, example: tuple[str, int], gpus: str, lines: list[str]
) -> None:
    name, place = example
    pod = fitted(pods_of(name)[place], node, gpus)
    with played(pod, tmp_path) as app:
        podman("wait", app)
        logs = attempt("logs", app)
        assert (logs.stdout.splitlines(), logs.stderr) == (lines, "")
