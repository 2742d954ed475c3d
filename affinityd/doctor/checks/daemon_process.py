"""Whether the daemon's process may see and use what it must: CPUs, processes, devices, users.

Sources: proc(5) for hidepid=, subset= and gid=, kernel fs/proc/base.c `has_pid_permissions`;
systemd.resource-control(5) for AllowedCPUs=, systemd.exec(5) for CPUAffinity=, ProcSubset=,
PrivateDevices= and PrivateUsers=; user_namespaces(7) for uid_map.
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet, parse_list, several
from affinityd.discovery.values import read_fields
from affinityd.doctor.conditions import of_daemon, of_daemon_process
from affinityd.doctor.facts import DaemonFacts, NodeFacts
from affinityd.doctor.result import CheckResult, CheckResults, not_applicable, ok, warn
from affinityd.linux.processes import INITIAL_PIDS

SYS_PTRACE = 1 << 19  #: kernel include/uapi/linux/capability.h
OFF = ("0", "off")  #: hidepid=: nothing is hidden
NO_EXEMPTION = ("4", "ptraceable")  #: hidepid=: from every user, whatever gid= says
PRIVATE = "tmpfs"  #: what systemd mounts at /dev, and what a container has there


@of_daemon_process
def daemon_cpuset(facts: NodeFacts, daemon: DaemonFacts, pid: int) -> CheckResults:
    """Judge whether the daemon itself is kept from CPUs."""
    online = facts.topology.online
    mask = _mask(facts, pid)
    if daemon.cpuset is not None and not online <= daemon.cpuset:
        yield warn(
            _confined(pid, "cpuset", daemon.cpuset, online),
            "take AllowedCPUs= from its unit and the slices above it; in Kubernetes the CPU "
            "manager takes CPUs from its pod: let firmware name the GPUs' nodes",
        )
    elif mask is not None and not online <= mask:
        yield warn(
            _confined(pid, "mask", mask, online),
            "take CPUAffinity= from its unit, or from /etc/systemd/system.conf",
        )
    elif mask is None:
        yield not_applicable(f"process {pid} does not tell its mask")
    else:
        yield ok(f"the daemon (process {pid}) may use every CPU that is online")


def _confined(pid: int, what: str, cpus: CpuSet, online: CpuSet) -> str:
    return (
        f"the {what} of the daemon (process {pid}) lacks {several('CPU', online - cpus)}: what "
        "NVML says of CPUs cannot be trusted there, and sysfs alone places the GPUs"
    )


def _mask(facts: NodeFacts, pid: int) -> CpuSet | None:
    """Return a process's mask: the line Cpus_allowed_list of its status."""
    fields = read_fields(facts.tree, f"proc/{pid}/status", "Cpus_allowed_list")
    return parse_list(fields["Cpus_allowed_list"]) if fields else None


@of_daemon
def hidepid(facts: NodeFacts, daemon: DaemonFacts) -> CheckResults:
    """Judge whether /proc shows the daemon, or where none is seen us, every user's processes."""
    pid = str(daemon.pid or "self")
    process = f"the daemon (process {pid})" if daemon.pid else "this process"
    proc = (facts.mounts(pid) or {}).get("/proc")
    if proc is None:
        yield not_applicable(f"the mounts of {process} cannot be read")
        return
    options = {name: value for name, _, value in (it.partition("=") for it in proc.options)}
    hidden, subset = options.get("hidepid", "off"), options.get("subset")
    wrong: list[CheckResult] = []
    if _is_in_other_namespace(facts, pid):
        wrong.append(_other_namespace(process))
    if hidden not in OFF and not _is_exempt(facts, pid, hidden, options.get("gid", "0")):
        wrong.append(_hidden(process, hidden))
    if subset:
        wrong.append(_subset(process, subset))
    yield from wrong or [ok(f"/proc shows {process} every process (hidepid={hidden})")]


def _is_in_other_namespace(facts: NodeFacts, pid: str) -> bool:
    """Whether a process is in a pid namespace below ours: only root sees the link of another's."""
    numbers = read_fields(facts.tree, f"proc/{pid}/status", "NSpid").get("NSpid", "").split()
    namespace = facts.tree.link(f"proc/{pid}/ns/pid")
    return len(numbers) > 1 or namespace not in {None, INITIAL_PIDS}


def _is_exempt(facts: NodeFacts, pid: str, hidden: str, gid: str) -> bool:
    """Whether a process sees all nevertheless: by its capability, or by its groups."""
    status = read_fields(facts.tree, f"proc/{pid}/status", "CapEff", "Gid", "Groups")
    if int(status.get("CapEff", "0"), 16) & SYS_PTRACE:
        return True
    groups = f"{status.get('Gid', '')} {status.get('Groups', '')}".split()
    return hidden not in NO_EXEMPTION and gid in groups


def _other_namespace(process: str) -> CheckResult:
    return warn(
        f"{process} is in a pid namespace of its own: it sees no process outside, and what NVML "
        "calls a process is another there",
        "hostPID: true in its pod; podman run --pid=host; take PrivatePIDs= from its unit",
    )


def _hidden(process: str, hidden: str) -> CheckResult:
    return warn(
        f"/proc is mounted with hidepid={hidden}: {process} does not see other users' processes, "
        "neither their cpusets nor their masks",
        "take ProtectProc= from its unit; where the machine's /proc is so: mount -o "
        "remount,hidepid=off /proc, or CapabilityBoundingSet=CAP_SYS_PTRACE in its unit",
    )


def _subset(process: str, subset: str) -> CheckResult:
    return warn(
        f"/proc is mounted with subset={subset}: {process} sees neither NVIDIA's driver nor "
        "kernel.numa_balancing",
        "take ProcSubset=pid from its unit",
    )


@of_daemon_process
def sandbox(facts: NodeFacts, _daemon: DaemonFacts, pid: int) -> CheckResults:
    """Judge whether the daemon has the device files, and the users, of this machine."""
    wrong = [*_devices(facts, pid), *_users(facts, pid)]
    yield from wrong or [
        ok(f"the daemon (process {pid}) has the users and devices of this machine")
    ]


def _devices(facts: NodeFacts, pid: int) -> CheckResults:
    """Yield that systemd gave it a /dev without GPUs. A container's is its runtime's affair."""
    theirs, ours = (facts.mounts(it) or {} for it in (pid, "self"))
    root, device_files = theirs.get("/"), theirs.get("/dev")
    is_container = (root and root.kind) != (ours["/"].kind if "/" in ours else None)
    is_private = device_files and device_files.kind == PRIVATE
    if is_private and device_files != ours.get("/dev") and not is_container:
        yield warn(
            f"the daemon (process {pid}) has a /dev of its own, without the files of GPUs: NVML "
            "does not answer it, and who holds such a file is not found",
            "take PrivateDevices= from its unit; DevicePolicy= and DeviceAllow= are there for that",
        )


def _users(facts: NodeFacts, pid: int) -> CheckResults:
    theirs, ours = (facts.tree.read(f"proc/{it}/uid_map") for it in (pid, "self"))
    if theirs is not None and theirs.split() != (ours or "").split():
        yield warn(
            f"the daemon (process {pid}) is in a user namespace of its own: users that it does not "
            "map look like nobody, and /audit tells them counts alone",
            "take PrivateUsers= from its unit; hostUsers: true in its pod, podman run without "
            "--userns",
        )
