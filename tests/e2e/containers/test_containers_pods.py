"""`affinityd init` and `run` in real containers: a pod's, but for the kubelet.

The node is this machine's two CPUs, each on a NUMA node of its own with one GPU: GPU 0 is minor 0,
near CPU 0, and GPU 1 near CPU 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.containers import images, rig
from tests.e2e.containers.rig import Container
from tests.support.tiny import BOTH, FAR, LOOK, NEAR, Ended, tiny_tree

RUN = "/affinity/run"
SOCKET, SERVICE = "socket", "service"  #: the ways to the daemon
#: What the Pod Security Standard `restricted` asks for.
RESTRICTED = (
    "--user=1000:1000",
    "--cap-drop=all",
    "--read-only",
    "--security-opt=no-new-privileges",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("node")
    tree = tiny_tree(folder / "machine")
    with rig.daemon(folder, "--listen-plan=0.0.0.0:9466", root=tree) as daemon:
        yield daemon


@dataclass(frozen=True)
class Pod:
    """A folder that containers share, and the way that they have to the daemon."""

    folder: Path
    way: Sequence[str]  #: options of the containers
    address: str  #: an option of `init`

    def options(self, *more: str) -> list[str]:
        return [f"--volume={self.folder}:/affinity", *self.way, *more]

    def init(self) -> Ended:
        command = ["init", "--to=/affinity", "--timeout=5", self.address]
        return rig.container(images.affinityd(), *command, options=self.options())

    def app(self, image: str, *command: str, options: Sequence[str] = ()) -> Ended:
        return rig.container(images.client(image), *command, options=self.options(*options))


@pytest.fixture(scope="module")
def prepared(node: Container, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pod]:
    """Return pods whose init container has run."""
    socket, service = (tmp_path_factory.mktemp(way) for way in (SOCKET, SERVICE))
    pods = {
        SOCKET: Pod(socket, rig.mount(node), "--socket=/run/affinityd/affinityd.sock"),
        SERVICE: Pod(service, rig.network(node), "--url=http://localhost:9466"),
    }
    for pod in pods.values():
        pod.folder.chmod(0o777)  # as an emptyDir
        assert pod.init().stderr == ""
    return pods


@pytest.mark.parametrize(
    ("image", "way", "reason"),
    [
        ("debian", SOCKET, ""),
        ("debian", SERVICE, ""),
        ("busybox", SERVICE, ""),
        ("busybox", SOCKET, "neither curl nor python3"),
    ],
)
def test_apps_run_near_their_gpu(
    prepared: dict[str, Pod], image: str, way: str, reason: str
) -> None:
    pod = prepared[way]
    for gpu, cpu in ((0, NEAR), (1, FAR)):
        done = pod.app(image, RUN, *LOOK, options=rig.devices(gpu))
        assert (done.cpus, bool(done.stderr)) == (cpu, bool(reason))
        assert reason in done.stderr


def test_seccomp_takes_the_memory_policy_and_no_cpu(prepared: dict[str, Pod]) -> None:
    """`affinityd exec` in an image of its own: bound memory is refused, and the rest holds."""
    command = ["exec", "--gpus=1", "--memory=bind", "--", *LOOK]
    options = prepared[SOCKET].options(*RESTRICTED)
    done = rig.container(images.affinityd(), *command, options=options)
    assert done.cpus == FAR
    assert done.stderr.startswith("affinityd exec: memory: ")


@pytest.mark.parametrize("image", ["debian", "busybox"])
def test_a_container_that_cannot_be_pinned_runs(prepared: dict[str, Pod], image: str) -> None:
    pod = prepared[SOCKET]
    alone = ["--user=54321", "--ulimit=nproc=1:1", "--ulimit=nofile=1024:1024", *rig.devices(1)]
    assert pod.app(image, RUN, *LOOK, options=alone).cpus == BOTH
    done = pod.app(image, RUN, *LOOK, options=["--env=NVIDIA_VISIBLE_DEVICES=all"])
    none = "affinityd run: no device file of a GPU is here; the command runs unpinned"
    assert (done.cpus, done.lines) == (BOTH, [none])
