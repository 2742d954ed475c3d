"""What the daemon's surroundings keep from it: real masks, cpusets, namespaces and mounts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from affinityd.discovery import open_tree
from affinityd.doctor.checks.daemon import callers, cpus_of_process, sandbox, visible_processes
from affinityd.doctor.facts import NO_ANSWER, DaemonFacts, NodeFacts
from affinityd.linux.cgroup import cpuset_of
from affinityd.linux.processes import INITIAL_PIDS
from affinityd.request.document import AllowedCpus
from tests.support.children import children_of
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.doctor_facts import TWO, judged
from tests.support.tiny import tiny

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
NO_CGROUPS = mounting("umount -l /sys/fs/cgroup")


def hides(how: str, remedy: str) -> str:
    return f"warn: hidepid={how}: the daemon → {remedy}"


@needs_root
@needs_host_pid
@pytest.mark.parametrize(
    ("options", "before", "expected"),
    [
        ("hidepid=2", POWERLESS, "ok"),  # root's group is exempt
        ("hidepid=2,gid=4711", (), "ok"),  # a capability sees all
        ("hidepid=2,gid=4711", OF_GROUP, "ok"),
        ("hidepid=1,gid=4711", POWERLESS, hides("noaccess", "CAP_SYS_PTRACE")),
        ("hidepid=2,gid=4711", POWERLESS, hides("invisible", "remount,hidepid=off /proc")),
        ("hidepid=4", POWERLESS, hides("ptraceable", "CAP_SYS_PTRACE")),  # from every group
        ("subset=pid", (), "warn: subset=pid: the daemon → remove ProcSubset=pid"),
    ],
)
def test_a_proc_that_hides_processes_from_the_daemon_is_found(
    options: str, before: Sequence[str], expected: str
) -> None:
    with waiting(*mounting_proc(options), *before) as pid:
        judged(visible_processes(facts(pid), pid), expected)


BY_ITS_MASK = AllowedCpus("0-3", "caller", None)


@needs_root
@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ((), "ok"),
        (OWN_DEV, "warn: a /dev of its own → remove PrivateDevices="),
        (OWN_USERS, "warn: in a user namespace → remove PrivateUsers="),
    ],
)
def test_a_sandbox_of_the_daemon_is_found(before: Sequence[str], expected: str) -> None:
    with waiting(*before) as pid:
        judged(sandbox(facts(pid), pid), expected)


@needs_root
def test_a_pid_namespace_and_a_lack_of_cgroups_are_found() -> None:
    with waiting(*OWN_PIDS) as pid:
        found = "warn: in a pid namespace of its own → hostPID: true"
        judged(visible_processes(facts(pid), pid), found)
    with waiting(*NO_CGROUPS) as pid:
        its = facts(pid, BY_ITS_MASK)
        found = "warn: no cgroups are mounted → /sys/fs/cgroup"
        judged(callers(its, its.own_daemon()), found)


HERE = tiny()
NEEDED = "leaves them out of its answers, and only it places"


@needs_two_cpus
@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([(0, "numa_node"), (1, "numa_node")], "ok"),
        ([(0, "numa_node"), (1, "local_cpulist")], "ok"),
        ([(0, "numa_node"), (1, "NVML")], f"warn 1: {NEEDED} GPU 1 → remove CPUAffinity="),
        ([(None, None), (None, None)], f"warn 0-1: {NEEDED} GPUs 0-1 → remove CPUAffinity="),
        ([], "ok"),
    ],
)
def test_a_mask_of_the_daemon_matters_if_nvml_alone_places_a_gpu(
    places: Sequence[tuple[int | None, str | None]], expected: str
) -> None:
    gpus = tuple(
        replace(gpu, numa_node=node, numa_source=source)
        for gpu, (node, source) in zip(HERE.gpus, places, strict=False)
    )
    with waiting("taskset", "-c", str(CPUS[0])) as pid:
        its = replace(facts(pid), topology=replace(HERE, gpus=gpus))
        judged(cpus_of_process(its, its.own_daemon(), pid), expected)


@needs_cpuset
@needs_two_cpus
def test_a_cpuset_of_the_daemon_matters_if_nvml_alone_places_a_gpu() -> None:
    topology = replace(HERE, gpus=tuple(replace(it, numa_source="NVML") for it in HERE.gpus))
    with cpuset() as group:
        (group / "cpuset.cpus").write_text(str(CPUS[0]))
        enter = 'echo $$ > "$0/tasks" && exec "$@"'
        with waiting("sh", "-c", enter, os.fspath(group)) as pid:
            its = replace(facts(pid), topology=topology)
            warning = "warn 0-1: the cpuset of the daemon → remove AllowedCPUs= from its"
            judged(cpus_of_process(its, its.own_daemon(), pid), warning)
