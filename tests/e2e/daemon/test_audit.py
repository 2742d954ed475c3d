"""The daemon that looks at processes: a real one, real masks on real CPUs, a real NVML library.

The two CPUs are two NUMA nodes to it, and NVML's facts say what uses the GPU. How processes are
judged is held by tests/processes/audit, and on many nodes by the virtual machine.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon.conftest import open_folder
from tests.support.asked_node import AskedNode
from tests.support.asking_processes import as_user, asking
from tests.support.children import sleeping
from tests.support.daemons import PATIENCE, eventually
from tests.support.live_node import UUID, gpu_address
from tests.support.made_nodes import DRIVER, running_on
from tests.support.ports import free_port
from tests.support.tiny import FAR, NEAR, tiny

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, and becomes other users")

ADMINS = 4242  #: a group that need have no name

WITHOUT_PRIVILEGE = ("setpriv", "--bounding-set=-all", "--no-new-privs")


@dataclass
class Node(AskedNode):
    """A daemon on a machine with one GPU near CPU NEAR, and what its NVML says."""

    port: int

    def say(self, *pids: int, before: str = "") -> None:
        """Have NVML name these processes, from the next scan on."""
        self.tell(_facts(self.folder, pids, before))

    def processes(self) -> dict[int, Any]:
        return {process["pid"]: process for process in self.audit()["processes"]}

    def of_gpu(self, name: str) -> float | None:
        return self.samples(f"gpu_{name}").get(gpu_address())

    def wait_for(self, causes: str) -> None:
        """Wait for the causes of the GPU's mismatch."""

        def are_told() -> bool:
            samples = self.samples("gpu_numa_mismatch", "cause")
            told = " ".join(cause for cause, value in samples.items() if value)
            return bool(samples) and told == causes

        eventually(are_told, f"the mismatch is {causes or 'over'}")


def _facts(folder: Path, pids: Sequence[int], before: str = "") -> str:
    processes = [f"process compute {pid} {2**20}" for pid in pids]
    gpu = ["gpu", f"uuid {UUID}", f"pci 0000{gpu_address()}", "minor 0", f"node {NEAR}"]
    head = [f"driver {DRIVER}", f"device {folder / 'nvidiactl'}", before]
    return "\n".join([*head, *gpu, *processes, ""])


@contextmanager
def auditing(*arguments: str, before: Sequence[str] = ()) -> Iterator[Node]:
    """Run a daemon that scans every second; what it is run by comes `before`."""
    with open_folder() as folder:
        (folder / "nvidiactl").touch()
        nvml, port = _facts(folder, ()), free_port()
        settings = ("--scan-interval", "1", *arguments)
        at = f"127.0.0.1:{port}"
        with running_on(tiny(), folder, nvml, *settings, listen=at, before=before) as daemon:
            node = Node(daemon, folder, port)
            eventually(lambda: daemon.get("/audit").status == 200, "there is a scan")
            yield node


@pytest.fixture(scope="module")
def whole() -> Iterator[Node]:
    with auditing("--admin-group", str(ADMINS)) as node:
        yield node


@pytest.fixture
def node(whole: Node) -> Node:
    """Return the node with a GPU that is not used."""
    whole.say()
    eventually(lambda: whole.audit()["processes"] == [], "the GPU is not used")
    return whole


def test_a_process_that_is_repinned_between_scans_turns_metric_and_log(node: Node) -> None:
    gpu = f"nvidia GPU 0 ({gpu_address()})"
    before = len(node.daemon.says(gpu))
    with sleeping() as child:
        subprocess.run(["taskset", "-cp", FAR, str(child.pid)], check=True, capture_output=True)
        node.say(child.pid)
        node.wait_for("mask")
        began = node.of_gpu("numa_mismatch_start_timestamp_seconds")
        assert began is not None
        assert time.time() - PATIENCE < began <= time.time()
        assert node.samples("gpu_processes", "placement")["remote"] == 1
        assert f"affinityd pin --gpus {UUID} {child.pid} " in node.processes()[child.pid]["remedy"]
        subprocess.run(["taskset", "-cp", NEAR, str(child.pid)], check=True, capture_output=True)
        node.wait_for("")
        assert node.of_gpu("numa_mismatch_start_timestamp_seconds") is None
        assert node.samples("gpu_processes", "placement")["local"] == 1
    told = (
        f"warning: {gpu}: 1 of its processes may run far from it",
        f"info: {gpu}: its processes are near it again, or have ended",
    )
    both = re.compile(".*".join(map(re.escape, told)), re.DOTALL)
    eventually(lambda: both.search("\n".join(node.daemon.says(gpu)[before:])), "both are logged")


def test_root_sees_all_a_user_his_own_the_admins_all_and_tcp_counts(node: Node) -> None:
    def seen_by(user: int, *groups: int) -> Any:  # noqa: ANN401 - a document
        with asking(node.daemon.socket, before=as_user(user, *groups)) as asker:
            return asker.ask("/audit").json

    with sleeping(before=as_user(1234)) as one, sleeping() as roots:
        everybody = {one.pid, roots.pid}
        node.say(*everybody)
        eventually(lambda: node.processes().keys() == everybody, "all are seen")
        with closing(http.client.HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE)) as tcp:
            tcp.request("GET", "/audit")
            counts = json.load(tcp.getresponse())
        for answer, sees, pids in (
            (node.audit(), "all", everybody),
            (seen_by(1234), "own", {one.pid}),
            (seen_by(1236, ADMINS), "all", everybody),
            (counts, "counts", None),
        ):
            assert answer["gpus"][0]["processes"]["unpinned"] == 2
            named = {it["pid"] for it in answer["processes"]} if "processes" in answer else None
            assert (answer["sees"], named) == (sees, pids)
        assert node.processes()[one.pid]["uid"] == 1234


def test_while_nvml_is_silent_nothing_is_said_of_the_gpus_processes(node: Node) -> None:
    with sleeping() as child:
        node.say(child.pid)
        node.wait_for("unpinned")
        node.say(child.pid, before="fail nvmlInitWithFlags 999")
        eventually(lambda: node.of_gpu("audited") == 0, "its processes are not known")
        for name in ("numa_mismatch", "processes", "threads", "orphan_processes"):
            assert node.of_gpu(name) is None
        assert node.audit()["gpus"][0]["unknown"]
        node.say(child.pid)
        node.wait_for("unpinned")
        assert node.of_gpu("audited") == 1


def test_while_the_driver_is_unloaded_there_is_no_gpu_and_nvml_is_not_asked(node: Node) -> None:
    version, asked = node.folder / "driver/nvidia/version", node.folder / "asked"
    text = version.read_text()
    version.unlink()
    try:
        eventually(lambda: node.audit()["gpus"] == [], "it has no GPU")
        assert node.daemon.get("/plan?gpus=0").status == 404
        notices = node.daemon.get("/topology").json["topology"]["notices"]
        assert any("driver is not loaded" in notice for notice in notices)
        node.say(before=f"fail nvmlInitWithFlags note {asked}")
        node.wait_for_scans(2)
        assert (node.audit()["notices"], asked.exists()) == ([], False)
    finally:
        node.say()
        version.write_text(text)
    eventually(lambda: node.of_gpu("audited") == 1, "the GPU is back")


def test_root_without_any_privilege_sees_other_users_processes() -> None:
    far = (*as_user(1234), "taskset", "-c", FAR)
    with auditing(before=WITHOUT_PRIVILEGE) as node, sleeping(before=far) as child:
        node.say(child.pid)
        node.wait_for("mask")
        assert node.processes()[child.pid]["uid"] == 1234
        assert node.audit()["notices"] == []
