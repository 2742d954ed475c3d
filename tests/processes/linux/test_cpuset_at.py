"""The cpuset of another pod, as a daemon in its own container sees the node's cgroups."""

import os

from affinityd.cpuset import format_list
from affinityd.linux.cgroup import cpuset_at
from tests.support.child_python import said
from tests.support.cpusets import HIERARCHY, cgroup, needs_cpuset, pod_parts
from tests.support.tiny import BOTH, FAR, NEAR

pytestmark = needs_cpuset

UID = "8d6f4e5c-0000-4000-8000-00000000000a"
CODE = """
import sys
from affinityd.cpuset import format_list
from affinityd.linux.cgroup import cpuset_at
found = cpuset_at(sys.argv[1])
print("none" if found is None else format_list(found))
"""
#: In a cgroup, and a namespace of cgroups, of its own; the node's hierarchy is mounted as before.
ENTER = 'echo $$ >"$0/cgroup.procs" && exec unshare --cgroup --mount "$@"'
#: As in a container without a mount of the node's cgroups: the container's cgroup is the root.
ALONE = (
    "cd /sys/fs/cgroup && umount cpuset && mount -t cgroup -o cpuset none cpuset && "
    'cd "$OLDPWD" && exec "$@"'
)


def test_a_pod_s_cpuset_is_read_only_in_the_node_s_hierarchy() -> None:
    with cgroup(*pod_parts(UID)[:-1], cpus=FAR) as pod, cgroup(*pod_parts("own"), cpus=NEAR) as own:
        path = f"/{pod.relative_to(HIERARCHY)}"
        assert format_list(cpuset_at(path) or ()) == FAR
        below = f"{path}/not-there"
        assert cpuset_at(below) is None
        within = ("sh", "-c", ENTER, os.fspath(own))
        assert said(CODE, path, within=within).strip() == FAR
        alone = (*within, "sh", "-c", ALONE, "sh")
        assert said(CODE, path, within=alone).strip() == "none", "this hierarchy has no pod"
    assert format_list(cpuset_at("/") or ()) == BOTH
    with cgroup("a.slice", "a-b.slice", cpus=FAR):
        assert format_list(cpuset_at("a-b.slice") or ()) == FAR, "as systemd's driver names a pod's"
