"""What the daemon needs for each thing that it does: measured, by `test_privileges_*.py`.

The unit, the chart and docs/privileges.md are held to this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PID = "PID"  #: in a path of /proc: each process that is looked at


@dataclass(frozen=True)
class Feature:
    """One thing that the daemon does, and what that takes besides what it builds on."""

    on: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()  #: without CAP_
    calls: tuple[str, ...] = ()  #: system calls that @system-service lacks, or the unit leaves out
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()  #: of the node's, by the name of their file in /proc/PID/ns
    without: str = ""  #: what it says, and where, when any of it is missing


FEATURES = {
    "a socket": Feature(writes=("/run/affinityd",), without="it ends with one line"),
    "TCP": Feature(on=("a socket",)),
    "metrics": Feature(on=("a socket",)),
    "CPUs": Feature(
        on=("a socket",),
        reads=("/sys/devices/system/cpu",),
        without="503 until it can read them; the log says why",
    ),
    "GPUs": Feature(
        on=("CPUs",),
        reads=("/sys/bus/pci/devices",),
        without="those alone that NVML names",
    ),
    "plans": Feature(
        on=("GPUs",),
        reads=("/sys/devices/system/node",),
        without="one node that has all CPUs",
    ),
    "who asks": Feature(
        on=("GPUs",),
        reads=("/proc/PID/cgroup", "/proc/self/mountinfo", "/sys/fs/cgroup"),
        namespaces=("pid",),
        without=(
            "a plan for the whole node, `allowed.source` node, and a warning in the log; where its "
            "cgroup alone is not seen, by its mask; `affinityd doctor caller`"
        ),
    ),
    "node.json": Feature(on=("CPUs",)),
    "what NVML says": Feature(
        on=("CPUs",),
        reads=("/proc/driver/nvidia", "/dev/nvidiactl"),
        without="sysfs alone; one line in the log; `affinityd doctor nvml`",
    ),
    "the audit of NVIDIA's": Feature(
        on=("what NVML says",),
        reads=("/proc/PID/stat", "/proc/PID/task"),
        namespaces=("pid",),
        without="`unknown` of the GPU at /audit; affinityd_gpu_audited is 0",
    ),
    "the audit of AMD's": Feature(
        on=("GPUs",),
        reads=("/sys/class/kfd", "/proc/PID/stat", "/proc/PID/task"),
        namespaces=("pid",),
        without="`unknown` of the GPU at /audit; affinityd_gpu_audited is 0",
    ),
    "the audit of device files": Feature(
        on=("GPUs",),
        capabilities=("SYS_PTRACE", "DAC_READ_SEARCH"),
        reads=("/dev/davinci0", "/proc/PID/fd", "/proc/PID/stat", "/proc/PID/task"),
        namespaces=("pid",),
        without="`unknown` of the GPU at /audit; affinityd_gpu_audited is 0",
    ),
    "jobs": Feature(
        on=("the audit of NVIDIA's",),
        reads=("/proc/PID/cgroup",),
        without="a process of no job at /audit",
    ),
    "enforce observe": Feature(
        on=("jobs",),
        reads=("/proc/self/mountinfo", "/sys/fs/cgroup", "/sys/devices/system/node"),
        without="`unknown_cpuset`, `no_job` at /enforce: it is let alone",
    ),
    "rules by pod": Feature(
        on=("jobs",),
        reads=("/var/log/pods",),
        without="a rule that meets nobody",
    ),
    "rules by user": Feature(
        on=("jobs",),
        reads=("/etc/passwd", "/proc/PID/status"),
        without="a rule that meets nobody",
    ),
    "environments": Feature(
        on=("jobs",),
        capabilities=("SYS_PTRACE", "DAC_READ_SEARCH"),
        reads=("/proc/PID/environ",),
        without="a notice at /enforce, and a warning in the log",
    ),
    "enforce pin": Feature(
        on=("enforce observe",),
        capabilities=("SYS_NICE",),
        calls=("sched_setaffinity",),
        without="it observes, and says why in its log, at /enforce and by doctor",
    ),
    "memory that follows": Feature(
        on=("enforce pin",),
        capabilities=("SYS_PTRACE",),
        reads=("/proc/PID/status",),
        calls=("migrate_pages", "capset"),
        without="a notice at /enforce; outcome refused in the metrics",
    ),
}


def whole(name: str) -> Iterator[Feature]:
    """Yield a feature and all that it builds on."""
    feature = FEATURES[name]
    yield feature
    for other in feature.on:
        yield from whole(other)


def needs(name: str, kind: str) -> frozenset[str]:
    """Return all that a feature needs of a kind: capabilities, calls, reads, writes, namespaces."""
    return frozenset(item for feature in whole(name) for item in getattr(feature, kind))


def items(kind: str) -> list[str]:
    """Return what any feature needs of a kind."""
    return sorted(frozenset().union(*(needs(name, kind) for name in FEATURES)))


def lost_without(kind: str, item: str) -> frozenset[str]:
    """Return the features that need something."""
    return frozenset(name for name in FEATURES if item in needs(name, kind))


#: What the daemon says where one of these is missing: in its log, at /audit, /enforce or /readyz.
SAID = {
    "DAC_READ_SEARCH": "the environment of processes in jobs cannot be read",
    "SYS_NICE": "observes instead of pinning: it has no CAP_SYS_NICE",
    "SYS_PTRACE": "another user's memory takes CAP_SYS_PTRACE",
    "sched_setaffinity": "observes instead of pinning: sched_setaffinity(2) is refused here",
    "capset": "a seccomp filter has to allow capset",
    "migrate_pages": "a seccomp filter has to allow capset and migrate_pages",
    "pid": "hostPID: true, --pid=host",
    "/dev/davinci0": "no device file is known to be its",
    "/dev/nvidiactl": "a user who may open /dev/nvidiactl",
    "/proc/PID/cgroup": "it is in no job",
    "/proc/PID/environ": "the environment of processes in jobs cannot be read",
    "/proc/PID/stat": "not all of them can be seen here",
    "/proc/driver/nvidia": "NVIDIA's driver is not loaded",
    "/proc/self/mountinfo": "have the node's cgroups mounted where the daemon runs",
    "/sys/class/kfd": "AMD's KFD tells of no processes",
    "/sys/devices/system/cpu": "has no online CPU in sys/devices/system/cpu",
    "/sys/devices/system/node": "The kernel shows no NUMA nodes",
    "/sys/fs/cgroup": "have the node's cgroups mounted where the daemon runs",
}

#: What cannot be told from what is not there: a machine without them, or a process that has ended.
SILENT = {
    *("/etc/passwd", "/proc/PID/fd", "/proc/PID/status", "/proc/PID/task"),
    *("/sys/bus/pci/devices", "/var/log/pods"),
}

#: Groups of system calls in @system-service, systemd.exec(5): those that a daemon needs for its
#: plans, and those that none does. NVML's child sets itself a @timer, and @memlock is left to NVML.
GROUPS = (
    *("@basic-io", "@file-system", "@io-event", "@ipc", "@network-io", "@process", "@signal"),
    "@sync",
)
UNUSED_GROUPS = ("@aio", "@keyring")


def row(name: str) -> str:
    """Return a feature as docs/privileges.md has it."""
    feature = FEATURES[name]
    powers = (*(f"CAP_{it}" for it in feature.capabilities), *feature.calls)
    files = (*feature.reads, *(f"{it} (to be written)" for it in feature.writes))
    spaces = (f"the node's {it} namespace" for it in feature.namespaces)
    cells = (
        name,
        ", ".join(feature.on),
        ", ".join(f"`{it}`" for it in powers),
        ", ".join((*(f"`{it}`" for it in files), *spaces)),
        feature.without,
    )
    return f"| {' | '.join(cells)} |"
