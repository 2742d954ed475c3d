"""Compares a node's GPUs in Slurm with the lines of gres.conf that affinityd prints for it.

Only Slurm is asked: slurmd for its GPUs, slurmctld for the node's state and for jobs.

Sources: scontrol(1); Slurm's src/api/job_info.c (CPU_IDs= number the threads core by core, in the
order of Cores=; IDX: of GPUs).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from affinityd.cpuset import CpuSet, format_list, named_nodes, named_packages, parse_list
from affinityd.slurm.commands import GresEntry, LocalSlurm, ShownNode, SlurmdGres
from affinityd.slurm.cores import SlurmCores
from affinityd.slurm.gres_conf import GresConf, device_file, gres_of
from affinityd.text import count
from affinityd.topology.model import Gpu, Topology, cpus_of
from affinityd.topology.nearness import vicinity

PRINTED = "affinityd slurm gres-conf prints"
REMEDY = "give it --gres-flags=enforce-binding, and gres.conf the right Cores="

#: The files that MultipleFiles= names besides the GPU's own.
MIG_FILES = "/dev/nvidia-caps/"

_JOB = re.compile(r"JobId=(\d+) ")
_DETAILS = re.compile(r" Nodes=(\S+) CPU_IDs=(\S+) Mem=\S+ GRES=(\S*)")
_INDEXES = re.compile(r"(?:^|,)gpu(?::[^(),]+)?\(IDX:([\d,-]+)\)")


def differences(conf: GresConf, slurmd: SlurmdGres) -> Iterator[str]:
    """Yield slurmd's errors and, if it read the whole file, how its GPUs differ from the lines."""
    yield from slurmd.messages
    if not slurmd.is_complete:
        return
    devices = [(file, entry) for entry in slurmd.entries for file in entry.files]
    files = {file: gpu for gpu in conf.topology.gpus if (file := device_file(gpu))}
    for file, gpu in files.items():
        entries = [entry for device, entry in devices if device == file]
        is_twice = len(entries) > 1 and not all(entry.is_slice for entry in entries)
        wrong = [entry for entry in entries if is_twice or not _fits(conf, gpu, entry)]
        if wrong or not entries:
            has = " and ".join(map(str, dict.fromkeys(wrong))) or f"no {file}"
            times = f" {len(entries)} times" if is_twice else ""
            yield f"gpu {gpu.index}: Slurm has {has}{times}; {PRINTED} {conf.line(gpu)}"
    if conf.unknown:
        return
    for file, entry in devices:
        if file not in files and not (entry.is_slice and MIG_FILES in file):
            yield f"{file} is not a GPU of this node; there are {', '.join(files) or 'none'}"
    order = [file for file, _ in devices]
    if sorted(order) == sorted(files) and order != [*files] and not conf.has_several_types:
        yield f"Slurm's order is {', '.join(order)}; {PRINTED} {', '.join(files)}"


def _fits(conf: GresConf, gpu: Gpu, entry: GresEntry) -> bool:
    """Whether an entry is as a GPU's line: cores of its package do, too.

    slurmd drops types, and says so, where Gres= has none. A GPU of an unknown NUMA node has no
    right cores.
    """
    affinity = conf.affinities[gpu.key]
    has_types = any(conf.gres or ()) and not entry.is_slice
    return (
        entry.name == "gpu"
        and (not has_types or entry.kind == conf.types.of.get(gpu.key, entry.kind))
        and (not affinity.near or entry.cores in {affinity.right, *affinity.near})
    )


def counts(conf: GresConf, node: ShownNode) -> Iterator[str]:
    """Yield how slurmctld's numbers of GPUs and cores differ from the node's."""
    gpus, kinds, cores = conf.topology.gpus, conf.types.of, len(conf.topology.cores)
    if all(gpu.key in kinds and not gpu.mig for gpu in gpus):
        right, has = Counter(kinds[gpu.key] for gpu in gpus), node.gres
        if right != has:
            yield f"slurmctld has {gres_of(has)}; right is {gres_of(right)}"
    if node.cores not in {0, cores}:
        yield (
            f"slurmctld counts {count(node.cores, 'core')}, and the node has {cores}: it takes "
            "Cores= for other cores; write the node's line as `slurmd -C` prints it"
        )


class SlurmJob(NamedTuple):
    """A running job's part on one node."""

    number: int
    node: str
    cpus: CpuSet  #: numbers of threads, core by core in Slurm's order
    gpus: CpuSet  #: Slurm's numbers


