"""A real daemon that cannot know who asks it: in namespaces of its own, or where /proc hides them.

That it knows the others is held by tests/processes/daemon, tests/e2e/containers and tests/e2e/vm.
Its node has this machine's two CPUs, each on a NUMA node of its own with two GPUs.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.cpusets import cgroup, needs_cpuset
from tests.support.daemons import eventually
from tests.support.made_nodes import running_on
from tests.support.scanning_node import facts
from tests.support.tiny import BOTH, FAR, NEAR, ran, tiny

pytestmark = needs_cpuset

PLAN = "http://localhost/plan?mode=node&gpus=0"
ANOTHER_USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
HIDE_PROC, THEN = "mount -t proc -o hidepid=invisible proc /proc", 'exec "$0" "$@"'
PIDS = ("--pid", "--fork", "--kill-child", "--mount-proc")
#: Mounts a /proc that shows no other user's processes, but for the driver that the node has; then
#: root, to whom the kernel shows none then: hidepid= exempts the group 0, and who may ptrace.
HIDE = (
    *("sh", "-c", f"{HIDE_PROC} && mount --bind {{folder}}/driver /proc/driver && {THEN}"),
    *("setpriv", "--regid=65534", "--clear-groups"),
    *("--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"),
)


@pytest.mark.parametrize(
    ("namespaces", "hide", "causes"), [(PIDS, (), []), ((), HIDE, ["hidepid="])]
)
def test_unidentified_callers_are_answered_and_logged_once_where_they_are_hidden(
    folder: Path, namespaces: Sequence[str], hide: Sequence[str], causes: Sequence[str]
) -> None:
    """In a pid namespace of its own, as a pod's is by default, nothing is wrong."""
    before = [it.format(folder=folder) for it in hide]
    with (
        cgroup(f"test-callers-{os.getpid()}", cpus=FAR) as far,
        running_on(
            tiny(), folder, facts({}), "--scan-interval=off", namespaces=namespaces, before=before
        ) as daemon,
    ):
        assert daemon.says("the caller") == []
        enter = ("sh", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', far)
        curl = ("curl", "-s", "--unix-socket", daemon.socket)
        for user in ((), ANOTHER_USER):
            for cpus, query, source in ((BOTH, "", "node"), (NEAR, f"&cpuset={NEAR}", "request")):
                done = ran(*enter, *user, *curl, f"{PLAN}{query}")
                allowed = {"cpulist": cpus, "source": source, "within": None}
                assert json.loads(done.stdout)["allowed"] == allowed
        eventually(lambda: len(daemon.says("the caller")) == len(causes), "it is said")
        for warning, cause in zip(daemon.says("the caller"), causes, strict=True):
            assert warning.startswith("warning: the caller is unidentified")
            assert cause in warning
