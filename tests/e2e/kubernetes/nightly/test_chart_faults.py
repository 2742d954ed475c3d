"""The chart's daemon while its node and its cluster change around it; and how it is refused."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

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
    chart.helm("install", values, chart=str(tmp_path / "deploy/helm/affinityd"))
    job = started(chart.cluster, "of-an-earlier-release")
    assert job.says() == {PINNED}
    chart.cluster.run(
        "helm upgrade affinityd deploy/helm/affinityd --namespace affinityd --wait "
        "--reset-then-reuse-values"
    )
    assert job.says() == {PINNED}
    assert started(chart.cluster, "of-this-release").says() == {PINNED}


def test_without_the_socket_it_runs_in_a_restricted_namespace(cluster: Cluster) -> None:
    cluster.run(f"kubectl create namespace strict; kubectl label namespace strict {RESTRICTED}")
    chart = Chart(cluster, "strict")
    only = {"socket": {"enabled": False}, "extraArgs": ["--machine=dgx-a100"]}
    chart.helm("install", only)
    with named(chart):
        ended = cluster.shell("helm test affinityd --namespace strict --logs")
    assert "48-63,176-191" in ended.stdout
    chart.uninstall()


#: What the page of troubles has the cluster say of pods, by the values that lead to it. The folder
#: of the socket is the first release's.
REFUSALS: Mapping[str, Mapping[str, Any]] = {
    "violates PodSecurity": {},
    'RuntimeClass "nvidia" not found': {"audit": {"enabled": True}},
    "ImagePullBackOff": {"image": {"repository": "localhost/other"}},
    "listens there already": {},
}


@pytest.mark.parametrize("said", REFUSALS)
def test_a_refusal_is_where_the_page_says(chart: Chart, said: str) -> None:
    name = f"refused-{len(said)}"
    label = RESTRICTED if "PodSecurity" in said else "tried=yes"
    run = chart.cluster.run
    run(f"kubectl create namespace {name} && kubectl label namespace {name} {label}")
    install = f"helm install affinityd deploy/helm/affinityd --namespace {name} --values -"
    run(install, json.dumps(REFUSALS[said]))
    look = (
        f"kubectl --namespace {name} get events,pods; kubectl --namespace {name} logs ds/affinityd"
    )
    eventually(lambda: said in chart.cluster.shell(look).stdout, said)
    run(f"helm uninstall affinityd --namespace {name} && kubectl delete namespace {name}")
