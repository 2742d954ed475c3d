"""Whether the daemon may see what it must: every CPU, and every user's processes.

Sources: proc(5) for hidepid=, subset= and gid=, kernel fs/proc/base.c `has_pid_permissions`;
systemd.resource-control(5) for AllowedCPUs=, systemd.exec(5) for CPUAffinity= and ProcSubset=.
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet, parse_list, several
from affinityd.discovery.values import read_fields
from affinityd.doctor.checks.daemon import REPLAYED
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResult, CheckResults, not_applicable, ok, warn
from affinityd.linux.processes import INITIAL_PIDS

SYS_PTRACE = 1 << 19  #: kernel include/uapi/linux/capability.h
OFF = ("0", "off")  #: hidepid=: nothing is hidden
NO_EXEMPTION = ("4", "ptraceable")  #: hidepid=: from everybody, whatever gid= says


def daemon_cpuset(facts: NodeFacts) -> CheckResults:
    """Judge whether the daemon itself is kept from CPUs."""
    daemon = facts.daemon
    if daemon is None or daemon.pid is None:
        yield not_applicable("no daemon's process is seen" if daemon else REPLAYED)
        return
    online = facts.topology.online
    mask = _mask(facts, daemon.pid)
    if daemon.cpuset is not None and not online <= daemon.cpuset:
        yield warn(
            _confined(daemon.pid, "cpuset", daemon.cpuset, online),
            "take AllowedCPUs= from its unit and the slices above it; in Kubernetes the CPU "
            "manager takes CPUs from its pod: let firmware name the GPUs' nodes",
        )
    elif mask is not None and not online <= mask:
        yield warn(
            _confined(daemon.pid, "mask", mask, online),
            "take CPUAffinity= from its unit, or from /etc/systemd/system.conf",
        )
    elif mask is None:
        yield not_applicable(f"process {daemon.pid} does not tell its mask")
    else:
        yield ok(f"the daemon (process {daemon.pid}) may use every CPU that is online")


def _confined(pid: int, what: str, cpus: CpuSet, online: CpuSet) -> str:
    return (
        f"the {what} of the daemon (process {pid}) lacks {several('CPU', online - cpus)}: what "
        "NVML says of CPUs cannot be trusted there, and sysfs alone places the GPUs"
    )


def _mask(facts: NodeFacts, pid: int) -> CpuSet | None:
    """Return a process's mask: the line Cpus_allowed_list of its status."""
    fields = read_fields(facts.tree, f"proc/{pid}/status", "Cpus_allowed_list")
    return parse_list(fields["Cpus_allowed_list"]) if fields else None


def hidepid(facts: NodeFacts) -> CheckResults:
    """Judge whether /proc shows the daemon, or where none is seen us, every user's processes."""
    if facts.daemon is None:
        yield not_applicable(REPLAYED)
        return
    pid = str(facts.daemon.pid or "self")
    who = f"the daemon (process {pid})" if facts.daemon.pid else "this process"
    proc = (facts.mounts(pid) or {}).get("/proc")
    if proc is None:
        yield not_applicable(f"the mounts of {who} cannot be read")
        return
    options = {name: value for name, _, value in (it.partition("=") for it in proc.options)}
    hidden, subset = options.get("hidepid", "off"), options.get("subset")
    wrong = list(_namespace(facts, pid, who))
    if hidden not in OFF and not _is_exempt(facts, pid, hidden, options.get("gid", "0")):
        wrong.append(_hidden(who, hidden))
    if subset:
        wrong.append(_part(who, subset))
    yield from wrong or [ok(f"/proc shows {who} every process (hidepid={hidden})")]


def _namespace(facts: NodeFacts, pid: str, who: str) -> CheckResults:
    if _is_apart(facts, pid):
        yield warn(
            f"{who} is in a pid namespace of its own: it sees no process outside, and what NVML "
            "calls a process is another there",
            "hostPID: true in its pod; podman run --pid=host; take PrivatePIDs= from its unit",
        )


def _is_apart(facts: NodeFacts, pid: str) -> bool:
    """Whether a process is in a pid namespace below ours: only root sees the link of another's."""
    numbers = read_fields(facts.tree, f"proc/{pid}/status", "NSpid").get("NSpid", "").split()
    namespace = facts.tree.link(f"proc/{pid}/ns/pid")
    return len(numbers) > 1 or namespace not in {None, INITIAL_PIDS}


def _hidden(who: str, hidden: str) -> CheckResult:
    return warn(
        f"/proc is mounted with hidepid={hidden}: {who} does not see other users' processes, "
        "neither their cpusets nor their masks",
        "take ProtectProc= from its unit; where the machine's /proc is so: mount -o "
        "remount,hidepid=off /proc, or CapabilityBoundingSet=CAP_SYS_PTRACE in its unit",
    )


def _part(who: str, subset: str) -> CheckResult:
    return warn(
        f"/proc is mounted with subset={subset}: {who} sees neither NVIDIA's driver nor "
        "kernel.numa_balancing",
        "take ProcSubset=pid from its unit",
    )


def _is_exempt(facts: NodeFacts, pid: str, hidden: str, gid: str) -> bool:
    """Whether a process sees all nevertheless: by its capability, or by its groups."""
    status = read_fields(facts.tree, f"proc/{pid}/status", "CapEff", "Gid", "Groups")
    if int(status.get("CapEff", "0"), 16) & SYS_PTRACE:
        return True
    groups = f"{status.get('Gid', '')} {status.get('Groups', '')}".split()
    return hidden not in NO_EXEMPTION and gid in groups
