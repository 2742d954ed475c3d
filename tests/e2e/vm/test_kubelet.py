"""A real kubelet and containerd on cgroup v2, by systemd: 32 CPUs, two NUMA nodes, eight GPUs."""

import pytest

from affinityd.cpuset import parse_list
from tests.e2e.vm.guest_kubelet import PARTITION_CPUS
from tests.e2e.vm.inside import Document
from tests.e2e.vm.two_nodes import GPU_NODES, cpus_of

LEFT = (
    "info: container default/beside/main: its CPUs stay until it starts again: "
    "its spec lists no device file of its GPU"
)


@pytest.mark.parametrize("moment", ["synchronized", "again"])
def test_a_container_keeps_its_cpus_and_a_gpu_that_its_spec_lacks(
    seen: Document, moment: str
) -> None:
    assert seen["not let in"] == "EPERM"
    assert seen["let in"] == "ENXIO", "opening is allowed, and no driver answers"
    beside = seen[moment]["beside"]
    assert (beside["opens"], beside["cpus"]) == ("ENXIO", "0-31")
    assert seen[moment]["states"]["left"] == "1"
    assert seen[moment]["log"].count(LEFT) == 1


def test_systemd_takes_away_only_the_gpu_that_a_spec_lacks(seen: Document) -> None:
    """An update of a container by affinityd must not cause this, as the page says."""
    reloaded = seen["reloaded"]
    assert reloaded["beside"]["opens"] == "EPERM"
    assert [reloaded[name]["opens"] for name in ("early", "one", "two")] == ["ENXIO"] * 3


def test_pods_run_near_their_gpus(seen: Document) -> None:
    """`early` started without the daemon, and was placed once the daemon ran."""
    assert seen["synchronized"]["states"] == {"pinned": "1", "left": "1"}
    assert seen["again"]["states"] == {"pinned": "3", "left": "1"}
    pods = [seen["again"][name] for name in ("early", "one", "two")]
    assert sorted(pod["gpu"] for pod in pods) == [0, 1, 4]
    for pod in [seen["synchronized"]["early"], *seen["created"].values(), *pods]:
        if isinstance(pod, dict) and "gpu" in pod:
            assert pod["cpus"] == cpus_of(GPU_NODES[pod["gpu"]])
            assert pod["opens"] == "ENXIO"
    told = seen["created"]["one"]["told"]
    assert told["AFFINITYD_CPULIST"] == seen["created"]["one"]["cpus"]
    assert told["AFFINITYD_LOCALITY"] == "local"
    assert seen["synchronized"]["early"]["told"] == {}


def test_a_resized_pod_is_placed_again_and_exec_obeys_the_pod_s_cpu_limit(
    seen: Document,
) -> None:
    """16 CPUs are near; `exec` sets one thread for each of their 8 cores."""
    assert seen["threads of 4"] == {"status": 0, "stdout": f"{near(seen)} 4\n", "stderr": ""}
    assert seen["resized"]["one"]["cpus"] == "0-31"
    assert seen["resized"]["one"]["opens"] == "ENXIO"
    assert seen["threads of 20"] == {"status": 0, "stdout": f"{near(seen)} 8\n", "stderr": ""}


def near(seen: Document) -> str:
    return cpus_of(GPU_NODES[seen["created"]["one"]["gpu"]])


def test_a_pod_keeps_its_exclusive_cpus_and_is_planned_within_them(seen: Document) -> None:
    own = seen["static"]["own"]
    assert len(parse_list(own["cpus"])) == 4
    assert own["opens"] == "ENXIO"
    assert seen["static"]["states"] == {"kept": "1"}
    planned, threads = seen["planned"]["stdout"].split()
    assert (planned, threads) == (own["cpus"], "2"), "one thread for each core"
    assert own["told"].keys() >= {"AFFINITYD_NODES", "AFFINITYD_JOB_CPUS"}
    assert "AFFINITYD_CPULIST" not in own["told"]


def test_cpus_of_a_partition_are_for_its_processes_and_for_no_pod(seen: Document) -> None:
    """Kubelet's slice has all CPUs: a partition is refused until the slice is narrowed."""
    refused = "root invalid (Cpu list in cpuset.cpus not exclusive)"
    assert seen["partitions"] == [refused, "root"]
    assert parse_list(seen["outside"]) == parse_list(near(seen)) - parse_list(PARTITION_CPUS)
    assert [ended["stdout"] for ended in seen["inside"]] == ["16-17 1\n", "16-17 1\n", "0-1 1\n"]


def test_run_pins_a_pod_to_the_near_cpus_of_the_shared_pool(seen: Document) -> None:
    """The init container and `run` ask the daemon; kubelet's cpuset has CPUs of the partition."""
    run = seen["run"]
    others = parse_list(seen["static"]["own"]["cpus"]) | parse_list(PARTITION_CPUS)
    assert parse_list(run["cpus"]) == parse_list(cpus_of(GPU_NODES[run["gpu"]])) - others
    assert run["told"]["AFFINITYD_CPULIST"] == run["cpus"]
    assert run["told"]["AFFINITYD_LOCALITY"] == "local"
    assert others.isdisjoint(parse_list(run["told"]["AFFINITYD_ALLOWED"]))
