"""A real containerd asks the daemon about the containers that it creates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.adjusted import (
    OTHER,
    container,
    make_namespaces,
    removed,
    serving,
    started,
)
from tests.e2e.kubernetes.cluster import Cluster, plugin, running
from tests.support.cpusets import needs_cpuset
from tests.support.enforcing_node import uuid
from tests.support.tiny import BOTH, FAR, NEAR

pytestmark = needs_cpuset

GPUS = {uuid(gpu): gpu // 2 for gpu in range(4)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster, plugin(cluster, GPUS):
        make_namespaces(cluster)
        yield cluster


def test_chosen_containers_with_gpus_are_adjusted(cluster: Cluster, tmp_path: Path) -> None:
    with serving(cluster, tmp_path) as node:
        job = started(
            cluster,
            "job",
            container("one"),
            container("wide", limit="2", AFFINITYD_LOCALITY="mine"),
            container("plain", gpus=0),
        )
        one, near = job["one"], (NEAR, FAR)[job["one"].gpu // 2]
        assert one.cpus == near
        assert one.told == {
            "AFFINITYD_CPULIST": near,
            "AFFINITYD_ALLOWED": near,
            "AFFINITYD_LOCALITY": "local",
            "AFFINITYD_NODES": str(job["one"].gpu // 2),
            "AFFINITYD_MEMORY_NODES": str(job["one"].gpu // 2),
            "AFFINITYD_JOB_CPUS": "1",
        }
        assert one.has_socket
        assert job["wide"].cpus == BOTH  # never fewer CPUs than its limit
        assert job["wide"].told["AFFINITYD_LOCALITY"] == "mine"
        plain = job["plain"]
        assert (plain.cpus, plain.told, plain.has_socket) == (BOTH, {}, False)

        apart = started(cluster, "apart", container("other"), namespace=OTHER)["other"]
        assert (apart.cpus, apart.told, apart.has_socket) == (BOTH, {}, False)
        labels = {"affinityd": "on"}
        labelled = started(cluster, "labelled", container("own"), namespace=OTHER, **labels)["own"]
        assert labelled.cpus == (NEAR, FAR)[labelled.gpu // 2]
        assert not labelled.has_socket  # the site lists its namespace, or the folder stays away
        counted = node.samples("nri_requests_total", "outcome")
        expected = {"adjusted": 3, "no_gpu": 1, "not_chosen": 1, "failed": 0, "late": 0}
        assert {name: counted[name] for name in expected} == expected
    removed(cluster)


def test_without_the_daemon_a_container_starts_as_ever(cluster: Cluster) -> None:
    (one,) = started(cluster, "alone", container("one")).values()
    assert (one.cpus, one.told, one.has_socket) == (BOTH, {}, False)
    removed(cluster)