def _running_jobs(slurm: LocalSlurm, without_gpus_on: str = "") -> Iterator[SlurmJob]:
    """Yield the running jobs with GPUs, or those without, on a node."""
    for line in slurm.scontrol("--details", "--oneliner", "show", "job").splitlines():
        job = _JOB.match(line)
        if job is None or " JobState=RUNNING " not in line:
            continue
        for hosts, cpus, gres in _DETAILS.findall(line):
            gpus = frozenset[int]().union(*map(parse_list, _INDEXES.findall(gres)))
            begins = any(map(without_gpus_on.startswith, re.findall(r"(?:^|,)([^,\[]+)", hosts)))
            if bool(gpus) == bool(without_gpus_on) or (without_gpus_on and not begins):
                continue
            is_list = {*"[,"} & {*hosts}  # gpu[01-04,7],login2
            names = slurm.scontrol("show", "hostnames", hosts).split() if is_list else [hosts]
            for name in names:
                yield SlurmJob(int(job[1]), name, parse_list(cpus), gpus)


def in_slurms_numbers(topology: Topology, slurmd: SlurmdGres | None = None) -> Mapping[int, Gpu]:
    """Return the GPUs under Slurm's numbers: slurmd's order, else that of the bus."""
    if slurmd is None:
        return {gpu.index: gpu for gpu in topology.gpus}
    files = {device_file(gpu): gpu for gpu in topology.gpus}
    order = [file for entry in slurmd.entries for file in entry.files]
    return {number: files[file] for number, file in enumerate(order) if file in files}


def far(topology: Topology, gpus: Mapping[int, Gpu], threads: int, job: SlurmJob) -> Iterator[str]:
    """Yield each GPU of a job with none of the job's CPUs near it.

    `gpus`: by Slurm's numbers; `threads`: of a core, as slurmctld counts them.
    """
    cpus = _cpus(topology, threads, job)
    for number in sorted(job.gpus):
        gpu = gpus.get(number)
        near = vicinity(topology, [gpu]) if gpu else None
        if gpu and near and near.nodes and cpus and cpus.isdisjoint(near.cpus):
            home_cpus = topology.cpus_of_node(gpu.numa_node)
            home = _place(topology, home_cpus) if home_cpus else named_nodes([gpu.numa_node])
            yield (
                f"job {job.number} has gpu {gpu.index} ({home}) and CPUs {format_list(cpus)} "
                f"({_place(topology, cpus)}), none of them near it; {REMEDY}"
            )


def _cpus(topology: Topology, threads: int, job: SlurmJob) -> CpuSet:
    order = SlurmCores(topology).order
    places = {number // threads for number in job.cpus}
    return cpus_of(order[place] for place in places if place < len(order))


def cpu_jobs(slurm: LocalSlurm, topology: Topology, node: ShownNode) -> Mapping[int, CpuSet]:
    """Return the CPUs of each running job without GPUs on this node. Raises SlurmError."""
    jobs = [job for job in _running_jobs(slurm, node.name) if job.node == node.name]
    return {job.number: _cpus(topology, node.threads, job) for job in jobs}


def _place(topology: Topology, cpus: CpuSet) -> str:
    cores = [core for core in topology.cores if not cpus.isdisjoint(core.cpus)]
    packages = named_packages({core.package for core in cores})
    nodes = named_nodes({core.node for core in cores})
    return f"{packages}, {nodes}" if packages else nodes


class JobsReport(NamedTuple):
    """The running jobs with GPUs, on some nodes."""

    judged: int = 0
    far: Sequence[str] = ()  #: a text for each GPU that is far from its job
    left_out: Sequence[str] = ()  #: nodes with such jobs that are unlike the known machine


def judge_jobs(
    slurm: LocalSlurm, topology: Topology, nodes: Sequence[ShownNode], gpus: Mapping[int, Gpu]
) -> JobsReport:
    """Judge the jobs on nodes that, by slurmctld, have as many cores and GPUs as this machine.

    `gpus`: by Slurm's numbers. Raises SlurmError.
    """
    judged, left_out = 0, set()
    texts: list[str] = []
    like_this = len(topology.cores), len(topology.gpus)
    by_name = {node.name: node for node in nodes}
    for job in _running_jobs(slurm):
        node = by_name.get(job.node)
        if node and (node.cores, sum(node.gres.values())) == like_this:
            judged += 1
            where = f"{node.name}: " if len(nodes) > 1 else ""
            texts += (f"{where}{text}" for text in far(topology, gpus, node.threads, job))
        elif node:
            left_out.add(node.name)
    return JobsReport(judged, texts, sorted(left_out))
