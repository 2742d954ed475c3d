"""Which container of a pod a process is in, by its GPUs, its CPUs and its device files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.facts.job import Job, Membership
from affinityd.audit.facts.kubelet import ContainerResources
from affinityd.audit.judge import Judge
from affinityd.audit.model import AuditedProcess
from affinityd.cpuset import parse_list
from affinityd.kubernetes.container_match import Candidate, with_containers
from affinityd.topology.model import MigInstance
from tests.support.audit_facts import POD, process
from tests.support.machines.facts import machine

A100 = machine("dgx-a100")
NODE = replace(A100, gpus=tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in A100.gpus))
MIGS = (MigInstance("MIG-a"), MigInstance("MIG-b"))
WITH_MIG = replace(NODE, gpus=(replace(NODE.gpus[0], mig=MIGS), *NODE.gpus[1:]))


def given(
    name: str, *ids: str, cpus: str = "", claims: str = "", resource: str = "nvidia.com/gpu"
) -> ContainerResources:
    devices = {resource: frozenset(ids)} if ids else {}
    of_dra = frozenset(claims.split())
    return ContainerResources(
        "team", name, "main", devices, of_dra, parse_list(cpus), nodes=frozenset()
    )


def in_pod(gpu: int, cpuset: str = "0-255", *, uid: str = POD, pid: int = 100) -> AuditedProcess:
    member = Membership(Job("kubernetes", uid), container="ab12" * 16)
    return Judge(NODE).judge(
        process("0-3", pid=pid, gpu=("nvidia", gpu), cpuset=cpuset, membership=member)
    )


def named(
    *processes: AuditedProcess,
    containers: tuple[ContainerResources, ...],
    files: frozenset[GpuKey] = frozenset(),
) -> list[str | None]:
    """Return the pods that processes are said to be in."""
    candidates = Candidate.all_of(containers, WITH_MIG)
    found = with_containers(candidates, processes, lambda _pid: files)
    return [None if it.facts.given is None else it.facts.given.pod for it in found]


CONTAINERS = (
    given("by-uuid", "GPU-0"),
    given("by-index", "1"),
    given("by-address", A100.gpus[2].pci_bus_id, resource="example.com/gpu"),
    given("by-dra", claims="gpu.nvidia.com/gpu-3"),
    given("shared-a", "GPU-4::0"),
    given("shared-b", "GPU-4::1"),
    given("exclusive-a", "GPU-5::0", cpus="0-3"),
    given("exclusive-b", "GPU-5::1", cpus="4-7"),
    given("of-gke", "nvidia6/vgpu0"),
    given("with-a-nic", "7", "1", resource="rdma/hca"),
    given("without-gpus", cpus="8-9"),
)


@pytest.mark.parametrize(
    ("gpu", "cpuset", "expected"),
    [
        (0, "0-255", "by-uuid"),
        (1, "0-255", "by-index"),
        (2, "0-255", "by-address"),
        (3, "0-255", "by-dra"),
        (4, "0-255", None),  # either of them
        (5, "4-7", "exclusive-b"),
        (5, "4", "exclusive-b"),  # a cgroup below the container's
        (5, "0-7", None),
        (6, "0-255", "of-gke"),
        (7, "0-255", None),
    ],
)
def test_a_process_is_in_the_container_that_has_its_gpu(
    gpu: int, cpuset: str, expected: str | None
) -> None:
    assert named(in_pod(gpu, cpuset), containers=CONTAINERS) == [expected]


@pytest.mark.parametrize(("mig", "expected"), [("MIG-a", "a"), ("MIG-b", "b"), (None, None)])
def test_mig_instances_of_a_gpu_are_told_apart(mig: str | None, expected: str | None) -> None:
    its = in_pod(0)
    assert its.facts.holding is not None
    holding = replace(its.facts.holding, mig=mig)
    its = replace(its, facts=replace(its.facts, holding=holding))
    containers = given("a", "MIG-a", resource="nvidia.com/mig-1g.5gb"), given("b", "MIG-b")
    assert named(its, containers=containers) == [expected]


@pytest.mark.parametrize(("files", "expected"), [((0,), "one"), ((0, 1), "two"), ((), None)])
def test_device_files_tell_containers_of_a_shared_gpu_apart(
    files: tuple[int, ...], expected: str | None
) -> None:
    containers = given("one", "GPU-0::0"), given("two", "GPU-0::1", "GPU-1")
    keys = frozenset(("nvidia", gpu) for gpu in files)
    assert named(in_pod(0), containers=containers, files=keys) == [expected]


@pytest.mark.parametrize(
    ("files", "cpus", "expected"),
    [((), "", "one"), ((0,), "", "one"), ((0, 1), "", None), ((0, 1), "0-255", "one")],
)
def test_a_container_with_files_of_other_gpus_is_not_kubelets(
    files: tuple[int, ...], cpus: str, expected: str | None
) -> None:
    """Such as a pod that names GPUs in NVIDIA_VISIBLE_DEVICES; exclusive CPUs say more."""
    keys = frozenset(("nvidia", gpu) for gpu in files)
    assert named(in_pod(0), containers=(given("one", "GPU-0", cpus=cpus),), files=keys) == [
        expected
    ]


def test_processes_of_a_container_use_its_gpus_together() -> None:
    containers = given("one", "GPU-0::0"), given("two", "GPU-0::1", "GPU-1")
    ranks = in_pod(0), in_pod(1, pid=101)
    assert named(*ranks, containers=containers) == ["two", "two"]


def test_a_container_is_of_one_pod_unless_the_other_is_a_known_daemon() -> None:
    train, monitor = in_pod(0), in_pod(0, uid=POD.replace("0d6f", "1d6f"), pid=101)
    containers = (given("train", "GPU-0"),)
    assert named(train, monitor, containers=containers) == [None, None]
    daemon = replace(monitor, is_daemon=True)
    assert named(train, daemon, containers=containers) == ["train", None]


def test_the_ranks_of_a_job_are_all_gpus_that_kubelet_gave_it() -> None:
    containers = (given("train", "GPU-0", "GPU-1"),)
    (its,) = with_containers(
        Candidate.all_of(containers, NODE), [in_pod(0)], lambda _pid: frozenset()
    )
    assert its.facts.gpus == (("nvidia", 0),)
    assert {*its.facts.gpus_given} == {("nvidia", 0), ("nvidia", 1)}


def test_a_process_of_no_pod_is_in_no_container() -> None:
    facts = process("0-3", gpu=("nvidia", 0), cpuset="0-255")
    assert named(Judge(NODE).judge(facts), containers=CONTAINERS) == [None]
