"""The daemon knows who asks it. A real one, asked by processes in real cpusets, of real users.

Its node has this machine's two CPUs, each on a NUMA node of its own with two GPUs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon.conftest import open_folder
from tests.support.asking_processes import Command, Reply, asking, reply
from tests.support.children import children_of
from tests.support.cpusets import HIERARCHY, needs_cpuset
from tests.support.daemons import Daemon, eventually
from tests.support.enforcing_node import facts
from tests.support.job_cgroups import cgroup
from tests.support.made_nodes import running_on
from tests.support.tiny import BOTH, FAR, NEAR, tiny

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make namespaces and users"),
    needs_cpuset,
]

PLAIN = "mode=node&gpus=0"

ANOTHER_USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
ON_NEAR = ("taskset", "-c", NEAR)
PIDS = ("--pid", "--fork", "--mount-proc", "--kill-child")

#: Mounts a /proc that shows no other user's processes, but for the driver that the node has.
HIDE = (
    'mount -t proc -o hidepid=invisible proc /proc && mount --bind "$0/driver" /proc/driver && '
    'exec "$@"'
)
#: Root, to whom the kernel shows none then: hidepid= exempts the group 0, and who may ptrace.
NO_PTRACE = (
    *("setpriv", "--regid=65534", "--clear-groups"),
    *("--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"),
)


@contextmanager
def node(*namespaces: str, is_blind: bool = False) -> Iterator[Daemon]:
    """Run a daemon, in namespaces of its own, or where it does not see processes."""
    with open_folder() as folder:
        hide = ("sh", "-c", HIDE, str(folder), *NO_PTRACE) if is_blind else ()
        off = ("--scan-interval", "off")
        with running_on(
            tiny(), folder, facts({}), *off, namespaces=namespaces, before=hide
        ) as daemon:
            yield daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with node() as daemon:
        yield daemon
        assert warnings(daemon) == []


@pytest.fixture(scope="module")
def far() -> Iterator[Path]:
    """Yield a cgroup that has the second CPU alone."""
    with cgroup(f"test-callers-{os.getpid()}", cpus=FAR) as folder:
        yield folder


def allowed(cpulist: str, within: str | None, source: str = "caller") -> Any:  # noqa: ANN401
    """Return what a caller is allowed."""
    return {"cpulist": cpulist, "source": source, "within": within}


NODE = allowed(BOTH, None, "node")  #: of a caller that is not known


def warnings(daemon: Daemon) -> list[str]:
    return [line for line in daemon.lines if "the caller" in line]


@pytest.mark.parametrize(
    ("before", "in_far", "expected"),
    [
        ((), False, allowed(BOTH, BOTH)),
        (ON_NEAR, False, allowed(NEAR, BOTH)),
        (ANOTHER_USER, True, allowed(FAR, FAR)),
        ((*ON_NEAR, *ANOTHER_USER), False, allowed(NEAR, BOTH)),
        (("unshare", *PIDS), True, allowed(FAR, FAR)),  # a pid namespace below the daemon's
    ],
)
def test_a_caller_that_says_nothing_is_planned_on_its_own_cpus(
    daemon: Daemon, far: Path, before: Command, in_far: bool, expected: dict[str, str]
) -> None:
    with asking(daemon.socket, within=far if in_far else None, before=before) as asker:
        assert [asker.ask(PLAIN).allowed for _ in ("planned", "remembered")] == [expected] * 2


def test_a_cpuset_that_is_stated_may_be_wider_than_the_mask_and_not_than_the_cpuset(
    daemon: Daemon, far: Path
) -> None:
    wide = f"{PLAIN}&cpuset={BOTH}"
    with asking(daemon.socket, before=ON_NEAR) as asker:
        assert asker.ask(wide).allowed == allowed(BOTH, BOTH, "request")
    with asking(daemon.socket, within=far) as asker:
        assert asker.ask(wide).allowed == allowed(FAR, FAR, "request")
        refused = asker.ask(f"{PLAIN}&cpuset={NEAR}&format=cpulist")
    assert refused == Reply(
        409,
        f"Cannot be satisfied: cpuset: none of '{NEAR}' is in the caller's own cpuset, '{FAR}'; "
        "name CPUs of that, or leave cpuset out",
    )


def test_a_caller_that_asks_for_the_node_is_bounded_by_nothing(daemon: Daemon, far: Path) -> None:
    with asking(daemon.socket, within=far) as asker:
        for _ in ("planned", "remembered"):
            assert asker.ask(f"{PLAIN}&whose=node").allowed == NODE
            assert asker.ask(f"{PLAIN}&whose=caller").allowed == allowed(FAR, FAR)
        refusal = asker.ask(f"{PLAIN}&whose=node&cpuset={NEAR}")
        assert refusal.status == 422
        assert "give one of them" in refusal.text


def test_what_counts_is_where_the_caller_is_at_each_request_of_a_connection(
    daemon: Daemon, far: Path
) -> None:
    with asking(daemon.socket) as asker:
        assert asker.ask(PLAIN).allowed == allowed(BOTH, BOTH)
        asker.do(f"os.sched_setaffinity(0, {{{NEAR}}}); print(flush=True)")
        assert asker.ask(PLAIN).allowed == allowed(NEAR, BOTH)
        asker.enter(far)
        assert asker.ask(PLAIN).allowed == allowed(FAR, FAR)
        (far / "cpuset.cpus").write_text(BOTH)
        try:
            assert asker.ask(PLAIN).allowed["within"] == BOTH
        finally:
            (far / "cpuset.cpus").write_text(FAR)


#: Another process, in another cpuset, has the connection, and asks when `fate` has been met.
PASSED_ON = """
met, fate = os.pipe()
if os.fork() == 0:
    os.close(fate)
    open({procs!r}, 'w').write(str(os.getpid()))
    os.read(met, 1)
    print(ask(kept, '/plan?{query}'), flush=True)
    os._exit(0)
