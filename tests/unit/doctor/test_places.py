"""The checks of where GPUs are, and of what the kernel does with the CPUs beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.topology.model import Topology
from tests.support.doctor_facts import (
    CPU,
    NO_GPU,
    ONE,
    TWO,
    Expected,
    Files,
    check,
    facts_of,
    n_a,
    well,
)
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

#: CPU 3 is on node 0 and offline.
OFFLINE = made({0: "0-3", 1: "4-7"}, gpus=[0, 1], online="0-2,4-7")
OF_NODE_0 = {f"{CPU}/cpu3/node0/cpulist": "0-2"}
#: All of node 1 is.
NODE_OFFLINE = made({0: "0-3", 1: "4-7"}, gpus=[0, 1], online="0-3")
OF_NODE_1 = {f"{CPU}/cpu{cpu}/node1/cpulist": "" for cpu in range(4, 8)}

#: A node without CPUs, two of three GPUs on it, and node 1 beside it.
BARE = made(
    {0: "0-3", 1: "4-7", 2: ""},
    gpus=[2, 0, 2],
    distances=[("0-2", "0-2", 20), ("1", "2", 12), ("0", "0", 10), ("1", "1", 10), ("2", "2", 10)],
)

BALANCING = "proc/sys/kernel/numa_balancing"


@pytest.mark.parametrize(
    ("name", "topology", "expected"),
    [
        ("gpu-numa-node", TWO, well("GPU 0 on node 0; GPU 1 on node 1")),
        ("gpu-numa-node", NO_GPU, n_a("there is no GPU")),
        ("gpu-numa-node", made({0: "0-3"}, [None]), well("one NUMA node")),
        (
            "gpu-numa-node",
            made({0: "0-3", 1: "4-7"}, [0, None, None]),
            Expected("warn", "of GPUs 1-2 (0000:11:00.0, 0000:12:00.0)", "update the firm", (1, 2)),
        ),
        ("gpu-node-cpus", TWO, well("has CPUs")),
        ("gpu-node-cpus", NO_GPU, n_a("there is no GPU")),
        ("gpu-node-cpus", made({0: "0-3", 1: "4-7"}, [None]), n_a("no GPU is known")),
        (
            "gpu-node-cpus",
            BARE,
            Expected(
                "warn",
                "node 2 of GPUs 0,2 has no CPU online: its ranks go to node 1",
                "nothing where the hardware is so",
                (0, 2),
            ),
        ),
        ("offline-cpus", TWO, well("every CPU near a GPU is online")),
        ("offline-cpus", NO_GPU, n_a("there is no GPU")),
    ],
)
def test_where_gpus_are(tmp_path: Path, name: str, topology: Topology, expected: Expected) -> None:
    check(name, facts_of(tmp_path, topology), expected)


@pytest.mark.parametrize(
    ("name", "topology", "files", "expected"),
    [
        (
            "offline-cpus",
            OFFLINE,
            OF_NODE_0,
            Expected("warn", "offline near GPU 0: CPU 3, which", "echo 1 > ", (0,)),
        ),
        (
            "offline-cpus",
            OFFLINE,
            {"sys/devices/system/node/node0/cpulist": "0-3"},
            Expected("warn", "offline near GPU 0: CPU 3, which", "maxcpus=", (0,)),
        ),
        ("offline-cpus", OFFLINE, {}, well("every CPU near a GPU is online")),
        (
            "offline-cpus",
            OFFLINE,
            {**OF_NODE_0, f"{CPU}/smt/control": "off"},
            well("offline near GPU 0: CPU 3, as smt/control is off"),
        ),
        (
            "offline-cpus",
            NODE_OFFLINE,
            OF_NODE_1,
            Expected("warn", "offline near GPU 1: CPUs 4-7", "echo 1 > ", (1,)),
        ),
        (
            "gpu-node-cpus",
            NODE_OFFLINE,
            OF_NODE_1,
            Expected("warn", "node 1 of GPU 1", "its CPUs 4-7 are there and offline: echo 1", (1,)),
        ),
        ("numa-balancing", TWO, {BALANCING: 0}, well("kernel.numa_balancing is 0")),
        (
            "numa-balancing",
            TWO,
            {BALANCING: 1},
            Expected("warn", "kernel.numa_balancing is 1", "sysctl -w kernel.numa_balancing=0"),
        ),
        (
            "numa-balancing",
            TWO,
            {BALANCING: 2},
            Expected("warn", "kernel.numa_balancing is 2", "/etc/sysctl.d"),
        ),
        ("numa-balancing", ONE, {BALANCING: 1}, well("kernel.numa_balancing is 1")),
        ("numa-balancing", NO_GPU, {BALANCING: 1}, n_a("there is no GPU")),
        ("numa-balancing", TWO, {}, n_a("no kernel.numa_balancing to read")),
        ("isolcpus", TWO, {f"{CPU}/isolated": ""}, well("no CPU of isolcpus=")),
        ("isolcpus", TWO, {f"{CPU}/nohz_full": "(null)"}, n_a("cpu/isolated")),
        ("isolcpus", TWO, {}, n_a("cpu/isolated")),
        (
            "isolcpus",
            TWO,
            {f"{CPU}/isolated": "2-3"},
            Expected("fail", "takes CPUs 2-3 near GPU 0 from", "--reserved-cpus 2-3", (0,)),
        ),
        (
            "isolcpus",
            TWO,
            {f"{CPU}/nohz_full": "3-4"},
            Expected("warn", "nohz_full= has CPUs 3-4 near GPUs 0-1", "nohz_full= on", (0, 1)),
        ),
    ],
    ids=[
        "the CPU's folder names its node",
        "an old kernel's node lists what is offline",
        "nobody says where the CPU is",
        "SMT was turned off",
        "a whole node is offline",
        "and so the GPU's node has no CPU",
        "balancing is off",
        "balancing is on",
        "balancing between tiers is on",
        "there is nothing to balance",
        "no rank is there to suffer",
        "a kernel without balancing",
        "none is isolated",
        "a kernel that writes no list",
        "a kernel that tells nothing",
        "two CPUs near a GPU are isolated",
        "two CPUs have no tick",
    ],
)
def test_what_the_kernel_makes_of_the_cpus(
    tmp_path: Path, name: str, topology: Topology, files: Files, expected: Expected
) -> None:
    check(name, facts_of(tmp_path, topology, files), expected)


def test_isolated_cpus_that_no_rank_is_given_are_what_a_site_wants(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, TWO, {f"{CPU}/isolated": "2-4"}, reserved="2-3")
    check("isolcpus", facts, Expected("fail", "takes CPU 4 near GPU 1 from", "-cpus 4", (1,)))
    reserved = facts_of(tmp_path / "2", TWO, {f"{CPU}/isolated": "2-4"}, reserved="2-4")
    check("isolcpus", reserved, well("no CPU of isolcpus="))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flat", Expected("warn", "numa_node of GPUs 0-3", "pxb-pcie", (0, 1, 2, 3))),
        ("cloud-vm", well("one NUMA node")),
    ],
)
def test_named_machines_whose_gpus_nobody_places(
    tmp_path: Path, name: str, expected: Expected
) -> None:
    check("gpu-numa-node", facts_of(tmp_path, machine(name)), expected)
