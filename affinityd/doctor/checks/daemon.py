"""Whether every user's jobs reach the daemon, its answers are right, and it sees this node.

The request is a job's: without a cpuset, so that the daemon must identify the caller. Commands
ignore unknown settings silently: a job inherits many variables, and the file may have lines for
other programs.

Sources: pid_namespaces(7); proc(5) for hidepid= and gid=, kernel fs/proc/base.c
`has_pid_permissions`.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from affinityd import config
from affinityd.client import ask_daemon
from affinityd.config import NODE_FILE, settings
from affinityd.cpuset import format_list
from affinityd.discovery.tree import read_fields
from affinityd.doctor.facts import (
    ENVIRONMENT,
    CheckResults,
    DaemonFacts,
    NodeFacts,
    NotApplicableError,
    fail,
    ok,
    warn,
)
from affinityd.enforce.document import MAX_BYTES, PATH, EnforceDocument
from affinityd.errors import REFUSALS, AffinityError, NotEnforcedError
from affinityd.json_codec import loads
from affinityd.linux.cgroup import cpuset_of
from affinityd.linux.processes import INITIAL_PIDS, credentials
from affinityd.request.document import AllowedCpus
from affinityd.text import count
from affinityd.topology.document import read_node
from affinityd.topology.model import Node, Topology

TIMEOUT = 1.0  #: seconds, as any client of the daemon waits
PLAN = "/plan?mode=all&format=json"  #: of the cheapest mode; it has this process's CPUs

T = TypeVar("T")


@dataclass(frozen=True)
class PlanPart:
    """The fields read of a plan: a daemon of another release may have others."""

    allowed: AllowedCpus


def probe(path: str, timeout: float = TIMEOUT) -> DaemonFacts:
    """Return the facts of the daemon whose socket is at a path; it is queried if it answers."""

    def queried(target: str, read: Callable[[str], T]) -> T | None:
        deadline, refusals = time.monotonic() + timeout, (*REFUSALS, NotEnforcedError)
        with suppress(AffinityError, ValueError):
            text = ask_daemon.fetch(path, target, deadline, refusals=refusals, most=MAX_BYTES)
            return read(text)
        return None

    daemon = replace(_listener(path, timeout), published=_published(Path(path)))
    if not daemon.status:
        return daemon
    plan = queried(PLAN, lambda text: loads(PlanPart, text, PLAN))
    return replace(
        daemon,
        enforcement=queried(PATH, lambda text: loads(EnforceDocument, text, PATH)),
        allowed=plan.allowed if plan else None,
        own_cpuset=cpuset_of(os.getpid()),
        nri=queried("/metrics", _nri_samples),
    )


def _listener(path: str, timeout: float) -> DaemonFacts:
    daemon = DaemonFacts(path)
    deadline = time.monotonic() + timeout
    try:
        with closing(ask_daemon.connect(path, deadline)) as connection:
            daemon = replace(daemon, listens=True, pid=credentials(connection).pid or None)
            answer = ask_daemon.get(connection, "/readyz", deadline)
        return replace(daemon, status=ask_daemon.parse(answer)[0])
    except TimeoutError:
        full = "it accepts no more connections: its queue is full"
        error = f"no answer within {timeout:.1g} s" if daemon.listens else full
        return replace(daemon, listens=True, error=error)
    except (OSError, ValueError) as error:
        return replace(daemon, is_denied=isinstance(error, PermissionError), error=_reason(error))


def _published(socket: Path) -> Node | str:
    file = socket.with_name(NODE_FILE)
    try:  # to ask whether it is there may be refused, too
        return read_node(file) if file.exists() else "there is none"
    except (OSError, ValueError) as error:
        return _reason(error)


def _reason(error: OSError | ValueError) -> str:
    # A socket's path that is too long has no errno.
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _nri_samples(text: str) -> Mapping[str, float] | None:
    """Return the samples of the NRI plugin, by name with labels; None: there is none."""
    lines = (line.rpartition(" ") for line in text.splitlines())
    nri = "affinityd_nri_"
    return {name: float(value) for name, _, value in lines if name.startswith(nri)} or None


def daemon(facts: NodeFacts) -> CheckResults:
    """Judge the daemon of this machine: its socket, node.json, its answers and its process."""
    daemon = facts.daemon
    if daemon is None:
        raise NotApplicableError("the machine is replayed, and has no daemon")
    misspelled = [*variables(facts)]
    if daemon.absent and not misspelled:
        raise NotApplicableError(
            f"no daemon listens at {' or '.join(daemon.absent)}, and none is needed: affinityd "
            "exec and bind plan by themselves; if it listens elsewhere, name it with --socket"
        )
    yield from misspelled
    if daemon.absent:
        return
    yield from socket(daemon)
    yield from published_node(daemon, facts.topology)
    if daemon.pid is not None:
        yield from visible_processes(facts, daemon.pid)
    yield from callers(facts, daemon)
    yield from enforcement(daemon)
    yield ok(f"{daemon.path} answers (process {daemon.pid or 'unknown'})")


#: Variables that commands, prologs and pods read, besides the settings.
READ = (
    *("CONFIG", "CPUS", "DRAIN", "JOB_CPUS", "JOB_GPUS", "MEMORY", "NICS", "OWN", "THREADS"),
    *("TIMEOUT", "URL", "VERBOSE"),
)
#: Variables that affinityd sets for jobs.
WRITTEN = (
    *("ALLOWED", "CPULIST", "GPUS", "LOCALITY", "MEMORY_NODES", "NODES", "RDMA", "THREADS"),
    *("UNPINNED", "VISIBLE_MEMORY_NODES", "WARNINGS"),
)
#: Every name without a number in it.
NAMES = (
    "AFFINITYD",
    *(
        f"{config.PREFIX}{name.upper()}"
        for name in (*settings.NAMES, *config.PLAN_PARAMETERS, *READ, *WRITTEN)
    ),
)
RANKS = f"{config.PREFIX}RANK_"  #: of the `shell` format: AFFINITYD_RANK_0_CPULIST

#: Words in variables that Kubernetes gives pods for a Service, as …_SERVICE_HOST and …_PORT.
OF_SERVICES = frozenset(("SERVICE", "PORT"))

ALIKE = 0.9  #: of difflib; names of other programs are less similar


def variables(facts: NodeFacts) -> CheckResults:
    """Judge the names of AFFINITYD_* variables, and of the settings file's keys."""
    for variable, where in facts.variables:
        name = variable.upper()
        if variable in NAMES or name.startswith(RANKS):
            continue
        if where == ENVIRONMENT and OF_SERVICES.intersection(name.split("_")):
            continue
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=ALIKE)
        if near or name.startswith(config.PREFIX):
            yield warn(
                f"{variable} in {where} is not a setting of affinityd, and is ignored",
                f"did you mean {near[0]}?" if near else "leave it out; docs/settings.md lists them",
            )


