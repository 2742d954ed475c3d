"""The chart's daemon while its node and its cluster change around it."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from affinityd import __version__
from tests.e2e.faults.test_faults_upgrade import PREVIOUS, git
from tests.e2e.kubernetes.chart import Chart, Job, named
from tests.e2e.kubernetes.cluster import Cluster
from tests.support.daemons import eventually
from tests.support.tiny import NEAR

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
PINNED = f"Cpus_allowed_list:\t{NEAR}"


def started(cluster: Cluster, name: str) -> Job:
    job = Job(cluster, name)
    job.start()
    return job


def test_an_old_chart_is_upgraded(chart: Chart, values: Mapping[str, Any], tmp_path: Path) -> None:
    if git("rev-parse", "--is-shallow-repository").stdout != b"false\n":
        pytest.skip("a checkout without its history: git fetch --unshallow")
    chart.uninstall()
    archive = git("archive", PREVIOUS, "deploy/helm/affinityd").stdout
    subprocess.run(["tar", "-x", "-C", tmp_path], input=archive, check=True)
    of_both = {**values, "image": {"tag": __version__}}
    chart.helm("install", of_both, chart=str(tmp_path / "deploy/helm/affinityd"))
    job = started(chart.cluster, "of-an-earlier-release")
    assert job.says() == {PINNED}
    chart.cluster.run(
        "helm upgrade affinityd deploy/helm/affinityd -n affinityd --wait --reset-then-reuse-values"
    )
    assert job.says() == {PINNED}
    assert started(chart.cluster, "of-this-release").says() == {PINNED}


def test_kubelet_restarts_a_daemon_that_hangs(chart: Chart, values: Mapping[str, Any]) -> None:
    chart.helm("upgrade --install", values)
    sooner = '[{"name":"affinityd","livenessProbe":{"periodSeconds":1,"timeoutSeconds":5}}]'
    patch = f'{{"spec":{{"template":{{"spec":{{"containers":{sooner}}}}}}}}}'
    chart.cluster.run(f"kubectl -n affinityd patch daemonset affinityd --patch '{patch}'")
    chart.cluster.run("kubectl -n affinityd rollout status daemonset/affinityd")
    for pid in chart.cluster.pids(chart.pod()["metadata"]["uid"]):
        os.kill(pid, signal.SIGSTOP)

    def is_new() -> bool:
        (daemon,) = chart.pod()["status"]["containerStatuses"]
        return bool(daemon["restartCount"] and daemon["ready"])

    eventually(is_new, "it is started again")
    assert started(chart.cluster, "after-it-hung").says() == {PINNED}


def test_without_the_socket_the_chart_runs_in_a_restricted_namespace(cluster: Cluster) -> None:
    cluster.run(f"kubectl create namespace strict; kubectl label namespace strict {RESTRICTED}")
    chart = Chart(cluster, "strict")
    only = {"socket": {"enabled": False}, "extraArgs": ["--machine=dgx-a100"]}
    chart.helm("install", only)
    with named(chart):
        ended = cluster.shell("helm test affinityd --namespace strict --logs")
    assert "48-63,176-191" in ended.stdout
    chart.uninstall()
