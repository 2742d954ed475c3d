"""Whether Slurm keeps CPU jobs off cores near GPUs, and its TaskProlog pins tasks.

Sources: slurm.conf(5) (RestrictedCoresPerGPU, TaskProlog), scontrol(1); Slurm's src/api/job_info.c
(CPU_IDs= number the threads core by core, in the order of Cores=).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from affinityd import __version__
from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.doctor.facts import (
    CheckResults,
    NodeFacts,
    NotApplicableError,
    named,
    ok,
    warn,
)
from affinityd.slurm.commands import CONF_FOLDERS, LocalSlurm, ShownNode, find_slurm
from affinityd.slurm.cores import SlurmCores
from affinityd.topology.model import Gpu, Topology, cpus_of


def _local_slurm(facts: NodeFacts) -> LocalSlurm:
    if not facts.tree.live:
        raise NotApplicableError("a captured or built-in machine has no slurmd")
    slurm = find_slurm(None, is_live=True)
    if slurm is None:
        raise NotApplicableError(f"no Slurm: there is no slurm.conf in {', '.join(CONF_FOLDERS)}")
    return slurm


def slurm_conf(facts: NodeFacts) -> CheckResults:
    """Judge whether Slurm reserves cores near GPUs for jobs with GPUs."""
    slurm = _local_slurm(facts)
    topology = facts.topology
    node = slurm.nodes(slurm.node_name(topology.name))[0]
    jobs = {} if node.restricts_cores else cpu_jobs(slurm, topology, node)
    taken = frozenset[int]().union(*jobs.values())
    gpus_near: dict[CpuSet, list[Gpu]] = {}
    for gpu in topology.gpus:
        gpus_near.setdefault(facts.near(gpu).cpus, []).append(gpu)
    for near, gpus in gpus_near.items():
        cores = [core for core in topology.cores if core.cpus[0] in near]
        lost = [core for core in cores if not taken.isdisjoint(core.cpus)]
        if 2 * len(lost) > len(cores):
            numbers = [job for job, cpus in jobs.items() if cpus & cpus_of(lost)]
            yield warn(
                f"CPU jobs ({format_list(numbers)}) have {len(lost)} of the "
                f"{len(cores)} cores near {named(gpus)}: a job with these GPUs gets far CPUs",
                f"RestrictedCoresPerGPU={max(1, len(cores) // len(gpus))}, or fewer, in the "
                "node's line of slurm.conf; CPU jobs lose these cores, even while GPUs idle",
                gpus,
            )
    yield ok("jobs without GPUs leave most cores near each GPU free")


def cpu_jobs(slurm: LocalSlurm, topology: Topology, node: ShownNode) -> Mapping[int, CpuSet]:
    """Return the CPUs of each running job without GPUs on this node. Raises SlurmError."""
    order = SlurmCores(topology).order
    jobs = {}
    for line in slurm.scontrol("--details", "--oneliner", "show", "job").splitlines():
        job = re.match(r"JobId=(\d+) ", line)
        if job is None or " JobState=RUNNING " not in line:
            continue
        details = re.findall(r" Nodes=(\S+) CPU_IDs=(\S+) Mem=\S+ GRES=(\S*)", line)
        for hosts, numbers, gres in details:
            has_gpus = re.search(r"(?:^|,)gpu(?::[^(),]+)?\(IDX:\d", gres)
            if has_gpus or not _has_node(slurm, hosts, node.name):
                continue
            cores = {number // node.threads for number in parse_list(numbers)}
            jobs[int(job[1])] = cpus_of(order[core] for core in cores if core < len(order))
    return jobs


def _has_node(slurm: LocalSlurm, hosts: str, name: str) -> bool:
    """Whether a node is in a list of nodes, as gpu[01-04,7],login2. Raises SlurmError."""
    if "[" not in hosts and "," not in hosts:
        return hosts == name
    begins = re.findall(r"(?:^|,)([^,\[]+)", hosts)
    if not any(name.startswith(begin) for begin in begins):
        return False
    return name in slurm.scontrol("show", "hostnames", hosts).split()


def slurm_scripts(facts: NodeFacts) -> CheckResults:
    """Judge whether slurm.conf's TaskProlog= runs this version's script, and can run it."""
    config = _local_slurm(facts).scontrol("show", "config")
    setting = re.search(r"^TaskProlog\S*\s*=\s*(/\S+)", config, re.MULTILINE)
    if setting is None:
        raise NotApplicableError("slurm.conf has no TaskProlog=")
    path = setting[1]
    content = facts.tree.read_bytes(path.lstrip("/"))
    if content is None:
        yield warn(
            f"TaskProlog={path} cannot be read: each task dies",
            "put a script there, for all users to read and execute, or change slurm.conf",
        )
        return
    text = content.decode(errors="replace")  # a site's own TaskProlog may be a program
    called = re.search(r"/[^\s'\"]+/task_prolog\.sh", text)  # a site's own script may call ours
    if called is not None:
        path = called[0]
        text = facts.tree.read(path.lstrip("/")) or ""
    if "AFFINITYD_UNPINNED" not in text:
        raise NotApplicableError(f"TaskProlog={setting[1]} does not run affinityd's script here")
    version = re.search(r"^# affinityd (\S+)$", text, re.MULTILINE)
    release = version[1] if version else "0.2 or older"
    install = f"install the scripts of {__version__}, also pinning.sh beside task_prolog.sh"
    if release != __version__:
        yield warn(
            f"{path} is of affinityd {release}, this is {__version__}: tasks may not be pinned",
            install,
        )
    beside = f"{path.rpartition('/')[0]}/pinning.sh"
    if facts.tree.read(beside.lstrip("/")) is None:
        yield warn(f"{beside} cannot be read: no task is pinned", install)
    yield ok(f"{path} is of affinityd {release}")