def socket(daemon: DaemonFacts) -> CheckResults:
    """Judge whether a daemon answers, and every user reaches it."""
    if daemon.is_denied:
        yield fail(
            f"this user may not connect to {daemon.path}: {daemon.error}",
            "let every user reach it: chmod 755 the folders and 666 the socket; or affinityd "
            "doctor as root",
        )
    elif not daemon.listens:
        yield fail(
            f"no daemon at {daemon.path}: {daemon.error}",
            "systemctl enable --now affinityd, or affinityd serve as root; --socket names another",
        )
    elif daemon.status == HTTPStatus.SERVICE_UNAVAILABLE:
        yield fail(
            f"the daemon at {daemon.path} has not read the machine yet",
            "wait some seconds; then see why: journalctl -u affinityd",
        )
    elif daemon.status != HTTPStatus.OK:
        yield fail(
            f"the server at {daemon.path} (process {daemon.pid or 'unknown'}) is not a "
            f"ready daemon: {daemon.error or f'it answered {daemon.status}'}",
            "systemctl restart affinityd, or end the process that listens there",
        )
    path = Path(daemon.path)
    folder, mode = path.parent, _mode(path.parent)
    is_system = folder == Path(config.SYSTEM_SOCKET).parent
    if is_system and mode is not None and mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield warn(
            f"others may put a socket into {folder}, which is {mode:04o}",
            f"chmod 755 {folder}; in the unit RuntimeDirectoryMode=0755",
        )
    if closed := [*_closed(path.absolute())]:
        yield warn(
            f"not all users' jobs reach {path}: {', '.join(closed)}",
            "chmod 755 the folders and 666 the socket; in the unit RuntimeDirectoryMode=0755",
        )


