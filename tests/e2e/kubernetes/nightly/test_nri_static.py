"""Kubelet's static CPU policy sets cpusets itself: the daemon leaves them, and tells the rest."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.kubernetes.adjusted import container, make_namespaces, removed, serving, started
from tests.e2e.kubernetes.cluster import running
from tests.support.cpusets import needs_cpuset
from tests.support.tiny import BOTH, FAR, NEAR

pytestmark = needs_cpuset


def test_a_cpuset_of_kubelets_stays(tmp_path: Path) -> None:
    settings = {"RIG_CPU": "static", "RIG_RESERVED": NEAR}  # it gives away the others
    (tmp_path / "daemon").mkdir()
    with running(tmp_path, **settings) as cluster, serving(cluster, tmp_path / "daemon"):
        make_namespaces(cluster)
        gpu = {"NVIDIA_VISIBLE_DEVICES": "0"}
        amount = {"cpu": "1", "memory": "64Mi"}
        resources = {"requests": amount, "limits": amount}
        whole = {**container("exclusive", gpus=0, **gpu), "resources": resources}
        part = container("part", gpus=0, **gpu)
        for asked, cpus in ((whole, FAR), (part, BOTH)):
            (its,) = started(cluster, asked["name"], asked).values()
            assert its.cpus == cpus  # GPU 0 is near the other CPU
            assert {"AFFINITYD_NODES", "AFFINITYD_JOB_CPUS"} <= its.told.keys()
            assert "AFFINITYD_CPULIST" not in its.told
            removed(cluster)
