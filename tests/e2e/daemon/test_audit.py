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
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.support.asking_processes import as_user, asking
from tests.support.children import sleeping
from tests.support.daemons import PATIENCE, eventually, free_port
from tests.support.enforcing_node import EnforcingNode, address, scanning, uuid
from tests.support.tiny import FAR, NEAR

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, and becomes other users")

ADMINS = 4242  #: a group that need have no name


ADDRESS = address(0)


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def whole(port: int) -> Iterator[EnforcingNode]:
    with scanning("--admin-group", str(ADMINS), listen=f"127.0.0.1:{port}") as node:
        yield node


@pytest.fixture
def node(whole: EnforcingNode) -> EnforcingNode:
    """Return the node with GPUs that are not used."""
    whole.say({})
    eventually(lambda: processes(whole) == {}, "no GPU is used")
    return whole


def processes(node: EnforcingNode) -> dict[int, Any]:
    return {process["pid"]: process for process in node.audit()["processes"]}


def of_gpu(node: EnforcingNode, name: str) -> float | None:
    return node.samples(f"gpu_{name}").get(ADDRESS)


def wait_for(node: EnforcingNode, causes: str) -> None:

    def are_told() -> bool:
        samples = node.samples("gpu_numa_mismatch", "cause")
        present = " ".join(cause for cause, value in samples.items() if value)
        return bool(samples) and present == causes

    eventually(are_told, f"the mismatch is {causes or 'over'}")


def test_a_process_that_is_repinned_between_scans_turns_metric_and_log(node: EnforcingNode) -> None:
    gpu = f"nvidia GPU 0 ({ADDRESS})"
    before = len(node.daemon.says(gpu))
    with sleeping() as child:
        subprocess.run(["taskset", "-cp", FAR, str(child.pid)], check=True, capture_output=True)
        node.say({0: [child.pid]})
        wait_for(node, "mask")
        began = of_gpu(node, "numa_mismatch_start_timestamp_seconds")
        assert began is not None
        assert time.time() - PATIENCE < began <= time.time()
        assert node.samples("gpu_processes", "placement")["remote"] == 1
        assert (
            f"affinityd pin --gpus {uuid(0)} {child.pid} " in processes(node)[child.pid]["remedy"]
        )
        subprocess.run(["taskset", "-cp", NEAR, str(child.pid)], check=True, capture_output=True)
        wait_for(node, "")
        assert of_gpu(node, "numa_mismatch_start_timestamp_seconds") is None
        assert node.samples("gpu_processes", "placement")["local"] == 1
    logged = (
        f"warning: {gpu}: 1 of its processes may run far from it",
        f"info: {gpu}: its processes are near it again, or have ended",
    )
    both = re.compile(".*".join(map(re.escape, logged)), re.DOTALL)
    eventually(lambda: both.search("\n".join(node.daemon.says(gpu)[before:])), "both are logged")


def test_users_see_their_own_processes_and_tcp_only_counts(node: EnforcingNode, port: int) -> None:
    def seen_by(user: int, *groups: int) -> Any:  # noqa: ANN401 - a document
        with asking(node.daemon.socket, before=as_user(user, *groups)) as asker:
            return asker.ask("/audit").json

    with sleeping(before=as_user(1234)) as one, sleeping() as roots:
        everybody = {one.pid, roots.pid}
        node.say({0: [*everybody]})
        eventually(lambda: processes(node).keys() == everybody, "all are seen")
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as tcp:
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
        assert processes(node)[one.pid]["uid"] == 1234