def _closed(path: Path) -> Iterator[str]:
    """Yield the folders that keep other users from the socket.

    A user's runtime folder is for that user alone: XDG Base Directory Specification, mode 0700.
    """
    private = (config.RUNTIME_FOLDERS, config.runtime_folder())
    if any(map(path.is_relative_to, private)) or not may_exist(path):
        return
    for place in (*reversed(path.parents), path):
        needed = stat.S_IXOTH if place != path else stat.S_IROTH | stat.S_IWOTH
        mode = _mode(place)
        if mode is None:
            return
        if mode & needed != needed:
            yield f"{place} is {mode:04o}"


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def may_exist(path: Path) -> bool:
    """Whether a path exists, or permissions hide whether it does."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def published_node(daemon: DaemonFacts, topology: Topology) -> CheckResults:
    """Judge whether node.json, from which ranks plan without the daemon, is of this machine."""
    file, node = Path(daemon.path).with_name(NODE_FILE), daemon.published
    if isinstance(node, str):
        if daemon.listens:
            yield warn(
                f"{file}: {node}: ranks cannot plan from it while the daemon does not run",
                "let the daemon write to its folder, then systemctl reload affinityd",
            )
        return

    def shown(machine: Topology) -> dict[str, str]:
        gpus = ", ".join(gpu.pci_bus_id for gpu in machine.gpus) or "none"
        return {"name": machine.name, "online CPUs": format_list(machine.online), "GPUs": gpus}

    told, here = shown(node.topology), shown(topology)
    stale = [f"its {it}: {told[it]}, here: {here[it]}" for it in here if told[it] != here[it]]
    if node.replayed or stale:
        yield warn(
            f"{file} is of another machine, or out of date: {[*stale, 'it was replayed'][0]}",
            "run a replaying daemon on a socket in a folder of its own"
            if node.replayed
            else "systemctl reload affinityd, or remove the file where no daemon runs",
        )


SYS_PTRACE = 1 << 19  #: kernel include/uapi/linux/capability.h
SHOWN = ("0", "off")  #: hidepid=: nothing is hidden
NO_EXEMPTION = ("4", "ptraceable")  #: hidepid=: from every user, for any gid=


def visible_processes(facts: NodeFacts, pid: int) -> CheckResults:
    """Judge whether /proc shows every user's processes to the daemon."""
    process = f"the daemon (process {pid})"
    proc = facts.mounts(pid).get("/proc")
    if proc is None:
        return
    status = read_fields(facts.tree, f"proc/{pid}/status", "NSpid", "CapEff", "Gid", "Groups")
    numbers = status.get("NSpid", "").split()
    namespace = facts.tree.link(f"proc/{pid}/ns/pid")  # only root sees the link of another's
    if len(numbers) > 1 or namespace not in {None, INITIAL_PIDS}:
        yield warn(
            f"{process} is in a pid namespace of its own: it sees no process outside, and "
            "NVML's pids are other processes there",
            "hostPID: true in its pod; podman run --pid=host; remove PrivatePIDs= from its unit",
        )
    options = {name: value for name, _, value in (text.partition("=") for text in proc.options)}
    hidden = options.get("hidepid", "off")
    is_capable = int(status.get("CapEff", "0"), 16) & SYS_PTRACE
    groups = f"{status.get('Gid', '')} {status.get('Groups', '')}".split()
    is_exempt = hidden not in NO_EXEMPTION and options.get("gid", "0") in groups
    if hidden not in SHOWN and not (is_capable or is_exempt):
        yield warn(
            f"/proc is mounted with hidepid={hidden}: {process} does not see other users' "
            "processes, neither their cpusets nor their masks",
            "remove ProtectProc= from its unit; if the machine's /proc is mounted so: "
            "mount -o remount,hidepid=off /proc, or CapabilityBoundingSet=CAP_SYS_PTRACE "
            "in its unit",
        )


