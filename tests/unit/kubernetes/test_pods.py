"""Kubelet's answers, the containers of processes by these answers, and when kubelet is asked."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from affinityd.audit.judge import Judge
from affinityd.audit.model import (
    AuditedProcess,
    ContainerResources,
    Job,
    Membership,
    NamedPods,
)
from affinityd.cpuset import parse_list
from affinityd.kubernetes import pods
from affinityd.kubernetes.pods import (
    Candidate,
    KubeletPods,
    _containers,
    containers_of,
    devices,
)
from affinityd.linux.protobuf import field
from affinityd.topology.model import MigInstance
from tests.support.audit_facts import KUBERNETES_POD, POD, process
from tests.support.machines.facts import machine

DEVICES = field(1, b"nvidia.com/gpu") + field(2, b"GPU-0") + field(2, b"GPU-1")
ON_NODE_0 = field(3, field(1, b""))  # NUMA node 0 is the default, and not written
ON_NODE_3 = field(3, field(1, b"\x08\x03"))
CLAIM = field(5, field(2, b"claim") + field(4, field(2, b"gpu.nvidia.com") + field(4, b"gpu-7")))
PACKED, ALONE = field(3, b"\x01\xac\x02"), b"\x18\x04"


def pod_of(*fields: bytes) -> bytes:
    container = field(3, field(1, b"main") + b"".join(fields))
    return field(1, field(1, b"train-0") + field(2, b"team") + container)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ((), {}),
        ((PACKED, ALONE), {"cpus": parse_list("1,4,300")}),
        ((field(2, DEVICES),), {"devices": {"nvidia.com/gpu": frozenset(("GPU-0", "GPU-1"))}}),
        ((field(2, DEVICES + ON_NODE_0), field(2, ON_NODE_3)), {"nodes": frozenset((0, 3))}),
        ((CLAIM,), {"claims": frozenset(("gpu.nvidia.com/gpu-7",))}),
        ((field(15, b"later"), b"\x79" + bytes(8)), {}),
    ],
)
def test_a_container_is_read_from_kubelet_s_answer(
    fields: tuple[bytes, ...], expected: dict[str, object]
) -> None:
    (found,) = _containers(pod_of(*fields))
    assert (found.namespace, found.pod, found.container) == ("team", "train-0", "main")
    assert {name: getattr(found, name) for name in expected} == expected


A100 = machine("dgx-a100")
NODE = replace(A100, gpus=tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in A100.gpus))
IN_POD = Judge(NODE).judge(process("0-3", gpu=("nvidia", 0), membership=KUBERNETES_POD))
LATER_POD = replace(KUBERNETES_POD, job=Job("kubernetes", "5" * 32))
LATER = Judge(NODE).judge(process("0-3", pid=5, gpu=("nvidia", 0), membership=LATER_POD))
HANGS = TimeoutError("timed out")


def pod(name: str) -> bytes:
    devices = field(2, field(1, "nvidia.com/gpu") + field(2, "GPU-0"))
    return field(1, field(1, name) + field(2, "team") + field(3, field(1, "main") + devices))


class Kubelet:
    """Kubelet's next answer, and how often kubelet was asked."""

    def __init__(self) -> None:
        self.answer: bytes | Exception = b""
        self.asked = 0

    def list_pods(self, _socket: str) -> bytes:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def kubelet(monkeypatch: pytest.MonkeyPatch) -> Kubelet:
    kubelet = Kubelet()
    monkeypatch.setattr(pods, "list_pods", kubelet.list_pods)
    return kubelet


SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


def names(named: NamedPods) -> list[str | None]:
    return [None if it.facts.given is None else it.facts.given.pod for it in named.processes]


def test_the_last_answer_is_used_while_kubelet_does_not_answer(kubelet: Kubelet) -> None:
    pods = KubeletPods(SOCKET)
    kubelet.answer = HANGS
    none = pods.name(NODE, [IN_POD])
    assert (names(none), len(none.notices), kubelet.asked) == ([None], 1, 1)
    kubelet.answer = pod("train-0")
    found = pods.name(NODE, [IN_POD])
    assert (names(found), found.notices) == (["train-0"], ())
    for kubelet.answer in (HANGS, b"\xff", ConnectionRefusedError("no")):
        again = pods.name(NODE, [IN_POD])
        assert (names(again), len(again.notices)) == (["train-0"], 1)
        assert SOCKET in again.notices[0]
        # A pod that started since may have the GPU.
        assert names(pods.name(NODE, [LATER])) == [None]
        assert names(pods.name(NODE, [LATER, IN_POD])) == [None, "train-0"]
    kubelet.answer = pod("train-1")
    assert names(pods.name(NODE, [IN_POD])) == ["train-1"]


@pytest.mark.parametrize(
    "found",
    [[], [Judge(NODE).judge(process("0-3", gpu=("nvidia", 0)))], [replace(IN_POD, is_daemon=True)]],
)
def test_kubelet_is_not_asked_if_no_process_is_in_a_pod(
    kubelet: Kubelet, found: list[AuditedProcess]
) -> None:
    assert KubeletPods(SOCKET).name(NODE, found) == NamedPods(found)
    assert kubelet.asked == 0


MIGS = (MigInstance("MIG-a"), MigInstance("MIG-b"))
WITH_MIG = replace(NODE, gpus=(replace(NODE.gpus[0], mig=MIGS), *NODE.gpus[1:]))


NO_KNOWN: Mapping[str, ContainerResources] = {}


