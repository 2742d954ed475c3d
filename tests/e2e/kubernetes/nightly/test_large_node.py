"""Pods that request 250 of 256 CPUs, with a real kubelet and a real containerd.

This machine has two CPUs. The test makes up files in /sys that show 256 CPUs to kubelet and
the daemon, and the pod's cpuset that the daemon reads; runc.sh cuts runc's cpuset to the two CPUs.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from affinityd.cpuset import parse_list
from tests.e2e.kubernetes.adjusted import CHOSEN, container, make_namespaces, serving
from tests.e2e.kubernetes.cluster import CHROOT, NODE, Cluster, Process, running
from tests.e2e.kubernetes.two_nodes import ALL_CPUS, MACHINE, NODES, mount_machine, restart
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import running as daemon_running
from tests.support.pods import ONLINE, Pod
from tests.support.tiny import BOTH
from tests.unit.request.test_devices import EIGHT

pytestmark = [needs_cpuset, pytest.mark.usefixtures("pods_end")]

CPUS = 250
BOTH_GPUS = {"NVIDIA_VISIBLE_DEVICES": "0,1"}  #: all GPUs of one NUMA node
NEAR_THEM = parse_list("48-63,176-191")
SPEC_CPUS = CHROOT / "rig/spec-cpus"  #: the cpusets that runc.sh has cut
MOUNTS = """
for name in bus devices; do mount --bind "$0/$name" "/sys/$name"; done
exec "$@"
"""
#: Runs the daemon as if each cgroup had all CPUs of the machine.
WITH_ALL_CPUS = """
import runpy, sys
from affinityd.daemon import nri
nri.cpuset_at = lambda _path, kind="cpus": frozenset(range(256))
del sys.argv[1:4]
runpy.run_module("affinityd", run_name="__main__")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        make_namespaces(cluster)
        mount_machine(cluster, EIGHT, NODES, ALL_CPUS)
        (CHROOT / "rig/online").write_text(BOTH)
        restart(cluster, {})
        allocatable = "jsonpath='{.status.allocatable.cpu}'=256"
        cluster.run(f"kubectl wait node {NODE} --for={allocatable} --timeout=60s")
        try:
            yield cluster
        finally:
            (CHROOT / "rig/online").unlink()


def asking(where: str) -> dict[str, Any]:
    """Return a pod's spec that has the amounts in its container's `where`, or in the pod itself."""
    one = {**container("one", gpus=0, **BOTH_GPUS), "resources": {}}
    amounts = {"cpu": f"{CPUS}", "memory": "64Mi"}
    resources = {"requests": amounts, "limits": amounts}
    if where == "pod":
        return {"containers": [one], "resources": resources}
    kinds = ("requests", "limits") if where == "limits" else (where,)
    return {"containers": [{**one, "resources": {kind: resources[kind] for kind in kinds}}]}


@pytest.mark.parametrize("where", ["requests", "limits", "pod"])
def test_the_runtime_gives_a_container_as_many_cpus_as_it_requested(
    cluster: Cluster, tmp_path: Path, where: str
) -> None:
    sys_files = f"{tmp_path}/machine/sys"
    before = ("sh", "-ec", MOUNTS, sys_files, sys.executable, "-c", WITH_ALL_CPUS)
    with serving(cluster, tmp_path, before=before, machine=EIGHT) as node:
        SPEC_CPUS.unlink(missing_ok=True)
        (pid,) = cluster.start_pod("large", asking(where), namespace=CHOSEN)
        told = Process(pid).told
    assert told.get("AFFINITYD_CPULIST"), node.daemon.lines
    cpus = parse_list(told["AFFINITYD_CPULIST"])
    assert len(cpus) == CPUS
    assert cpus > NEAR_THEM
    assert told["AFFINITYD_LOCALITY"] == "mixed"
    assert SPEC_CPUS.read_text().split() == [told["AFFINITYD_CPULIST"]]


def test_run_keeps_as_many_cpus_as_kubelet_s_limit(cluster: Cluster, tmp_path: Path) -> None:
    """The files of the container's cgroup are kubelet's; the mask of 256 CPUs is made up."""
    (pid,) = cluster.start_pod("limited", asking("limits"), namespace=CHOSEN)
    limits = Path(f"/proc/{pid}/root/sys/fs/cgroup/cpu")
    with daemon_running(tmp_path / "node", f"--root={CHROOT}{MACHINE}") as daemon:
        pod = Pod(tmp_path, daemon.socket)
        pod.has("nvidia7")  # GPU 0
        for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"):
            copy = pod.folder / "sys/fs/cgroup/cpu" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text((limits / name).read_text())
        ended = pod.run(cpus=ONLINE)
    assert ended.cpus is not None, ended.lines
    assert len(ended.cpus) == CPUS
    assert ended.cpus > NEAR_THEM
