"""The daemon knows who asks it. A real one, asked by processes in real cpusets, of real users.

Its node has this machine's two CPUs, each on a NUMA node of its own with two GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon.conftest import open_folder
from tests.support.asking_processes import as_user, asking
from tests.support.cpusets import cgroup, needs_cpuset
from tests.support.daemons import Daemon, eventually
from tests.support.enforcing_node import facts
from tests.support.made_nodes import running_on
from tests.support.tiny import BOTH, FAR, NEAR, tiny

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make namespaces and users"),
    needs_cpuset,
]

PLAIN = "mode=node&gpus=0"

ANOTHER_USER = as_user(65534)
ON_NEAR = ("taskset", "-c", NEAR)
PIDS = ("--pid", "--fork", "--kill-child", "--mount-proc")

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
        assert daemon.says("the caller") == []


@pytest.fixture(scope="module")
def far() -> Iterator[Path]:
    with cgroup(f"test-callers-{os.getpid()}", cpus=FAR) as folder:
        yield folder


def allowed(cpulist: str, within: str | None, source: str = "caller") -> Any:  # noqa: ANN401
    return {"cpulist": cpulist, "source": source, "within": within}


NODE = allowed(BOTH, None, "node")  #: of a caller that is not known


def test_a_caller_may_ask_for_the_whole_node(daemon: Daemon, far: Path) -> None:
    with asking(daemon.socket, within=far) as asker:
        for _ in ("planned", "remembered"):
            assert asker.allowed(f"{PLAIN}&whose=node") == NODE
            assert asker.allowed(f"{PLAIN}&whose=caller") == allowed(FAR, FAR)


def test_each_request_is_planned_on_the_caller_s_present_cpus(daemon: Daemon, far: Path) -> None:
    with asking(daemon.socket) as asker:
        assert asker.allowed(PLAIN) == allowed(BOTH, BOTH)
        asker.do(f"os.sched_setaffinity(0, {{{NEAR}}}); print(flush=True)")
        assert asker.allowed(PLAIN) == allowed(NEAR, BOTH)
        assert asker.allowed(f"{PLAIN}&cpuset={BOTH}") == allowed(BOTH, BOTH, "request")
        asker.enter(far)
        assert asker.allowed(PLAIN) == allowed(FAR, FAR)
        assert asker.allowed(f"{PLAIN}&cpuset={BOTH}") == allowed(FAR, FAR, "request")


@pytest.mark.parametrize(
    ("namespaces", "is_blind", "cause"), [(PIDS, False, "hostPID: true"), ((), True, "hidepid=")]
)
def test_unidentified_callers_are_logged_once_and_answered(
    namespaces: Sequence[str], is_blind: bool, cause: str, far: Path
) -> None:
    with node(*namespaces, is_blind=is_blind) as daemon:
        assert daemon.says("the caller") == []
        for user in ((), ANOTHER_USER):
            with asking(daemon.socket, within=far, before=user) as asker:
                assert asker.allowed(PLAIN) == NODE
                assert asker.allowed(f"{PLAIN}&cpuset={NEAR}") == allowed(NEAR, None, "request")
        eventually(lambda: daemon.says("the caller"), "it is said")
        (warning,) = daemon.says("the caller")
        assert warning.startswith("warning: the caller is unidentified")
        assert cause in warning