def given(
    name: str, *ids: str, cpus: str = "", claims: str = "", resource: str = "nvidia.com/gpu"
) -> ContainerResources:
    devices = {resource: frozenset(ids)} if ids else {}
    of_dra = frozenset(claims.split())
    return ContainerResources(
        "team", name, "main", devices, of_dra, parse_list(cpus), nodes=frozenset()
    )


def in_pod(
    gpu: int, cpuset: str = "0-255", *, uid: str = POD, pid: int = 100, container: str = "ab12" * 16
) -> AuditedProcess:
    member = Membership(Job("kubernetes", uid), container=container)
    return Judge(NODE).judge(
        process("0-3", pid=pid, gpu=("nvidia", gpu), cpuset=cpuset, membership=member)
    )


def named(
    *processes: AuditedProcess,
    containers: tuple[ContainerResources, ...],
    known: Mapping[str, ContainerResources] = NO_KNOWN,
) -> list[str | None]:
    candidates = Candidate.all_of(containers, WITH_MIG)
    found = containers_of(candidates, processes, known)
    pids = [process.facts.pid for process in processes]
    return [found[pid].pod if pid in found else None for pid in pids]


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


def test_replicas_of_hami_name_their_gpu() -> None:
    uuid = "GPU-8a1f0c3e-0000-4444-8888-0123456789ab"
    node = replace(NODE, gpus=(replace(NODE.gpus[0], uuid=uuid), *NODE.gpus[1:]))
    for replica in (f"{uuid}-3", f"{uuid}-12", uuid):
        assert devices(given("hami", replica), node) == {(("nvidia", 0), None)}


@pytest.mark.parametrize(
    ("gpu", "cpuset", "expected"),
    [
        (0, "0-255", "by-uuid"),
        (1, "0-255", "by-index"),
        (2, "0-255", "by-address"),
        (3, "0-255", "by-dra"),
        (4, "0-255", None),  # two containers fit
        (5, "4-7", "exclusive-b"),
        (5, "4", "exclusive-b"),  # a child of the container's cgroup
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
def test_mig_instances_tell_containers_of_a_gpu_apart(
    mig: str | None, expected: str | None
) -> None:
    its = in_pod(0)
    assert its.facts.holding is not None
    holding = replace(its.facts.holding, mig=mig)
    its = replace(its, facts=replace(its.facts, holding=holding))
    containers = given("a", "MIG-a", resource="nvidia.com/mig-1g.5gb"), given("b", "MIG-b")
    assert named(its, containers=containers) == [expected]


def test_two_pods_on_a_gpu_match_no_container_unless_one_has_only_a_known_daemon() -> None:
    train, monitor = in_pod(0), in_pod(0, uid=POD.replace("0d6f", "1d6f"), pid=101)
    containers = (given("train", "GPU-0"),)
    assert named(train, monitor, containers=containers) == [None, None]
    daemon = replace(monitor, is_daemon=True)
    assert named(train, daemon, containers=containers) == ["train", None]


def test_containers_that_the_runtime_names_need_no_match() -> None:
    containers = (given("shared-a", "GPU-4::0"), given("shared-b", "GPU-4::1"))
    known = {"a" * 64: containers[0], "b" * 64: containers[1]}
    its, other, third = (
        in_pod(4, uid=letter * 32, pid=pid, container=letter * 64)
        for pid, letter in enumerate("abc", 100)
    )
    assert named(its, other, third, containers=containers) == [None, None, None]
    names = named(its, other, third, containers=containers, known=known)
    assert names == ["shared-a", "shared-b", None], "the third is neither of the two"
    one = named(its, other, containers=containers, known={"a" * 64: containers[0]})
    assert one == ["shared-a", "shared-b"], "the other container is left for the other process"


def test_the_runtime_names_containers_that_kubelet_does_not_list(kubelet: Kubelet) -> None:
    assert LATER.facts.membership.container is not None
    known = {LATER.facts.membership.container: ("team", "late", "main")}
    kubelet.answer = HANGS
    late = KubeletPods(SOCKET).name(NODE, [LATER], known)
    assert (names(late), len(late.notices)) == (["late"], 1)
    asked = kubelet.asked
    late = KubeletPods(None).name(NODE, [LATER], known)
    assert (names(late), late.notices, kubelet.asked) == (["late"], (), asked)
    kubelet.answer = pod("late")
    (process,) = KubeletPods(SOCKET).name(NODE, [LATER], known).processes
    assert process.facts.given is not None
    assert process.facts.given.gpus == (("nvidia", 0),)


def test_gpus_are_reserved_by_containers_that_the_runtime_names(kubelet: Kubelet) -> None:
    kubelet.answer = pod("waits")  # kubelet still lists a pod that has ended
    pods = KubeletPods(SOCKET)
    assert pods.name(NODE, [], {"a" * 64: ("team", "waits", "main")}).reserved == {
        ("nvidia", 0): "pod team/waits"
    }
    assert pods.name(NODE, [], {"a" * 64: ("team", "other", "main")}).reserved == {}
    assert pods.name(NODE, [IN_POD]).reserved == {}


def test_a_matched_process_has_all_gpus_of_its_container() -> None:
    containers = (given("train", "GPU-0", "GPU-1"),)
    (its,) = containers_of(Candidate.all_of(containers, NODE), [in_pod(0)], NO_KNOWN).values()
    assert its.gpus == (("nvidia", 0), ("nvidia", 1))
