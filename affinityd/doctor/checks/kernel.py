"""How the kernel, NVIDIA's driver and cgroups treat the CPUs near GPUs.

Sources: kernel Documentation/admin-guide/sysctl/kernel.rst (numa_balancing), kernel-parameters.txt
(isolcpus=, nohz_full=), timers/no_hz.rst, core-api/irq/irq-affinity.rst;
ABI/testing/sysfs-devices-system-cpu (isolated), sysfs-bus-pci (msi_irqs); admin-guide/cgroup-v2.rst
(cgroup.controllers); https://slurm.schedmd.com/cgroup_v2.html; proc(5) for mounts.
"""

from __future__ import annotations

from affinityd.audit.remedies import reset_gpu
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.discovery.nvml import NvmlGpu
from affinityd.discovery.pci import DEVICES
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.tree import Tree, numbered, read_cpus, read_number
from affinityd.doctor.facts import (
    CheckResults,
    NodeFacts,
    NotApplicableError,
    fail,
    named,
    ok,
    warn,
)
from affinityd.linux.cgroup import Mount
from affinityd.topology.model import SYS, Gpu


def numa_balancing(facts: NodeFacts) -> CheckResults:
    """Judge whether the kernel moves pages between nodes by itself."""
    value = read_number(facts.tree, "proc/sys/kernel/numa_balancing")
    if value is None:
        raise NotApplicableError("there is no kernel.numa_balancing to read")
    unmaps_pages = value & 1  # bit 1; bit 2 is about memory tiers
    if unmaps_pages and facts.has_several_nodes:
        if not facts.topology.gpus:
            raise NotApplicableError(f"kernel.numa_balancing is {value}, and there is no GPU")
        yield warn(
            f"kernel.numa_balancing is {value}: the kernel unmaps pages of running ranks to "
            "see which CPUs use them, which stalls the ranks for milliseconds",
            "sysctl -w kernel.numa_balancing=0, and the same line in /etc/sysctl.d",
        )
    yield ok(f"kernel.numa_balancing is {value}")


def isolcpus(facts: NodeFacts) -> CheckResults:
    """Judge whether the kernel's scheduler or tick leaves out CPUs that ranks get."""
    isolated = read_cpus(facts.tree, f"{CPUS}/isolated")
    without_tick = read_cpus(facts.tree, f"{CPUS}/nohz_full")
    if isolated is None and without_tick is None:
        raise NotApplicableError("there is no /sys/devices/system/cpu/isolated to read")
    mount = _cgroup2(facts)
    folder = mount.point.lstrip("/") if mount else "sys/fs/cgroup"
    of_partitions = read_cpus(facts.tree, f"{folder}/cpuset.cpus.isolated") or frozenset()
    by_kernel = isolated or frozenset()
    remove = "remove them from isolcpus= on the kernel's command line"
    end = "write root or member into cpuset.cpus.partition of the partition's cgroup"
    for source, cpus, remedy in (
        ("isolcpus=", by_kernel, remove),
        ("an isolated cpuset partition", of_partitions - by_kernel, end),
    ):
        gpus, taken = facts.used_by_ranks(cpus)
        if gpus:
            yield fail(
                f"{source} takes {several('CPU', taken)} near {named(gpus)} out of load "
                "balancing: all threads of a rank stay on the CPU where they began",
                f"{remedy}, or reserve them: --reserved-cpus {format_list(taken)}",
                gpus,
            )
    gpus, taken = facts.used_by_ranks(without_tick or frozenset())
    if gpus:
        yield warn(
            f"nohz_full= has {several('CPU', taken)} near {named(gpus)}: every system call costs "
            "more there, and nothing is gained if a CPU has more than one thread to run",
            "remove them from nohz_full= on the kernel's command line",
            gpus,
        )
    yield ok("ranks get no CPU of isolcpus= or nohz_full=")


def nvml(facts: NodeFacts) -> CheckResults:
    """Judge whether NVML answers, for every GPU, and may be called at all."""
    report = facts.nvml
    if not _nvidia(facts) and not (report and report.gpus):
        raise NotApplicableError("there is no NVIDIA GPU")
    if facts.maintenance is not None:
        raise NotApplicableError(f"NVML was not asked: {facts.maintenance}")
    if report is None:
        raise NotApplicableError("NVML was not asked: the machine is replayed without its answers")
    if report.gpus is None:
        yield warn(
            f"{report.error}: plans are made from sysfs, without MIG instances",
            report.remedy
            or "modprobe nvidia loads NVIDIA's driver, where it is installed; after an upgrade "
            "reload it, or reboot; nvidia-smi says whether it works",
            _nvidia(facts),
        )
    for gpu, answer in _reports(facts):
        if answer.error:
            yield fail(
                f"{named([gpu])} ({gpu.pci_bus_id}): NVML says {answer.error}",
                reset_gpu(gpu.pci_bus_id),
                [gpu],
            )
    yield ok(f"NVML answers; driver {report.driver_version or 'unknown'}")


def _nvidia(facts: NodeFacts) -> list[Gpu]:
    return [gpu for gpu in facts.topology.gpus if gpu.vendor == "nvidia"]


