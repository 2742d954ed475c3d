"""The chart's daemon places containers of a real containerd, in whatever way they get a GPU."""

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.kubernetes import machine
from tests.e2e.kubernetes.adjusted import (
    CHOSEN,
    OTHER,
    container,
    make_namespaces,
    removed,
    started,
)
from tests.e2e.kubernetes.chart import LABEL, Chart
from tests.e2e.kubernetes.cluster import (
    CHROOT,
    KUBELET,
    NODE,
    Cluster,
    Process,
    device_plugin,
    kubelet_plugin,
)
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually
from tests.support.tiny import BOTH, FAR

pytestmark = [needs_cpuset, pytest.mark.usefixtures("pods_end")]

#: A way to give GPU 1 → the resource of the plugin that does so. FAR are the CPUs near GPU 1.
WAYS = {way: f"{way}.example.com/gpu" for way in ("file", "variable", "cdi")}
DRIVER = "gpu.example.com"
#: GPU 1 as devices of CDI: one for the device plugin, one for the driver of DRA.
CDI = {
    "cdiVersion": "0.6.0",
    "devices": [
        {
            "name": machine.uuid(1),
            "containerEdits": {
                "deviceNodes": [{"path": "/dev/dri/renderD129", "hostPath": machine.device_file(1)}]
            },
        }
    ],
}


@pytest.fixture(scope="module")
def values(cluster: Cluster) -> Mapping[str, Any]:
    make_namespaces(cluster)
    nri = {"enabled": True, "namespaces": {CHOSEN: {}, OTHER: {"mode": "socket"}}}
    return {**machine.values(), "kubernetes": {"nri": nri}, "settings": {"logFormat": "text"}}


@pytest.fixture(scope="module")
def gpus(chart: Chart) -> Iterator[Chart]:
    """Have kubelet give GPU 1 in each way, and the runtime register the chart's daemon."""
    folder = CHROOT / "etc/cdi"
    folder.mkdir(exist_ok=True)
    for name, kind in (("plugin", WAYS["cdi"]), ("driver", f"{DRIVER}/gpu")):
        (folder / f"{name}.json").write_text(json.dumps({**CDI, "kind": kind}))
    gpu = f"{machine.uuid(1)}=0:{machine.device_file(1)}:/dev/dri/renderD129"
    cdi = f"{DRIVER}/gpu={machine.uuid(1)}"
    with ExitStack() as plugins:
        for way, resource in WAYS.items():
            plugins.enter_context(device_plugin(chart.cluster, resource, way, gpu))
        driver = ("/var/lib/kubelet", KUBELET, DRIVER, "gpus", "gpu-1", cdi)
        plugins.enter_context(kubelet_plugin("claims", *driver))
        metric = "affinityd_nri_connected 1.0"
        eventually(lambda: metric in chart.ask("/metrics"), "the runtime knows the plugin")
        yield chart


def asking(name: str, resource: str | None) -> Mapping[str, Any]:
    its = container(name, gpus=0)
    amounts = {resource: "1"} if resource else {}
    both = {kind: {**its["resources"][kind], **amounts} for kind in ("requests", "limits")}
    return {**its, "resources": both}


@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_given_by_a_device_plugin_is_known(gpus: Chart, way: str) -> None:
    (process,) = started(gpus.cluster, way, asking(way, WAYS[way])).values()
    assert (process.cpus, process.told["AFFINITYD_LOCALITY"]) == (FAR, "local")
    assert process.has_socket


def test_a_gpu_given_by_a_dra_driver_is_known(gpus: Chart) -> None:
    gpus.cluster.claim_device(DRIVER, "gpus", "gpu-1", CHOSEN)
    plain = asking("dra", None)
    resources = {**plain["resources"], "claims": [{"name": "gpu"}]}
    spec = {
        "containers": [{**plain, "resources": resources}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}],
    }
    (pid,) = gpus.cluster.start_pod("by-dra", spec, namespace=CHOSEN)
    process = Process(pid)
    assert (process.cpus, process.told["AFFINITYD_LOCALITY"]) == (FAR, "local")


def test_a_namespace_has_a_default_for_pods_that_do_not_choose(gpus: Chart) -> None:
    its = asking("c", WAYS["file"])
    (wide,) = started(gpus.cluster, "wide", its, namespace=OTHER).values()
    assert (wide.cpus, wide.told["AFFINITYD_LOCALITY"]) == (BOTH, "mixed")
    removed(gpus.cluster)
    chosen = {"affinityd/mode": "node"}
    (near,) = started(gpus.cluster, "near", its, namespace=OTHER, annotations=chosen).values()
    assert (near.cpus, near.told["AFFINITYD_LOCALITY"]) == (FAR, "local")


def test_pods_that_start_without_the_daemon_are_placed_when_it_is_back(gpus: Chart) -> None:
    gpus.cluster.run(f"kubectl label node {NODE} {LABEL.split('=')[0]}-")
    eventually(lambda: not gpus.pods(), "the daemon has gone")
    early = [
        *started(gpus.cluster, "early-1", asking("file", WAYS["file"])).values(),
        *started(gpus.cluster, "early-2", asking("cdi", WAYS["cdi"])).values(),
    ]
    assert {process.cpus for process in early} == {BOTH}
    gpus.cluster.run(f"kubectl label node {NODE} {LABEL}")
    eventually(lambda: {process.cpus for process in early} == {FAR}, "they run near their GPU")
    metric = 'affinityd_nri_containers{locality="local",state="pinned"} 2.0'
    eventually(lambda: metric in gpus.ask("/metrics"), "they are counted")


def test_a_placed_container_that_restarts_without_the_daemon_has_all_cpus_of_its_pod(
    gpus: Chart,
) -> None:
    (process,) = started(gpus.cluster, "stays", asking("c", WAYS["file"])).values()
    gpus.uninstall()
    eventually(lambda: not gpus.pods(), "the daemon has gone")
    assert process.cpus == FAR
    os.kill(process.pid, signal.SIGKILL)
    uid = gpus.cluster.get("pod", "-n", CHOSEN, "stays")["metadata"]["uid"]

    def again() -> list[Process]:
        pids = (pid for pid in gpus.cluster.pids(uid) if pid != process.pid)
        return [its for its in map(Process, pids) if "WHO" in its.environment]

    eventually(again, "it has restarted")
    assert [its.cpus for its in again()] == [BOTH]
