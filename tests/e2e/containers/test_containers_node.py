"""The daemon as a node's: it sees the node's pids, and clients of every user reach its socket."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.containers import images
from tests.e2e.containers.rig import (
    SOCKETS,
    UNPRIVILEGED,
    USER,
    Container,
    container,
    daemon,
    machine,
    mount,
    running,
)
from tests.support.tiny import BOTH, FAR, LOOK, NEAR, Ended, tiny_tree

#: The ids of a pod with `hostUsers: false`: its root is nobody on the node.
FIRST_ID = 100000
NOBODY = 65534  #: what an id looks like that a user namespace has no number for
USER_NAMESPACE = (f"--uidmap=0:{FIRST_ID}:65536", f"--gidmap=0:{FIRST_ID}:65536")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tree(tmp_path_factory.mktemp("machine") / "tree")


@pytest.fixture
def node(tree: Path, tmp_path: Path) -> Iterator[Container]:
    """Run a daemon on a node with two GPUs that are its own kernel's."""
    with daemon(tmp_path / "node", options=machine(tree)) as started:
        yield started


CLIENTS = {
    "root": (),
    "uid 1000": ("--user=1000:1000",),
    "root of a user namespace": USER_NAMESPACE,
    "uid 1000 of a user namespace": ("--user=1000:1000", *USER_NAMESPACE),
}


def curl(query: str) -> list[str]:
    url = f"http://localhost/plan?{query}"
    return ["curl", "-s", "--unix-socket", f"{SOCKETS}/affinityd.sock", url]


def test_with_the_node_s_pids_it_verifies_a_process_of_another_container(
    node: Container, tmp_path: Path
) -> None:
    """`kubectl exec ds/affinityd -- affinityd verify --gpus 0 PID`."""
    for cpu, verdict in ((NEAR, 0), (FAR, 1)):
        options = [f"--cpuset-cpus={cpu}"]
        busybox = images.client("busybox")
        with running(tmp_path / cpu, busybox, "sleep", "60", options=options) as job:
            said = node.exec("affinityd", "verify", "--gpus=0", f"{job.pid}")
            assert said.status == verdict, said


#: Prints the CPUs that the cgroup of a process lets it use.
CPUSET = """
import sys
from affinityd.linux.cgroup import cpuset_of
print(cpuset_of(int(sys.argv[1])))
"""

#: The chart's: what its daemon sees of the node's cgroups.
CGROUPS = "--volume=/sys/fs/cgroup:/host/cgroup:ro"


@pytest.mark.parametrize(("options", "known"), [((CGROUPS,), True), ((), False)])
def test_the_cpuset_of_another_container_is_known_where_the_node_s_cgroups_are_mounted(
    tree: Path, tmp_path: Path, options: Sequence[str], *, known: bool
) -> None:
    its = [*machine(tree), "--cgroupns=private", "--cgroup-parent=/kubepods/burstable/podA"]
    job = [f"--cpuset-cpus={FAR}", "--cgroup-parent=/kubepods/burstable/podB"]
    with (
        daemon(tmp_path / "node", options=[*its, *options]) as node,
        running(tmp_path / "job", images.client("busybox"), "sleep", "60", options=job) as other,
    ):
        said = node.exec("python3", "-c", CPUSET, f"{other.pid}")
    assert (said.status, said.stdout) == (0, f"frozenset({{{FAR}}})\n" if known else "None\n")


@pytest.mark.parametrize("options", CLIENTS.values(), ids=CLIENTS)
def test_every_user_s_job_reaches_its_socket(node: Container, options: Sequence[str]) -> None:
    client = images.client("debian")
    said = container(client, *curl("gpus=0,1&format=cpulist"), options=[*mount(node), *options])
    assert (said.status, said.stdout) == (0, f"{NEAR}\n{FAR}\n")


def exec_in_image(node: Container, *options: str) -> Ended:
    """Run `affinityd exec` of the image."""
    words = ["exec", "--gpus=1", "--timeout=10", "--", *LOOK]
    return container(images.affinityd(), *words, options=[*mount(node), *options])


def test_the_image_s_clients_believe_the_image_s_daemon(node: Container) -> None:
    for options in CLIENTS.values():
        said = exec_in_image(node, *options)
        assert (said.cpus, said.stderr) == (FAR, ""), options


