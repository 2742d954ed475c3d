"""The checks of GPUs and their CPUs, of devices, and of schedulers."""

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery.nvml import NvmlReport
from affinityd.discovery.nvml.query import INIT_REMEDIES
from affinityd.discovery.tree import Tree
from affinityd.doctor.facts import NodeFacts
from affinityd.topology.model import Nic, Topology
from tests.support.doctor_facts import CPU, NO_GPU, ONE, PCI, TWO, Files, check, facts_of
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import nvml_report

NODES = {0: "0-3", 1: "4-7"}
UNKNOWN = made(NODES, gpus=[0, None])
PARTITION = {f"{CPU}/isolated": "", "sys/fs/cgroup/cpuset.cpus.isolated": "2-3"}
HIDDEN = made({}, gpus=[None], packages={0: "0-3", 1: "4-7"})
#: CPU 3 is on node 0 and offline.
OFFLINE = made(NODES, gpus=[0, 1], online="0-2,4-7")
OF_NODE_0 = {f"{CPU}/cpu3/node0/cpulist": "0-2"}
#: CPU 3 is offline because SMT is off, or is limited to some threads.
SMT_OFF = {**OF_NODE_0, f"{CPU}/smt/control": "off"}
SMT_4 = {**OF_NODE_0, f"{CPU}/smt/control": "4"}  # threads of each core, as on POWER

ALL_ONLINE = "ok: every CPU near a GPU is online"
NONE_ISOLATED = "ok: ranks get no CPU of isolcpus="
NO_TICKS = "nohz_full= has CPUs 3-4 near GPUs 0-1"


def balancing(value: int) -> Files:
    return {"proc/sys/kernel/numa_balancing": value}


@pytest.mark.parametrize(
    ("name", "topology", "files", "expected"),
    [
        ("gpu-numa-node", TWO, {}, "ok: GPU 0 on node 0; GPU 1 on node 1"),
        ("gpu-numa-node", machine("flat"), {}, "warn 0-3: numa_node of GPUs 0-3 → pxb-pcie"),
        ("gpu-numa-node", HIDDEN, {}, "n/a: the kernel shows no NUMA node, and there are several"),
        ("gpu-numa-node", UNKNOWN, {}, "warn 1: of GPU 1 (0000:11:00.0) → update the firm"),
        ("offline-cpus", TWO, {}, ALL_ONLINE),
        ("offline-cpus", TWO, {f"{CPU}/present": "?"}, "n/a: there is no /sys/devices/system/cpu/"),
        ("offline-cpus", OFFLINE, OF_NODE_0, "warn 0: near GPU 0: CPU 3, which → echo 1 > "),
        ("offline-cpus", OFFLINE, {}, ALL_ONLINE),
        ("offline-cpus", OFFLINE, SMT_OFF, "ok: near GPU 0: CPU 3, as smt/control is off"),
        ("offline-cpus", OFFLINE, SMT_4, "ok: near GPU 0: CPU 3, as smt/control is 4"),
        ("numa-balancing", TWO, balancing(0), "ok: kernel.numa_balancing is 0"),
        ("numa-balancing", TWO, balancing(1), "warn: is 1 → sysctl -w kernel.numa_balancing=0"),
        ("numa-balancing", TWO, balancing(2), "ok: kernel.numa_balancing is 2"),
        ("numa-balancing", TWO, balancing(3), "warn: is 3 → sysctl -w kernel.numa_balancing=0"),
        ("numa-balancing", ONE, balancing(1), "ok: kernel.numa_balancing is 1"),
        ("numa-balancing", TWO, {}, "n/a: no kernel.numa_balancing to read"),
        ("isolcpus", TWO, {f"{CPU}/isolated": ""}, NONE_ISOLATED),
        ("isolcpus", TWO, {}, "n/a: cpu/isolated"),
        (
            "isolcpus",
            TWO,
            PARTITION,
            "fail 0: an isolated cpuset partition → cpuset.cpus",
        ),
        ("isolcpus", TWO, {f"{CPU}/nohz_full": "3-4"}, f"warn 0-1: {NO_TICKS} → nohz_full= on"),
    ],
)
def test_numa_nodes_and_their_cpus_are_checked(
    tmp_path: Path, name: str, topology: Topology, files: Files, expected: str
) -> None:
    check(name, facts_of(tmp_path, topology, files), expected)


