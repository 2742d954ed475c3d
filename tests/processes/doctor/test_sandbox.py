"""What the daemon's surroundings keep from it: real masks, cpusets, namespaces and mounts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from affinityd.discovery import discover, open_tree
from affinityd.doctor.facts import NO_ANSWER, DaemonFacts, NodeFacts
from affinityd.linux.cgroup import cpuset_of
from affinityd.linux.processes import INITIAL_PIDS
from affinityd.request.document import AllowedCpus
from tests.support.children import children_of
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.doctor_facts import TWO, check

CPUS = sorted(os.sched_getaffinity(0))

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of one's own take root")
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU cannot be less than all")
needs_host_pid = pytest.mark.skipif(
    open_tree("/").link("proc/self/ns/pid") != INITIAL_PIDS,
    reason="here is a pid namespace of its own",
)


@contextmanager
def waiting(*before: str) -> Iterator[int]:
    """Run a process by way of a command; yield its pid."""
    command = [*before, "sh", "-c", "echo ready && exec sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield next(iter(children_of(process.pid)), process.pid)
        finally:
            process.kill()


def mounting(*commands: str) -> Sequence[str]:
    """Return what runs a command in a mount namespace in which these have been run."""
    return ("unshare", "--mount", "sh", "-ec", "; ".join((*commands, 'exec "$@"')), "sh")


def mounting_proc(options: str) -> Sequence[str]:
    return mounting(f"mount -t proc -o {options} proc /proc")


def facts(pid: int | None, answer: AllowedCpus | str = NO_ANSWER) -> NodeFacts:
    """Return the facts of this machine whose daemon is a process, and answers this."""
    within = cpuset_of(pid) if pid else None
    own = frozenset({0})
    daemon = DaemonFacts("s", listens=True, pid=pid, cpuset=within, allowed=answer, own_cpuset=own)
    return NodeFacts(TWO, open_tree("/"), daemon=daemon)


#: Without capabilities, as the unit's process.
POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
OF_GROUP = ("setpriv", "--groups=4711", *POWERLESS[1:])
OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
OWN_DEV = mounting("mount -t tmpfs tmpfs /dev")
OWN_USERS = ("unshare", "--user", "--map-root-user")
HIDDEN = (*mounting_proc("hidepid=ptraceable"), *POWERLESS)
NO_CGROUPS = mounting("umount -l /sys/fs/cgroup")


def hides(how: str, remedy: str) -> str:
    return f"warn: hidepid={how}: the daemon → {remedy}"


@needs_root
@needs_host_pid
@pytest.mark.parametrize(
    ("options", "before", "expected"),
    [
        ("hidepid=2", POWERLESS, "ok: (hidepid=invisible)"),  # root's group is exempt
        ("hidepid=2,gid=4711", (), "ok: (hidepid=invisible)"),  # a capability sees all
        ("hidepid=2,gid=4711", OF_GROUP, "ok: (hidepid=invisible)"),
        ("hidepid=1,gid=4711", POWERLESS, hides("noaccess", "CAP_SYS_PTRACE")),
        ("hidepid=2,gid=4711", POWERLESS, hides("invisible", "remount,hidepid=off /proc")),
        ("hidepid=4", POWERLESS, hides("ptraceable", "CAP_SYS_PTRACE")),  # from every group
        ("subset=pid", (), "warn: subset=pid: the daemon → remove ProcSubset=pid"),
    ],
)
def test_a_proc_that_hides_processes(options: str, before: Sequence[str], expected: str) -> None:
    with waiting(*mounting_proc(options), *before) as pid:
        check("hidepid", facts(pid), expected)


@needs_host_pid
def test_without_a_daemon_proc_is_judged_by_this_process() -> None:
    check("hidepid", facts(None), "ok: /proc shows this process every process")


UNKNOWN = AllowedCpus("0-3", "node", None)
BY_ITS_MASK = AllowedCpus("0-3", "caller", None)


@needs_root
@pytest.mark.parametrize(
    ("name", "answer", "before", "expected"),
    [
        ("sandbox", NO_ANSWER, (), "ok: has the users and devices of this machine"),
        ("sandbox", NO_ANSWER, OWN_DEV, "warn: a /dev of its own → remove PrivateDevices="),
        ("sandbox", NO_ANSWER, OWN_USERS, "warn: in a user namespace → remove PrivateUsers="),
        ("hidepid", NO_ANSWER, OWN_PIDS, "warn: in a pid namespace of its own → hostPID: true"),
        ("caller", UNKNOWN, OWN_PIDS, "warn: in a pid namespace of its own → remove PrivatePIDs="),
        ("caller", UNKNOWN, HIDDEN, "warn: with hidepid=ptraceable → remove ProtectProc="),
        ("caller", BY_ITS_MASK, NO_CGROUPS, "warn: no cgroups are mounted → /sys/fs/cgroup"),
    ],
)
def test_what_its_surroundings_keep_from_it_is_found(
    name: str, answer: AllowedCpus | str, before: Sequence[str], expected: str
) -> None:
    with waiting(*before) as pid:
        check(name, facts(pid, answer), expected)


def cpus_of(pid: int, expected: str) -> None:
    """Hold what is found of the CPUs of a daemon's process on this machine."""
    topology = discover(open_tree("/"), None)
    check("daemon-cpuset", replace(facts(pid), topology=topology), expected)


@needs_two_cpus
def test_a_daemon_with_a_mask_is_a_warning() -> None:
    with waiting("taskset", "-c", str(CPUS[0])) as pid:
        cpus_of(pid, f"warn: the mask of the daemon (process {pid}) → remove CPUAffinity=")


@needs_cpuset
@needs_two_cpus
def test_a_daemon_in_a_cpuset_is_a_warning() -> None:
    with cpuset() as group:
        (group / "cpuset.cpus").write_text(str(CPUS[0]))
        enter = 'echo $$ > "$0/tasks" && exec "$@"'
        with waiting("sh", "-c", enter, os.fspath(group)) as pid:
            cpus_of(pid, "warn: the cpuset of the daemon → remove AllowedCPUs= from its")
