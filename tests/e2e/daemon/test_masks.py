"""A real daemon and masks: it sets its own, and no other process's."""

import os
from collections.abc import Iterator

import pytest

from affinityd.cpuset import parse_list
from affinityd.linux.processes import mask_of
from tests.support.children import sleeping
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually
from tests.support.scanning_node import ScanningNode, scanning
from tests.support.tiny import FAR, NEAR

pytestmark = needs_cpuset

NEAR_CPU, FAR_CPU = parse_list(NEAR), parse_list(FAR)

#: What 0.2 had, by which its daemon pinned processes that ran far from their GPU.
OF_0_2 = {"AFFINITYD_ENFORCE": "pin", "AFFINITYD_ENFORCE_POLICY": "/nonexistent"}


@pytest.fixture(scope="module")
def node() -> Iterator[ScanningNode]:
    with scanning(env=OF_0_2) as node:
        yield node


def test_a_process_far_from_its_gpu_keeps_its_mask_and_a_command_is_named(
    node: ScanningNode,
) -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR_CPU)
        node.say({0: [child.pid]})
        eventually(lambda: [it["cause"] for it in node.audit()["processes"]] == ["mask"], "seen")
        node.wait_for_scans(2)
        assert mask_of(child.pid) == FAR_CPU
        (process,) = node.audit()["processes"]
        assert f" {child.pid} fixes it now" in process["remedy"]
