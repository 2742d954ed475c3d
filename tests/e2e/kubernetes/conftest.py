"""The fixtures of a cluster, which needs root and the rig; a module may define its own cluster."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.kubernetes import machine
from tests.e2e.kubernetes.adjusted import removed
from tests.e2e.kubernetes.chart import Chart, installed
from tests.e2e.kubernetes.cluster import RIGS, Cluster, running


@pytest.fixture(autouse=True, scope="session")
def rig() -> None:
    """Skip if no cluster can be made."""
    if os.geteuid() != 0:
        pytest.skip("only root runs a cluster")
    if not RIGS.exists():
        pytest.skip("the rig of a cluster is not beside the checkout")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def pods_end(cluster: Cluster) -> Iterator[None]:
    """Remove a test's pods at its end, so that their GPUs are free again."""
    yield
    removed(cluster)


@pytest.fixture(scope="module")
def values(cluster: Cluster) -> Mapping[str, Any]:
    """Return chart values with which the daemon sees a machine with two NUMA nodes."""
    assert cluster.root.exists()  # the machine's files are written into this folder
    return machine.values()


@pytest.fixture(scope="module")
def chart(cluster: Cluster, values: Mapping[str, Any]) -> Iterator[Chart]:
    with installed(cluster, values) as chart:
        yield chart
