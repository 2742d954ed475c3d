"""Containers whose processes are pinned by the node's daemon, from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.linux.processes import mask_of
from tests.e2e.containers import images
from tests.e2e.containers.rig import Container, pods_cgroup, running
from tests.support.children import children_of
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually
from tests.support.enforcing_node import enforcing
from tests.support.puppets import ALL, GROWN_UP
from tests.support.tiny import CPUS

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts, and pins other users' processes"),
    needs_cpuset,
]

NEAR_CPU, FAR_CPU = (frozenset({cpu}) for cpu in CPUS)
POD = "7c1de3f1-51aa-9d02-4c1e-8a1f0c3ea001"

#: A worker, and a wait for it.
PROGRAM = ("sh", "-c", "sleep 600 & wait")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Container]:
    """Run a container that no scheduler started."""
    with running(tmp_path / "alone", images.client("busybox"), *PROGRAM) as container:
        yield container


@pytest.fixture
def of_a_pod(tmp_path: Path) -> Iterator[Container]:
    """Run one with the cgroup that the kubelet would give it."""
    options = (f"--cgroup-parent={pods_cgroup(POD)}", "--user=1000:1000")
    with running(
        tmp_path / "pod", images.client("busybox"), *PROGRAM, options=options
    ) as container:
        yield container


def everybody(container: Container) -> list[int]:
    eventually(lambda: children_of(container.pid), "it has started its worker")
    return [container.pid, *children_of(container.pid)]


def test_containers_are_pinned_near_their_gpus_alone_and_as_a_pods(
    alone: Container, of_a_pod: Container
) -> None:
    near, far = everybody(alone), everybody(of_a_pod)
    assert {mask_of(pid) for pid in (*near, *far)} == {ALL}
    assert Path(f"/proc/{near[0]}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink()
    time.sleep(GROWN_UP)
    with enforcing("pin", users={0: near[:1], 2: far[:1]}) as node:
        node.wait_until("fits", *near, *far)
        assert {mask_of(pid) for pid in near} == {NEAR_CPU}
        assert {mask_of(pid) for pid in far} == {FAR_CPU}
        jobs = {job["processes"][0]["pid"]: job for job in node.enforce()["jobs"]}
        assert jobs[near[0]]["scheduler"] == "container"
        assert (jobs[far[0]]["scheduler"], jobs[far[0]]["id"]) == ("kubernetes", POD)