def _reports(facts: NodeFacts) -> list[tuple[Gpu, NvmlGpu]]:
    if facts.nvml is None:
        return []
    by_index = {report.index: report for report in facts.nvml.gpus or ()}
    return [(gpu, by_index[gpu.index]) for gpu in _nvidia(facts) if gpu.index in by_index]


def irqbalance(facts: NodeFacts) -> CheckResults:
    """Judge whether near CPUs handle the interrupts of GPUs and of the NICs beside them."""
    topology = facts.topology
    devices = [
        (f"{named([gpu])} ({gpu.pci_bus_id})", gpu.pci_bus_id, [gpu]) for gpu in facts.some_gpus()
    ]
    if not facts.tree.list("proc/irq"):
        raise NotApplicableError("there is no /proc/irq to read")
    for nic in topology.nics:
        name = f"adapter {', '.join(nic.names) or nic.kind} ({nic.pci_bus_id})"
        gpus = [gpu for gpu in topology.gpus if topology.nearness(gpu, nic) != SYS]
        if gpus:
            devices.append((name, nic.pci_bus_id, gpus))
    for name, address, gpus in devices:
        near = facts.near(*gpus).cpus
        cpus = _interrupt_cpus(facts.tree, address)
        if near and cpus and near.isdisjoint(cpus):
            yield warn(
                f"{name}: its interrupts are handled on {several('CPU', cpus)}, but CPUs "
                f"{format_list(near)} are near",
                "systemctl enable --now irqbalance, and let it use near CPUs; or set "
                "smp_affinity_list in /proc/irq",
                gpus,
            )
    yield ok("near CPUs handle all interrupts of GPUs, and of adapters beside them")


def _interrupt_cpus(tree: Tree, address: str) -> CpuSet:
    cpus = frozenset[int]()
    for number in numbered(tree, f"{DEVICES}/{address}/msi_irqs", ""):
        folder = f"proc/irq/{number}"
        now = read_cpus(tree, f"{folder}/effective_affinity_list")  # empty before the first use
        cpus |= now or read_cpus(tree, f"{folder}/smp_affinity_list") or frozenset()
    return cpus


def cgroup(facts: NodeFacts) -> CheckResults:
    """Judge whether cgroups can keep jobs on their CPUs."""
    mounts = [mount for mount in facts.mounts if mount.kind.startswith("cgroup")]
    if not mounts:
        raise NotApplicableError("no cgroup is mounted, by /proc/self/mountinfo")
    for mount in mounts:
        if mount.kind == "cgroup" and "cpuset" in mount.options:
            yield ok(f"the cpuset controller is cgroup v1's, at {mount.point}")
            return
    v2 = _cgroup2(facts)
    if v2 is None or "cpuset" not in _controllers(facts.tree, v2.point):
        yield warn(
            "no cpuset controller: no scheduler can confine jobs to CPUs, and the daemon cannot "
            "read cpusets",
            "boot without cgroup_disable=cpuset; on cgroup v1: mount -t cgroup -o cpuset",
        )
        return
    scopes = _job_scopes(facts, v2)
    for scope in scopes:
        if "cpuset" not in _controllers(facts.tree, scope):
            above = scope.rpartition("/")[0]
            yield warn(
                f"{scope}/cgroup.controllers has no cpuset: jobs are not confined to their CPUs",
                f"echo +cpuset > {above}/cgroup.subtree_control; to keep it, with Slurm: "
                "Delegate=yes in slurmd's unit and ConstrainCores=yes in cgroup.conf; "
                "with Kubernetes: restart kubelet, which enables it",
                facts.topology.gpus,
            )
    jobs = ", ".join(scopes) or "no job of Slurm or Kubernetes"
    yield ok(f"the cpuset controller of cgroup v2 is enabled ({jobs})")


def _job_scopes(facts: NodeFacts, mount: Mount) -> list[str]:
    """Return the folders of cgroup v2 where schedulers keep their jobs."""
    names = facts.tree.list(mount.point.lstrip("/"))
    slices = [f"{mount.point}/{name}" for name in names if name.endswith(".slice")]
    scopes = []
    for place in (mount.point, *slices):  # in a slice such as system.slice
        for name in facts.tree.list(place.lstrip("/")):
            if name.endswith(("slurmstepd.scope", "kubepods.slice", "kubepods")):
                scopes.append(f"{place}/{name}")  # noqa: PERF401 - two loops in one line are denser
    return scopes


def _cgroup2(facts: NodeFacts) -> Mount | None:
    """Return the mount of cgroup v2 to read: Cilium makes a second mount, which may come first."""
    mounts = [mount for mount in facts.mounts if mount.kind == "cgroup2"]

    def preference(mount: Mount) -> tuple[bool, bool, bool]:
        is_readable = bool(_controllers(facts.tree, mount.point))
        return is_readable, mount.point == "/sys/fs/cgroup", mount.root == "/"

    return max(mounts, key=preference, default=None)  # among equal mounts the first


def _controllers(tree: Tree, folder: str) -> list[str]:
    return (tree.read(f"{folder.lstrip('/')}/cgroup.controllers") or "").split()
