"""The checks of where GPUs are, and of what the kernel does with the CPUs beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.topology.model import Topology
from tests.support.doctor_facts import CPU, NO_GPU, ONE, TWO, Files, check, facts_of
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

NODES = {0: "0-3", 1: "4-7"}
UNKNOWN = made(NODES, gpus=[0, None])
#: CPU 3 is on node 0 and offline.
OFFLINE = made(NODES, gpus=[0, 1], online="0-2,4-7")
OF_NODE_0 = {f"{CPU}/cpu3/node0/cpulist": "0-2"}
#: All of node 1 is.
NODE_OFFLINE = made(NODES, gpus=[0, 1], online="0-3")
OF_NODE_1 = {f"{CPU}/cpu{cpu}/node1/cpulist": "" for cpu in range(4, 8)}
#: What a kernel of old wrote for a node one of whose CPUs is offline.
OLD_KERNEL = {"sys/devices/system/node/node0/cpulist": "0-3"}
SMT_OFF = {**OF_NODE_0, f"{CPU}/smt/control": "off"}

#: A node without CPUs, two of three GPUs on it, and node 1 beside it.
DISTANCES = [("0-2", "0-2", 20), ("1", "2", 12), ("0", "0", 10), ("1", "1", 10), ("2", "2", 10)]
BARE = made({**NODES, 2: ""}, gpus=[2, 0, 2], distances=DISTANCES)
ALL_ONLINE = "ok: every CPU near a GPU is online"
NONE_ISOLATED = "ok: ranks are given no CPU of isolcpus="
TO_NODE_1 = "has no CPU online: its ranks go to node 1"
ALL_OFFLINE = "its CPUs 4-7 are present and offline: echo 1"
NO_TICKS = "nohz_full= has CPUs 3-4 near GPUs 0-1"


def balancing(value: int) -> Files:
    return {"proc/sys/kernel/numa_balancing": value}


@pytest.mark.parametrize(
    ("name", "topology", "files", "expected"),
    [
        ("gpu-numa-node", TWO, {}, "ok: GPU 0 on node 0; GPU 1 on node 1"),
        ("gpu-numa-node", machine("cloud-vm"), {}, "ok: all CPUs are in one NUMA node"),
        ("gpu-numa-node", machine("flat"), {}, "warn 0-3: numa_node of GPUs 0-3 → pxb-pcie"),
        ("gpu-numa-node", UNKNOWN, {}, "warn 1: of GPU 1 (0000:11:00.0) → update the firm"),
        ("gpu-node-cpus", TWO, {}, "ok: the node of every GPU has CPUs"),
        ("gpu-node-cpus", made(NODES, [None]), {}, "n/a: no GPU's NUMA node is known"),
        ("gpu-node-cpus", BARE, {}, f"warn 0,2: GPUs 0,2 {TO_NODE_1} → nothing, if the hard"),
        ("gpu-node-cpus", NODE_OFFLINE, OF_NODE_1, f"warn 1: node 1 of GPU 1 → {ALL_OFFLINE}"),
        ("offline-cpus", TWO, {}, ALL_ONLINE),
        ("offline-cpus", TWO, {f"{CPU}/present": "?"}, "n/a: there is no /sys/devices/system/cpu/"),
        ("offline-cpus", OFFLINE, OF_NODE_0, "warn 0: near GPU 0: CPU 3, which → echo 1 > "),
        ("offline-cpus", OFFLINE, OLD_KERNEL, "warn 0: near GPU 0: CPU 3, which → maxcpus="),
        ("offline-cpus", OFFLINE, {}, ALL_ONLINE),
        ("offline-cpus", OFFLINE, SMT_OFF, "ok: near GPU 0: CPU 3, as smt/control is off"),
        ("numa-balancing", TWO, balancing(0), "ok: kernel.numa_balancing is 0"),
        ("numa-balancing", TWO, balancing(1), "warn: is 1 → sysctl -w kernel.numa_balancing=0"),
        ("numa-balancing", TWO, balancing(2), "warn: is 2 → /etc/sysctl.d"),
        ("numa-balancing", ONE, balancing(1), "ok: kernel.numa_balancing is 1"),
        ("numa-balancing", TWO, {}, "n/a: no kernel.numa_balancing to read"),
        ("isolcpus", TWO, {f"{CPU}/isolated": ""}, NONE_ISOLATED),
        ("isolcpus", TWO, {}, "n/a: cpu/isolated"),
        ("isolcpus", TWO, {f"{CPU}/nohz_full": "3-4"}, f"warn 0-1: {NO_TICKS} → nohz_full= on"),
    ],
)
def test_places(tmp_path: Path, name: str, topology: Topology, files: Files, expected: str) -> None:
    check(name, facts_of(tmp_path, topology, files), expected)


def test_without_a_gpu_places_are_of_no_interest(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, NO_GPU, {**balancing(1), "proc/irq/0/smp_affinity_list": "0-7"})
    for name in ("gpu-numa-node", "gpu-node-cpus", "offline-cpus", "numa-balancing", "irqbalance"):
        check(name, facts, "n/a: there is no GPU")


def test_isolated_cpus_that_no_rank_is_given_are_what_a_site_wants(tmp_path: Path) -> None:
    for reserved, expected in (
        ("", "fail 0-1: takes CPUs 2-4 near GPUs 0-1 out of → --reserved-cpus 2-4"),
        ("2-3", "fail 1: takes CPU 4 near GPU 1 out of → --reserved-cpus 4"),
        ("2-4", NONE_ISOLATED),
    ):
        facts = facts_of(tmp_path / reserved, TWO, {f"{CPU}/isolated": "2-4"}, reserved=reserved)
        check("isolcpus", facts, expected)