def test_without_a_gpu_no_check_of_near_cpus_applies(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, NO_GPU, {**balancing(1), "proc/irq/0/smp_affinity_list": "0-7"})
    for name in ("gpu-numa-node", "offline-cpus", "numa-balancing", "irqbalance"):
        check(name, facts, "n/a: there is no GPU")


def test_isolated_cpus_that_are_reserved_are_no_finding(tmp_path: Path) -> None:
    for reserved, expected in (
        ("", "fail 0-1: takes CPUs 2-4 near GPUs 0-1 out of → --reserved-cpus 2-4"),
        ("2-3", "fail 1: takes CPU 4 near GPU 1 out of → --reserved-cpus 4"),
        ("2-4", NONE_ISOLATED),
    ):
        facts = facts_of(tmp_path / reserved, TWO, {f"{CPU}/isolated": "2-4"}, reserved=reserved)
        check("isolcpus", facts, expected)


GPU_0, GPU_1 = (gpu.pci_bus_id for gpu in TWO.gpus)
NIC = "0000:20:00.0"
WITH_NIC = replace(TWO, nics=(Nic(NIC, numa_node=1, kind="infiniband", names=("mlx5_0",)),))


def irq(device: str, number: int, effective: str, asked: str = "0-7") -> dict[str, object]:
    return {
        f"{PCI}/{device}/msi_irqs/{number}": "msix",
        f"proc/irq/{number}/effective_affinity_list": effective,
        f"proc/irq/{number}/smp_affinity_list": asked,
    }


HANDLED = "its interrupts are handled on"
FAR_FROM_GPU = f"warn 1: GPU 1 ({GPU_1}): {HANDLED} CPU 0, but CPUs 4-7 are near → enable --now irq"
FAR_FROM_NIC = f"warn 1: adapter mlx5_0 ({NIC}): {HANDLED} CPUs 0-2 → let it use near CPUs; or"
QUIET = {"proc/irq/0/smp_affinity_list": "0-7"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "n/a: there is no /proc/irq to read"),
        (QUIET, "ok: near CPUs handle all interrupts of GPUs"),
        ({**irq(GPU_1, 40, "0"), **irq(GPU_0, 41, "1")}, FAR_FROM_GPU),
        ({**irq(NIC, 40, "", "0-1"), **irq(NIC, 41, "2")}, FAR_FROM_NIC),
        ({**irq(NIC, 40, "0"), **irq(NIC, 41, "4")}, "ok: near CPUs handle all interrupts of GPUs"),
    ],
)
def test_interrupts_handled_far_from_their_device_are_found(
    tmp_path: Path, files: dict[str, object], expected: str
) -> None:
    check("irqbalance", facts_of(tmp_path, WITH_NIC, files), expected)


SAID = nvml_report(TWO)
FIRST, SECOND = SAID.gpus or ()
LOST = replace(SAID, gpus=(replace(FIRST, error="GPU is lost"), SECOND))


def silent(error: str, remedy: str | None = None) -> NvmlReport:
    return NvmlReport(None, error=error, remedy=remedy)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (SAID, "ok: NVML answers; driver 570.00"),
        (None, "n/a: NVML was not asked"),
        (silent("It is old"), "warn 0-1: It is old: plans are made from sysfs → modprobe"),
        (silent("No library", INIT_REMEDIES[12]), "warn 0-1: No library: plans → libnvidia"),
        (LOST, f"fail 0: GPU 0 ({GPU_0}): NVML says GPU is lost → NVRM: Xid"),
    ],
)
def test_an_nvml_that_fails_is_found(
    tmp_path: Path, said: NvmlReport | None, expected: str
) -> None:
    check("nvml", facts_of(tmp_path, TWO, nvml=said), expected)


HELD = "NVML calls are on hold, until /run/affinityd/hold is removed"
NOT_ASKED = f"n/a: NVML was not asked: {HELD}"


def test_nvml_on_hold_is_not_called(tmp_path: Path) -> None:
    for topology, expected in ((TWO, NOT_ASKED), (NO_GPU, "n/a: there is no NVIDIA GPU")):
        check("nvml", replace(facts_of(tmp_path, topology), maintenance=HELD), expected)


A100, STORAGE = machine("dgx-a100"), ("mlx5_4", "mlx5_5")


def only(*names: str) -> Topology:
    return replace(A100, nics=tuple(nic for nic in A100.nics if nic.names[0] in names))


