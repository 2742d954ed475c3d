"""Slurm's effect on jobs with GPUs: where its configuration lets CPU jobs and ranks run.

Sources: slurm.conf(5) (SelectTypeParameters, RestrictedCoresPerGPU); srun(1),
"--distribution"; cgroup.conf(5) (CgroupJobIdPaths).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from affinityd.doctor.checks.kernel import job_scopes
from affinityd.doctor.facts import (
    CheckResult,
    CheckResults,
    NodeFacts,
    NotApplicableError,
    named,
    ok,
    some,
    warn,
)
from affinityd.grouping import grouped
from affinityd.slurm.check import cpu_jobs
from affinityd.slurm.commands import FOLDERS, LocalSlurm, SlurmError, find_slurm
from affinityd.topology.model import Gpu, Topology, cpus_of


def _local_slurm(facts: NodeFacts) -> LocalSlurm:
    if not facts.tree.live:
        raise NotApplicableError("a captured or built-in machine has no slurmd")
    slurm = find_slurm(None, is_live=True)
    if slurm is None:
        raise NotApplicableError(f"no Slurm: there is no slurm.conf in {', '.join(FOLDERS)}")
    return slurm


BY_SLUID = re.compile(r"s[0-9A-Z]{13}")  #: a folder of a job of Slurm 26.05
BLOCK = "CR_CORE_DEFAULT_DIST_BLOCK"


def slurm_conf(facts: NodeFacts) -> CheckResults:
    """Judge what Slurm does by its configuration to jobs with GPUs, and to those who watch them."""
    findings = [*_folders(facts)]
    try:
        slurm = _local_slurm(facts)
        findings += _of_slurmctld(facts, slurm)
    except (NotApplicableError, SlurmError) as why:
        if not findings:
            raise NotApplicableError(str(why)) from None
    yield from findings
    yield ok("CPU jobs, ranks and the names of job folders go together with GPUs")


def _folders(facts: NodeFacts) -> Iterator[CheckResult]:
    for scope in job_scopes(facts):
        if scope.endswith("slurmstepd.scope"):
            jobs = facts.tree.list(scope.lstrip("/"), lambda name: bool(BY_SLUID.fullmatch(name)))
            if jobs:
                yield warn(
                    f"{scope} names jobs by SLUID, as {jobs[0]}: exporters that look for "
                    "job_NUMBER there find none",
                    "CgroupJobIdPaths=yes in cgroup.conf, from Slurm 26.05.2 on; it costs a "
                    "restart of slurmd without jobs; nothing, if no program looks: affinityd finds "
                    "their numbers",
                )


def _of_slurmctld(facts: NodeFacts, slurm: LocalSlurm) -> Iterator[CheckResult]:
    topology, config = facts.topology, slurm.config()
    node = slurm.nodes(slurm.node_name(topology.name))[0]
    parameters = config.get("SelectTypeParameters", "")
    are_packages = "_as_socket" not in config.get("SlurmdParameters", "")
    if are_packages and "affinity" in config.get("TaskPlugin", "") and BLOCK not in parameters:
        far, far_in_blocks = _far_ranks(topology)
        if len(far) > len(far_in_blocks):
            yield warn(
                f"SelectTypeParameters={parameters} deals cores to ranks from all sockets in turn: "
                f"with a rank for each GPU, those of {named(far)} start on another socket",
                f"add {BLOCK} there, and restart slurmctld; or srun "
                "--distribution=block:block; it costs jobs with few ranks the memory bandwidth of "
                "the other sockets; nothing, where affinityd's TaskProlog pins tasks",
                far,
            )
    if not node.restricts_cores:
        jobs = cpu_jobs(slurm, topology, node)
        taken = frozenset[int]().union(*jobs.values())
        for near, gpus in grouped(topology.gpus, lambda gpu: facts.near(gpu).cpus).items():
            cores = [core for core in topology.cores if core.cpus[0] in near]
            lost = [core for core in cores if not taken.isdisjoint(core.cpus)]
            if 2 * len(lost) > len(cores):
                numbers = sorted(job for job, cpus in jobs.items() if cpus & cpus_of(lost))
                yield warn(
                    f"jobs without GPUs ({some([*map(str, numbers)])}) have {len(lost)} of the "
                    f"{len(cores)} cores near {named(gpus)}: a job with these GPUs gets far ones",
                    f"RestrictedCoresPerGPU={max(1, len(cores) // len(gpus))}, or fewer, in the "
                    "node's line of slurm.conf; it costs CPU jobs these cores, even if GPUs idle",
                    gpus,
                )


def _far_ranks(topology: Topology) -> tuple[list[Gpu], list[Gpu]]:
    """Return the GPUs of which rank i's GPU i is on another socket: in turn, and in blocks."""
    package_of = {core.node: core.package for core in topology.cores}
    sockets = sorted({core.package for core in topology.cores if core.package is not None})
    gpus = [gpu for gpu in topology.gpus if gpu.vendor == topology.vendor]
    far: tuple[list[Gpu], list[Gpu]] = [], []
    for rank, gpu in enumerate(gpus):
        home = package_of.get(gpu.numa_node)
        in_turn, in_blocks = rank % len(sockets or [0]), rank * len(sockets) // len(gpus)
        for place, misplaced in zip((in_turn, in_blocks), far, strict=True):
            if home is not None and sockets[place] != home:
                misplaced.append(gpu)
    return far