"""
LIVES, ENDS = "os.close(fate)", "os._exit(0)"


@pytest.mark.parametrize(("fate", "expected"), [(LIVES, allowed(BOTH, BOTH)), (ENDS, NODE)])
def test_the_process_that_connected_counts_whichever_has_the_connection_now(
    daemon: Daemon, far: Path, fate: str, expected: dict[str, str]
) -> None:
    passed_on = PASSED_ON.format(procs=str(far / "cgroup.procs"), query=PLAIN)
    with asking(daemon.socket) as asker:
        assert reply(asker.do(passed_on + fate)).allowed == expected


@pytest.mark.parametrize(
    ("namespaces", "is_blind", "cause"), [(PIDS, False, "hostPID: true"), ((), True, "hidepid=")]
)
def test_a_daemon_that_cannot_see_who_asks_says_so_once_and_goes_on(
    namespaces: Command, is_blind: bool, cause: str, far: Path
) -> None:
    with node(*namespaces, is_blind=is_blind) as daemon:
        assert warnings(daemon) == []
        for before in ((), ANOTHER_USER):
            with asking(daemon.socket, within=far, before=before) as asker:
                assert asker.ask(PLAIN).allowed == NODE
                stated = asker.ask(f"{PLAIN}&cpuset={NEAR}").allowed
                assert stated == allowed(NEAR, None, "request")
        eventually(lambda: warnings(daemon), "it is said")
        (warning,) = warnings(daemon)
        assert warning.startswith("warning: the caller is unidentified")
        assert cause in warning


def test_a_number_of_its_own_namespace_is_none_in_the_proc_of_another(far: Path) -> None:
    """A daemon in a pid namespace with the /proc of the one above, asked from within."""
    with node("--pid", "--fork", "--kill-child") as daemon:
        (first,) = children_of(daemon.process.pid)
        inside = ("nsenter", f"--pid=/proc/{first}/ns/pid")
        with asking(daemon.socket, within=far, before=inside) as asker:
            assert asker.ask(PLAIN).allowed == NODE
        eventually(lambda: warnings(daemon), "it is said")
        (warning,) = warnings(daemon)
        assert "/proc is of another pid namespace" in warning


def test_of_a_daemon_that_sees_no_cgroups_the_mask_counts_and_is_no_bound(far: Path) -> None:
    with node("--cgroup") as daemon:
        leave = ("nsenter", f"--mount=/proc/{daemon.process.pid}/ns/mnt", "umount", HIERARCHY)
        subprocess.run(leave, check=True)
        with asking(daemon.socket, within=far) as asker:
            assert asker.ask(PLAIN).allowed == allowed(FAR, None)
            assert asker.ask(f"{PLAIN}&cpuset={BOTH}").allowed["cpulist"] == BOTH
        assert warnings(daemon) == []