def without(*names: str) -> Topology:
    return replace(A100, nics=tuple(nic for nic in A100.nics if nic.names[0] not in names))


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (machine("dgx-h100"), "ok: every GPU has an RDMA device as near as others have (PXB)"),
        (machine("mi250x"), "ok: every GPU has an RDMA device as near as others have (NODE, PHB)"),
        (TWO, "n/a: no port of an RDMA device is ACTIVE"),
        (replace(NO_GPU, nics=A100.nics), "n/a: GPU"),
        (A100, "ok: as near as others have (PXB)"),
        (only(*STORAGE), "warn: than every GPU: mlx5_4 port 1, mlx5_5 port 1 → for storage"),
        (without(*STORAGE, "mlx5_0", "mlx5_1"), "warn 0-1: switch of GPUs 0-1; → slot"),
    ],
)
def test_far_rdma_devices_are_found(tmp_path: Path, topology: Topology, expected: str) -> None:
    check("gpu-nics", facts_of(tmp_path, topology), expected)


def live(facts: NodeFacts) -> NodeFacts:
    return replace(facts, tree=Tree(facts.tree.root, facts.tree.name, live=True))


V1 = "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw"
UNIFIED = "36 31 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
CILIUM = "30 23 0:28 / /run/cilium/cgroupv2 rw - cgroup2 none rw"
OF_POD = "30 23 0:28 /kubepods /run/pod rw - cgroup2 none rw"
ELSEWHERE = "31 23 0:28 / /cgroup rw - cgroup2 none rw"
TOP = "sys/fs/cgroup/cgroup.controllers"
SLURM = "sys/fs/cgroup/system.slice/node7_slurmstepd.scope/cgroup.controllers"
PODS = "sys/fs/cgroup/kubepods.slice/cgroup.controllers"
V1_AND_V2 = f"{V1}\n{UNIFIED}"
SET, UNSET = "cpuset cpu", "cpu memory"
CONTROLLERS = ("cgroup.controllers", "kubepods.slice/cgroup.controllers")
CILIUMS = {f"run/cilium/cgroupv2/{file}": SET for file in CONTROLLERS}
OF_BOTH = {f"{point}/{file}": SET for point in ("run/pod", "cgroup") for file in CONTROLLERS}
CONTROL = "cgroup.subtree_control"
NOT_FOR_SLURM = f"warn 0-1: /{SLURM} has no → > /sys/fs/cgroup/system.slice/{CONTROL}"
NOT_FOR_PODS = f"warn 0-1: /{PODS} has no cpuset → +cpuset > /sys/fs/cgroup/{CONTROL}"


@pytest.mark.parametrize(
    ("mounts", "files", "expected"),
    [
        ("22 28 0:21 / /proc rw - proc proc rw", {}, "n/a: no cgroup is mounted"),
        (V1, {}, "ok: the cpuset controller is cgroup v1's, at /sys/fs/cgroup/cpus"),
        (V1_AND_V2, {}, "ok: the cpuset controller is cgroup v1's"),
        (V1_MEMORY, {}, "warn: no cpuset → mount -t cgroup -o cpuset"),
        (V2, {TOP: UNSET}, "warn: no cpuset → boot without"),
        (V2, {TOP: SET}, "ok: enabled (no job of Slurm or Kubernetes)"),
        (V2, {TOP: SET, SLURM: SET, PODS: SET}, "ok: kubepods.slice"),
        (f"{CILIUM}\n{V2}", {TOP: SET, PODS: UNSET}, NOT_FOR_PODS),
        (f"{CILIUM}\n{V2}", {TOP: SET, **CILIUMS}, "ok: enabled (no job of Slurm"),
        (f"{V2}\n{CILIUM}", CILIUMS, "ok: enabled (/run/cilium/cgroupv2/kubepods.slice)"),
        (f"{OF_POD}\n{ELSEWHERE}", OF_BOTH, "ok: enabled (/cgroup/kubepods.slice)"),
        (V2, {TOP: SET, SLURM: UNSET, PODS: SET}, NOT_FOR_SLURM),
        (V2, {TOP: SET, PODS: UNSET}, NOT_FOR_PODS),
    ],
)
def test_cgroups_that_cannot_confine_jobs_are_found(
    tmp_path: Path, mounts: str, files: Files, expected: str
) -> None:
    check("cgroup", facts_of(tmp_path, TWO, {"proc/self/mountinfo": mounts, **files}), expected)