def callers(facts: NodeFacts, daemon: DaemonFacts) -> CheckResults:
    """Judge whether a daemon identifies this process by its request."""
    allowed, published = daemon.allowed, daemon.published
    if allowed is None or (isinstance(published, Node) and published.replayed):
        return
    if allowed.source != "caller":
        yield warn(
            "the daemon cannot identify callers: jobs that state no cpuset are planned on the "
            "whole node",
            "its log says why: journalctl -u affinityd",
        )
    elif allowed.within is None and daemon.own_cpuset is not None:
        mounts = facts.mounts(daemon.pid).values() if daemon.pid else ()
        has_none = mounts and not any(mount.kind.startswith("cgroup") for mount in mounts)
        why = "no cgroups are mounted where it runs" if has_none else "it cannot see its cgroup"
        yield warn(
            f"the daemon knows the caller's mask, and not its cpuset: {why}; this process "
            f"has CPUs {format_list(daemon.own_cpuset)}",
            "mount the node's /sys/fs/cgroup where it runs, as hostPID: true of the chart does; in "
            "a unit leave out InaccessiblePaths=/sys and the like",
        )


def nri(facts: NodeFacts) -> CheckResults:
    """Judge whether a container runtime asks the daemon, and no container was missed."""
    samples = facts.daemon and facts.daemon.nri
    if not samples:
        raise NotApplicableError("no daemon that adjusts containers listens")
    if samples.get("affinityd_nri_connected") == 0:
        yield fail(
            "no container runtime knows the NRI plugin: containers start on all CPUs of their pods",
            "turn NRI on in the runtime's configuration, or correct --nri "
            "(kubernetes.nri.socketFolder of the chart); the daemon's log says why",
        )
    for runtime in (
        dict(re.findall(r'(\w+)="(.*?)"', name)) for name in samples if "_info" in name
    ):
        chosen = runtime["namespaces"] or "none, only pods with the label affinityd=on"
        yield ok(f"{runtime['runtime'] or 'a runtime'} asks the daemon; namespaces: {chosen}")
    if samples.get("affinityd_nri_sees_cgroups") == 0:
        yield warn(
            "the daemon does not see the node's cgroups: by NRI no container gets a cpuset",
            "mount the node's /sys/fs/cgroup where it runs, as the chart does",
        )
    if missed := int(sum(it for name, it in samples.items() if 'state="missed"' in name)):
        yield warn(
            f"{count(missed, 'container')} with GPUs were to be placed by NRI, and were not",
            "see `is not adjusted` in the daemon's log; a daemon that starts again places them",
        )


def enforcement(daemon: DaemonFacts) -> CheckResults:
    """Judge the daemon's answer at /enforce."""
    report = daemon.enforcement
    if report is None:
        return
    if report.hindrance is not None:
        yield warn(
            f"the daemon was told to pin, and can only observe: {report.hindrance}",
            "affinityd.service.d/enforce.conf for systemd, enforce.mode of the chart; or let it "
            "observe: AFFINITYD_ENFORCE=observe",
        )
    if report.policy.error is not None:
        yield warn(
            f"the policy {report.policy.file} has an error: {report.policy.error}",
            "correct it, and check it with affinityd enforce --check FILE",
        )
    for notice in report.notices:
        yield warn(notice, "affinityd enforce says which processes are left alone meanwhile")