def test_others_believe_it_where_it_is_named_or_has_no_number(node: Container) -> None:
    nobody = "--env=AFFINITYD_DAEMON_UID=1000"
    for user in ((), ("--user=1000:1000",)):
        said = exec_in_image(node, nobody, *user)
        assert f"{SOCKETS}/affinityd.sock is not trusted: uid {USER} listens," in said.stderr
    said = exec_in_image(node, nobody, *USER_NAMESPACE)
    assert (said.cpus, said.stderr) == (FAR, "")


def test_in_a_user_namespace_its_files_seem_nobody_s(node: Container) -> None:
    look = ["sh", "-c", f"stat -c '%u %a %n' {SOCKETS}/*"]
    said = container(images.client("debian"), *look, options=[*mount(node), *USER_NAMESPACE])
    assert said.stdout.splitlines() == [
        f"{NOBODY} 666 {SOCKETS}/affinityd.sock",
        f"{NOBODY} 644 {SOCKETS}/node.json",
    ]


def test_it_serves_from_a_user_namespace(tree: Path, tmp_path: Path) -> None:
    """A daemon with `hostUsers: false`; its clients have all ids."""
    options = ["--pid=private", *USER_NAMESPACE]
    with daemon(tmp_path, root=tree, user=FIRST_ID + USER, options=options) as started:
        said = container(
            images.client("debian"), *curl("gpus=0,1&format=cpulist"), options=mount(started)
        )
        assert (said.status, said.stdout) == (0, f"{NEAR}\n{FAR}\n")


def test_what_it_leaves_behind_is_enough_for_a_plan(node: Container) -> None:
    """node.json, which a client of another uid reads while there is no daemon."""
    assert node.stop() == 0
    options = [*mount(node), "--user=1000:1000", "--env=CUDA_VISIBLE_DEVICES=1"]
    said = container(images.affinityd(), "exec", "--", *LOOK, options=options)
    assert said.cpus == FAR
    assert said.stderr == ""


def test_a_second_one_leaves_the_first_its_socket(node: Container) -> None:
    """An update with `maxSurge` would start one: it says why it ends, and the first serves on."""
    folder = f"--volume={node.socket.parent}:{SOCKETS}"
    said = container(images.affinityd(), "serve", options=[*UNPRIVILEGED, folder])
    assert (said.status, said.stdout) == (1, "")
    assert said.stderr.startswith(f"affinityd serve: socket: {SOCKETS}/affinityd.sock: ")
    assert said.stderr.endswith(" listens there already; stop it first\n")
    assert "process 0" not in said.stderr  # which is what a pid of another namespace reads as
    assert node.get("/readyz").status == 200


ALLOWED = "mode=node&gpus=0&format=json"


def allowed(asked: Ended) -> Any:  # noqa: ANN401 - a part of a document
    assert asked.status == 0, asked.stderr
    return json.loads(asked.stdout)["allowed"]


@pytest.mark.parametrize("options", CLIENTS.values(), ids=CLIENTS)
def test_curl_in_a_container_sends_no_cpuset_and_gets_its_container_s_cpus(
    tree: Path, tmp_path: Path, options: Sequence[str]
) -> None:
    with daemon(tmp_path / "node", options=[*machine(tree), CGROUPS]) as node:
        confined = [*mount(node), *options, f"--cpuset-cpus={FAR}"]
        asked = container(images.client("debian"), *curl(ALLOWED), options=confined)
        assert allowed(asked) == {"cpulist": FAR, "source": "caller", "within": FAR}


def test_a_daemon_in_a_pid_namespace_of_its_own_knows_nobody_and_says_so_once(
    tree: Path, tmp_path: Path
) -> None:
    apart = [*machine(tree), "--pid=private"]
    with daemon(tmp_path / "node", options=apart) as node:
        for _ in ("one", "another"):
            confined = [*mount(node), f"--cpuset-cpus={FAR}"]
            asked = container(images.client("debian"), *curl(ALLOWED), options=confined)
            assert allowed(asked) == {"cpulist": BOTH, "source": "node", "within": None}
        (warning,) = [line for line in node.lines if "who asks is not known" in line]
        assert "hostPID: true" in warning
