"""The node's daemon in a container: it sees the node's pids, and every user reaches its socket."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.containers import images
from tests.e2e.containers.rig import SOCKETS, Container, container, daemon, machine, mount, running
from tests.support.tiny import FAR, LOOK, Ended, tiny_tree

#: Options as of a pod with `hostUsers: false`, whose uid 0 is an unprivileged uid on the node.
USER_NAMESPACE = ("--uidmap=0:100000:65536", "--gidmap=0:100000:65536")
CLIENTS = {
    "root": (),
    "uid 1000": ("--user=1000:1000",),
    "root of a user namespace": USER_NAMESPACE,
    "uid 1000 of a user namespace": ("--user=1000:1000", *USER_NAMESPACE),
}


def pods_cgroup(uid: str) -> str:
    """Return a pod's cgroup outside of /kubepods, where a kubelet ends unknown processes."""
    return f"/test-containers/kubepods/burstable/pod{uid}"


#: What the chart gives its daemon: a pod's cgroup, and a view of the node's cgroups.
POD = ("--cgroupns=private", f"--cgroup-parent={pods_cgroup('A')}")
CGROUPS = "--volume=/sys/fs/cgroup:/host/cgroup:ro"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tree(tmp_path_factory.mktemp("machine") / "tree")


@pytest.fixture(scope="module")
def node(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """Run a daemon on a node whose kernel shows two GPUs."""
    options = [*machine(tree), *POD, CGROUPS]
    with daemon(tmp_path_factory.mktemp("node"), options=options) as started:
        yield started


ASK = """
import http.client, socket, sys
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(sys.argv[1])
connection.request("GET", "/plan?mode=node&gpus=0&format=json")
print(connection.getresponse().read().decode())
"""


def asked(node: Container, *options: str) -> tuple[str, str, str | None]:
    """Return what a plan says of a container: its allowed CPUs, their source, and its cpuset."""
    options = ("--entrypoint=python3", *mount(node), *options)
    ended = container(images.affinityd(), "-c", ASK, f"{SOCKETS}/affinityd.sock", options=options)
    assert ended.status == 0, ended.stderr
    allowed = json.loads(ended.stdout)["allowed"]
    return allowed["cpulist"], allowed["source"], allowed["within"]


@pytest.mark.parametrize("options", CLIENTS.values(), ids=CLIENTS)
def test_a_client_gets_its_container_s_cpus(node: Container, options: Sequence[str]) -> None:
    assert asked(node, *options, f"--cpuset-cpus={FAR}") == (FAR, "caller", FAR)
    words = ["exec", "--gpus=1", "--timeout=10", "--", *LOOK]
    ended = container(images.affinityd(), *words, options=[*mount(node), *options])
    assert (ended.cpus, ended.stderr) == (FAR, "")


#: Prints the cpuset of a process.
CPUSET = """
import sys
from affinityd.linux.cgroup import cpuset_of
print(cpuset_of(int(sys.argv[1])))
"""


def test_the_daemon_knows_processes_of_other_containers(
    node: Container, tree: Path, tmp_path: Path
) -> None:
    """The command is `kubectl exec ds/affinityd -- affinityd verify --gpus 0 PID`."""
    job = [f"--cpuset-cpus={FAR}", f"--cgroup-parent={pods_cgroup('B')}", "--entrypoint=sleep"]
    with (
        daemon(tmp_path / "node", options=[*machine(tree), *POD]) as without,
        running(tmp_path / "job", images.affinityd(), "60", options=job) as other,
    ):
        for gpu, status in ((0, 1), (1, 0)):
            ended = node.exec("affinityd", "verify", f"--gpus={gpu}", f"{other.pid}")
            assert ended.status == status, ended
        for asked_node, printed in ((node, f"frozenset({{{FAR}}})\n"), (without, "None\n")):
            assert asked_node.exec("python3", "-c", CPUSET, f"{other.pid}") == Ended(0, printed, "")
