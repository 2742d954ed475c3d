"""Whether the daemon's process may see and use its CPUs, processes, devices and users.

Sources: proc(5) for hidepid=, subset= and gid=, kernel fs/proc/base.c `has_pid_permissions`;
systemd.resource-control(5) for AllowedCPUs=, systemd.exec(5) for CPUAffinity=, ProcSubset=,
PrivateDevices= and PrivateUsers=; user_namespaces(7) for uid_map.
"""

from __future__ import annotations

from affinityd.cpuset import several
from affinityd.discovery.nvidia import VENDOR
from affinityd.discovery.values import read_fields
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResults, NotApplicableError, named, ok, warn
from affinityd.linux.processes import INITIAL_PIDS, mask_of
from affinityd.topology.model import BY_NVML, Gpu

SYS_PTRACE = 1 << 19  #: kernel include/uapi/linux/capability.h
OFF = ("0", "off")  #: hidepid=: nothing is hidden
NO_EXEMPTION = ("4", "ptraceable")  #: hidepid=: from every user, for any gid=
PRIVATE = "tmpfs"  #: the mounts of systemd and of a container at /dev


def daemon_cpuset(facts: NodeFacts) -> CheckResults:
    """Judge whether the daemon is kept from CPUs, where NVML alone knows where a GPU is."""
    pid, cpuset = facts.daemon_pid(), facts.own_daemon().cpuset
    mask = mask_of(pid)
    unit = "remove CPUAffinity= from its unit, or from /etc/systemd/system.conf"
    slices = (
        "remove AllowedCPUs= from its unit and the slices above it; in Kubernetes the "
        "CPU manager takes CPUs from its pod: use firmware that names the GPUs' nodes"
    )
    gpus = [it for it in facts.topology.gpus if it.vendor == VENDOR and _needs_nvml(it)]
    for what, cpus, remedy in (("cpuset", cpuset, slices), ("mask", mask, unit)):
        if cpus is not None and (missing := facts.topology.online - cpus):
            lacks = f"the {what} of the daemon (process {pid}) lacks {several('CPU', missing)}"
            if not gpus or not facts.has_several_nodes:
                yield ok(f"{lacks}; it needs none of them: sysfs says where the GPUs are")
                return
            yield warn(
                f"{lacks}: NVML leaves them out of its answers, and only it places {named(gpus)}",
                remedy,
                gpus,
            )
            return
    if mask is None:
        raise NotApplicableError(f"process {pid} does not show its mask")
    yield ok(f"the daemon (process {pid}) may use every CPU that is online")


def _needs_nvml(gpu: Gpu) -> bool:
    return gpu.numa_node is None or gpu.numa_source == BY_NVML


def hidepid(facts: NodeFacts) -> CheckResults:
    """Judge whether /proc shows every user's processes to the daemon, or else to this process."""
    daemon = facts.own_daemon()
    pid = str(daemon.pid or "self")
    process = f"the daemon (process {pid})" if daemon.pid else "this process"
    proc = facts.mounts(pid).get("/proc")
    if proc is None:
        raise NotApplicableError(f"the mounts of {process} cannot be read")
    status = read_fields(facts.tree, f"proc/{pid}/status", "NSpid", "CapEff", "Gid", "Groups")
    numbers = status.get("NSpid", "").split()
    namespace = facts.tree.link(f"proc/{pid}/ns/pid")  # only root sees the link of another's
    if len(numbers) > 1 or namespace not in {None, INITIAL_PIDS}:
        yield warn(
            (
                f"{process} is in a pid namespace of its own: it sees no process outside, and "
                "NVML's pids are other processes there"
            ),
            ("hostPID: true in its pod; podman run --pid=host; remove PrivatePIDs= from its unit"),
        )
    options = {name: value for name, _, value in (it.partition("=") for it in proc.options)}
    hidden = options.get("hidepid", "off")
    is_capable = int(status.get("CapEff", "0"), 16) & SYS_PTRACE
    groups = f"{status.get('Gid', '')} {status.get('Groups', '')}".split()
    is_exempt = hidden not in NO_EXEMPTION and options.get("gid", "0") in groups
    if hidden not in OFF and not (is_capable or is_exempt):
        yield warn(
            f"/proc is mounted with hidepid={hidden}: {process} does not see other users' "
            "processes, neither their cpusets nor their masks",
            (
                "remove ProtectProc= from its unit; if the machine's /proc is mounted so: "
                "mount -o remount,hidepid=off /proc, or CapabilityBoundingSet=CAP_SYS_PTRACE "
                "in its unit"
            ),
        )
    if subset := options.get("subset"):
        yield warn(
            f"/proc is mounted with subset={subset}: {process} sees neither NVIDIA's driver nor "
            "kernel.numa_balancing",
            "remove ProcSubset=pid from its unit",
        )
    yield ok(f"/proc shows {process} every process (hidepid={hidden})")


def sandbox(facts: NodeFacts) -> CheckResults:
    """Judge whether the daemon has the device files, and the users, of this machine.

    A /dev without GPUs is systemd's work; a container's is its runtime's affair.
    """
    pid = facts.daemon_pid()
    theirs, ours = facts.mounts(pid), facts.mounts("self")
    is_container = len({it["/"].kind if "/" in it else None for it in (theirs, ours)}) > 1
    devices = theirs.get("/dev")
    is_private = devices is not None and devices.kind == PRIVATE
    if is_private and devices != ours.get("/dev") and not is_container:
        yield warn(
            (
                f"the daemon (process {pid}) has a /dev of its own, without the files of GPUs: "
                "NVML does not answer it, and processes that hold such a file are not found"
            ),
            (
                "remove PrivateDevices= from its unit; DevicePolicy= and DeviceAllow= are "
                "there for that"
            ),
        )
    users, own_users = (facts.tree.read(f"proc/{it}/uid_map") for it in (pid, "self"))
    if users is not None and users.split() != (own_users or "").split():
        yield warn(
            (
                f"the daemon (process {pid}) is in a user namespace of its own: users that it "
                "does not map have no uid there, and /audit shows them only counts"
            ),
            (
                "remove PrivateUsers= from its unit; hostUsers: true in its pod, podman run "
                "without --userns"
            ),
        )
    yield ok(f"the daemon (process {pid}) has the users and devices of this machine")
