"""Memory of GPUs that the machine shows as NUMA nodes: NVIDIA's Grace.

Sources: NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c (params) and
os-registry.c (CoherentGPUMemoryMode); NVIDIA's "Understanding Memory Management on
Hardware-Coherent Platforms"; kernel Documentation/filesystems/proc.rst (Mems_allowed_list),
ABI/stable/sysfs-devices-node (meminfo).
"""

from __future__ import annotations

import re
from contextlib import suppress

from affinityd.audit.gather import membership
from affinityd.cpuset import parse_list, several
from affinityd.discovery.tree import FolderTree, number, numbered, read_fields
from affinityd.doctor.facts import (
    NO_ROOT,
    CheckResults,
    NodeFacts,
    NotApplicableError,
    named,
    ok,
    some,
    warn,
)
from affinityd.text import amount

MODE = "CoherentGPUMemoryMode"
BY_DRIVER = f"options nvidia NVreg_{MODE}=driver in /etc/modprobe.d, and load the driver again"
COST = (
    "then no program can place memory on a GPU by numactl or mbind, and memory that the system "
    "gave does not migrate there"
)
#: A GPU that shares its memory with a Grace: NVIDIA GH200 120GB, NVIDIA GB300.
COHERENT = re.compile(r"\bG[BH]\d00\b")

LEAST = 2**30  #: bytes of other use in the memory of GPUs that are worth a line


def gpu_memory(facts: NodeFacts) -> CheckResults:
    """Tell whose the memory of coherent GPUs is, and judge what else the system puts there."""
    topology = facts.topology
    gpus = [gpu for gpu in topology.gpus if COHERENT.search(gpu.model or "")]
    if not gpus:
        raise NotApplicableError("no GPU shares its memory with CPUs, as on Grace")
    params = read_fields(facts.tree, "proc/driver/nvidia/params", MODE)
    mode = params.get(MODE, "not known").strip('"') or "not set"
    nodes = {*topology.nodes_with_memory} - {*topology.nodes_with_cpus}
    if not nodes:
        yield ok(f"{MODE} is {mode}: memory of {named(gpus)} is the driver's, and no NUMA node")
        return
    where = several("NUMA node", nodes)
    if mode == "not set":
        yield warn(
            f"{MODE} is not set: the driver shows memory of {named(gpus)} as {where}, and from "
            "R615 on keeps it by default: an upgrade changes the node",
            f"set it before: {BY_DRIVER} ({COST}), or =numa to stay",
            gpus,
        )
    for key, kind in (("FilePages", "page cache"), ("AnonPages", "ordinary memory of programs")):
        used = {}
        for node in nodes:
            name, file = f"Node {node} {key}", f"sys/devices/system/node/node{node}/meminfo"
            kib = read_fields(facts.tree, file, name).get(name, "").removesuffix(" kB")
            if size := 1024 * (number(kib) or 0):
                used[node] = size
        if sum(used.values()) >= LEAST:
            yield warn(
                f"{kind} takes {amount(sum(used.values()))} of the memory of GPUs, on "
                f"{several('node', used)}",
                "echo 1 > /proc/sys/vm/drop_caches frees it for now, and what is read next is "
                f"slow; for good: {BY_DRIVER}; {COST}"
                if key == "FilePages"
                else "affinityd exec --memory bind keeps a program on the nodes of CPUs, where a "
                "program may run out of memory; nothing, if it placed it there on purpose, or "
                f"its GPU's use moved it; for good: {BY_DRIVER}; {COST}",
                gpus,
            )
    if jobs := _jobs_on(facts, nodes):
        yield warn(
            f"Mems_allowed of {some(jobs)} has {where}: where memory of CPUs "
            "is full, that of GPUs is taken",
            "affinityd exec --memory bind in the job, which ends one that needs more instead; in "
            f"Kubernetes memoryManagerPolicy: Static; or {BY_DRIVER}; {COST}",
            gpus,
        )
    yield ok(f"{MODE} is {mode}: memory of {named(gpus)} is {where}, little of it otherwise used")


def _jobs_on(facts: NodeFacts, nodes: set[int]) -> list[str]:
    """Return the jobs of which a process may take memory of these nodes: `slurm 7`."""
    tree, jobs = facts.tree, set()
    root = tree.root if isinstance(tree, FolderTree) else NO_ROOT
    for pid in numbered(tree, "proc", ""):
        its = membership(tree.read(f"proc/{pid}/cgroup") or "", root)
        if its.job:
            status = read_fields(tree, f"proc/{pid}/status", "Mems_allowed_list")
            with suppress(ValueError):
                if nodes & parse_list(status.get("Mems_allowed_list", "")):
                    jobs.add(f"{its.owner}")
    return sorted(jobs)
