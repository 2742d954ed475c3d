"""Adjustments of a container with GPUs as it is created, and NRI's frames and messages."""

from dataclasses import replace
from typing import Any

import pytest

from affinityd.cpuset import format_list, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.kubernetes.nri import messages
from affinityd.kubernetes.nri.adjust import Adjustment, adjust, granted
from affinityd.kubernetes.nri.choices import Choices, Rules, choices_of, is_chosen, read_choices
from affinityd.kubernetes.nri.messages import FRAME, PLUGIN, RESPONSE, Trunk, Ttrpc, packed
from affinityd.topology.model import Node
from tests.support import nri
from tests.support.machines.facts import machine

A100 = machine("dgx-a100")  # GPUs 0-1 are on node 3, GPUs 2-3 on node 1; a node has 16 cores
GPUS = tuple(replace(gpu, uuid=f"GPU-{gpu.index}", minor=gpu.index) for gpu in A100.gpus)
NODE = Node(replace(A100, gpus=GPUS))
NEAR_0 = "48-63,176-191"
RULES = Rules({"training": Choices()})
UUIDS = "NVIDIA_VISIBLE_DEVICES=GPU-0"


def made(
    rules: Rules = RULES,
    node: Node = NODE,
    within: str | None = "0-255",
    memory: str = "0-7",
    **request: Any,  # noqa: ANN401
) -> Adjustment:
    pod, container = messages.created(nri.created(**request))
    return adjust(
        node,
        pod,
        container,
        rules,
        choices=choices_of(pod, rules),
        granted=granted(container),
        within=None if within is None else parse_list(within),
        memory=parse_list(memory),
    )


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"devices": ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"]}, "minor:0"),
        ({"devices": ["/dev/nvidia2", "/dev/nvidia0"], "env": [UUIDS]}, "minor:2,minor:0"),
        # A privileged container has every file: it must have been granted a GPU in another way.
        ({"devices": ["/dev/nvidia0", "/dev/kmsg"]}, ""),
        ({"devices": ["/dev/nvidia0", "/dev/nvidia1", "/dev/mem"], "env": [UUIDS]}, "GPU-0"),
        ({"devices": ["/dev/kfd", "/dev/dri/renderD129"]}, "drm:129"),
        ({"devices": ["/dev/davinci3", "/dev/davinci_manager"]}, "davinci:3"),
        ({"devices": ["/dev/accel/accel1", "/dev/accel/accel_controlD1"]}, "accel:1"),
        ({"devices": [], "env": [UUIDS]}, "GPU-0"),
        ({"devices": [], "env": ["NVIDIA_VISIBLE_DEVICES=0,1"]}, "0,1"),
        ({"devices": [], "env": ["NVIDIA_VISIBLE_DEVICES=all"]}, ""),
        ({"devices": [], "env": ["NVIDIA_VISIBLE_DEVICES=void"]}, ""),
        ({"devices": [], "env": ["NVIDIA_VISIBLE_DEVICES=/var/run/x"]}, ""),
        ({"devices": [], "env": ["ASCEND_VISIBLE_DEVICES=4,5"]}, "4,5"),
        ({"devices": [], "mounts": ["/var/run/nvidia-container-devices/GPU-7"]}, "GPU-7"),
        ({"devices": [], "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=GPU-3"}}, "GPU-3"),
        ({"devices": [], "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}, ""),
        ({"devices": [], "annotations": {"cdi.k8s.io/x": "rdma.io/nic=0"}}, ""),
        (
            {"devices": [], "annotations": {"cdi.k8s.io/x": "k8s.gpu.nvidia.com/claim=9a-gpu-5"}},
            "minor:5",
        ),
        ({"devices": []}, ""),
    ],
)
def test_the_gpus_of_a_new_container_follow_from_its_request(
    request_: dict[str, Any], expected: str
) -> None:
    _, container = messages.created(nri.created(**request_))
    assert granted(container) == expected


@pytest.mark.parametrize(
    ("request_", "cpus"),
    [
        ({}, NEAR_0),
        ({"devices": ["/dev/nvidia0", "/dev/nvidia1"]}, NEAR_0),
        ({"devices": ["/dev/nvidia0", "/dev/nvidia2"]}, "16-31,48-63,144-159,176-191"),
        ({"shares": 16 * 1024}, NEAR_0),
        # A privileged container may open every device; the variable names its GPUs.
        ({"devices": ["/dev/nvidia0", "/dev/nvidia2"], "env": [UUIDS]}, NEAR_0),
        ({"node": replace(NODE, reserved=parse_list("48-49"))}, "50-63,176-191"),
        ({"within": "0-15,48-50"}, "48-50"),
        ({"within": "0-15"}, "0-15"),
        ({"within": None}, ""),  # the pod's cpuset is not known: no CPUs are chosen
        ({"cpus": "0-127"}, ""),  # kubelet's static policy, or another plugin, chose them
        # A container without a request counts as if it asked for its GPUs' part of the node.
        ({"shares": 2}, NEAR_0),
        ({"shares": 2, "devices": ["/dev/nvidia0", "/dev/nvidia2"]}, "16-31,48-63,144-159,176-191"),
        ({"shares": 2, "devices": [f"/dev/nvidia{gpu}" for gpu in range(8)]}, "0-255"),
        ({"shares": 2, "rules": replace(RULES, without_request="keep")}, ""),
    ],
)
def test_a_container_s_cpuset_is_near_its_gpus(request_: dict[str, Any], cpus: str) -> None:
    adjusted = made(**request_)
    assert format_list(adjusted.cpus) == cpus
    told = {name: adjusted.environment.get(name) for name in ("AFFINITYD_CPULIST",)}
    assert told == {"AFFINITYD_CPULIST": cpus or None}


@pytest.mark.parametrize(
    ("request_", "least"),
    [
        ({"shares": 100 * 1024}, 100),
        ({"shares": 250 * 1024}, 250),
        ({"shares": 250 * 1024, "quota": 250 * 100000}, 250),
        ({"shares": 2, "quota": 250 * 100000}, 250),
        ({"shares": 2, "pod_shares": 250 * 1024}, 250),  # the pod's own request
        ({"shares": 2048, "quota": 40 * 100000}, 40),
        ({"shares": 40 * 1024 + 1, "devices": ["/dev/nvidia0", "/dev/nvidia2"]}, 41),
        ({"shares": 24 * 1024}, 48),  # the node's other GPU may have another such container
        ({"shares": 90 * 1024, "devices": ["/dev/nvidia0", "/dev/nvidia2"]}, 90),
        ({"quota": 1 << 63}, 1),  # -1: no limit
    ],
)
def test_a_container_gets_at_least_the_cpus_that_it_requested(
    request_: dict[str, Any], least: int
) -> None:
    adjusted = made(**request_)
    assert len(adjusted.cpus) >= least
    assert parse_list(NEAR_0) <= adjusted.cpus


@pytest.mark.parametrize("devices", [["/dev/nvidia0"], ["/dev/nvidia0", "/dev/nvidia1"]])
def test_a_container_stays_as_it_is_if_the_node_of_a_gpu_is_unknown(devices: list[str]) -> None:
    gpus = (replace(GPUS[0], numa_node=None), *GPUS[1:])
    adjusted = made(node=replace(NODE, topology=replace(A100, gpus=gpus)), devices=devices)
    assert (adjusted.outcome, adjusted.environment, adjusted.cpus) == ("unplaced", {}, frozenset())


@pytest.mark.parametrize(
    ("env", "labels", "site", "outcome"),
    [
        ([], {}, "on", "pinned"),
        (["AFFINITYD=off"], {}, "on", "off"),
        ([], {"affinityd": "off"}, "on", "off"),
        ([], {}, "off", "off"),
        (["AFFINITYD=observe"], {}, "on", "observed"),
        ([], {"affinityd": "observe"}, "on", "observed"),
        (["AFFINITYD=on"], {}, "observe", "observed"),
        (["AFFINITYD=nonsense"], {}, "on", "off"),
    ],
)
def test_the_strictest_switch_applies(
    env: list[str], labels: dict[str, str], site: str, outcome: str
) -> None:
    adjusted = made(node=replace(NODE, switch=site), env=env, labels=labels)
    assert adjusted.outcome == outcome
    assert bool(adjusted.cpus) == (outcome == "pinned")
    unpinned = f"observe: would run on CPUs {NEAR_0} (local)"
    expected = {"AFFINITYD_UNPINNED": unpinned} if outcome == "observed" else {}
    assert outcome == "pinned" or adjusted.environment == expected


@pytest.mark.parametrize(
    ("namespace", "labels", "expected"),
    [
        ("training", {}, True),
        ("other", {}, False),
        ("other", {"affinityd": "on"}, True),
        ("other", {"affinityd": "observe"}, True),
        ("kube-system", {"affinityd": "on"}, True),
        ("kube-system", {}, False),
    ],
)
def test_a_pod_s_label_adds_to_the_list_of_namespaces(
    namespace: str, labels: dict[str, str], *, expected: bool
) -> None:
    pod, _ = messages.created(nri.created(namespace, labels))
    assert is_chosen(pod, RULES) is expected
    assert is_chosen(pod, Rules({"*": Choices()})) is (expected or namespace != "kube-system")
    assert is_chosen(pod, Rules({namespace: Choices()}))


def note(labels: dict[str, str], **choices: str) -> dict[str, Any]:
    annotations = {f"affinityd/{name}": text for name, text in choices.items()}
    return {"labels": labels, "pod_annotations": {**annotations, "other/mode": "x"}}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (note({"affinityd": "enabled"}), "the label affinityd: 'enabled' is none of on"),
        (note({}, switch="enabled"), "the annotation affinityd/switch: 'enabled' is none of on"),
        (note({}, mode="nodes"), "the annotation affinityd/mode: 'nodes' is not one of all"),
        (
            note({}, nics="x" * 10**5),
            "the annotation affinityd/nics: 'x+…' is not one of ucx",
        ),
        (note({}, memory="0"), "the annotation affinityd/memory: '0' is neither near nor any"),
        (note({}, modes="node"), "affinityd/modes: there is no such choice; did you mean mode"),
        (note({}, **{"x" * 10**5: "a"}), "affinityd/x{64}: there is no such choice; known are"),
    ],
)
def test_a_meaningless_choice_is_refused_in_one_line(request_: dict[str, Any], error: str) -> None:
    pod, _ = messages.created(nri.created(**request_))
    with pytest.raises(InvalidRequestError, match=error) as raised:
        choices_of(pod, RULES)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("request_", "outcome", "cpus", "memory"),
    [
        (note({}), "observed", "", ""),
        (note({"affinityd": "on"}), "pinned", "0-63,128-191", "3"),
        (note({}, switch="on", mode="node"), "pinned", NEAR_0, "3"),
        (note({}, switch="on", mode="node", memory="any"), "pinned", NEAR_0, ""),
        (note({"affinityd": "on"}, switch="off"), "off", "", ""),
        (note({}, switch="on", mode="single"), "pinned", "48,176", "3"),
        (
            {**note({}, switch="on", mode="unique_contiguous"), "shares": 2},
            "pinned",
            "48-55,176-183",
            "3",
        ),
        ({**note({}, switch="on", mode="single"), "shares": 4096}, "kept", "", ""),
        # The container's CPUs may be far, but its memory is near its GPU.
        ({**note({}, switch="on", mode="node"), "within": "0-15"}, "pinned", "0-15", "3"),
        ({**note({}, switch="on"), "memory": "0-1"}, "pinned", "0-63,128-191", ""),
        ({**note({}, switch="on"), "mems": "0", "cpus": "0"}, "kept", "", ""),
    ],
)
def test_a_pod_s_annotations_overrule_the_choices_of_its_namespace(
    request_: dict[str, Any], outcome: str, cpus: str, memory: str
) -> None:
    choices = {"switch": "observe", "mode": "socket", "memory": "near"}
    rules = Rules({"training": read_choices(choices, Choices(), "")})
    adjusted = made(rules, **request_)
    expected = outcome, cpus, memory
    found = adjusted.outcome, format_list(adjusted.cpus), format_list(adjusted.memory_nodes)
    assert found == expected


def test_a_container_that_keeps_its_cpus_gets_their_nodes_and_is_counted_by_locality() -> None:
    kept = made(cpus="48-63,112-127")
    assert (kept.outcome, kept.locality) == ("kept", "mixed")
    assert kept.environment["AFFINITYD_NODES"] == "3,7"
    cut = made(cpus="48-63,112-127", within="0-63")  # a partition has the other CPUs
    assert (cut.locality, cut.environment["AFFINITYD_NODES"]) == ("local", "3")
    pinned = made(shares=40 * 1024)
    assert (pinned.outcome, pinned.locality) == ("pinned", "mixed")
    assert pinned.note.endswith(", of 256")


def test_variables_that_a_container_has_set_are_not_changed() -> None:
    adjusted = made(env=["AFFINITYD_LOCALITY=mine", "AFFINITYD_JOB_CPUS="], shares=4096)
    assert not {"AFFINITYD_LOCALITY", "AFFINITYD_JOB_CPUS"} & adjusted.environment.keys()
    assert adjusted.environment["AFFINITYD_NODES"] == "3"


@pytest.mark.parametrize(
    ("namespaces", "request_", "mounted"),
    [
        ("training", {}, True),
        ("*", {"namespace": "other"}, True),
        ("training", {"namespace": "other", "labels": {"affinityd": "on"}}, False),
        ("training", {"mounts": ["/run/affinityd"]}, False),
        ("training", {"mounts": ["/run"]}, False),
        ("training", {"mounts": ["/run/affinityd/deeper/"]}, False),
        ("training", {"mounts": ["/run/affinityd-too", "/"]}, False),
        ("training", {"mounts": ["/run/affinityd-too"]}, True),
    ],
)
def test_the_socket_s_folder_is_mounted_only_in_listed_namespaces_and_over_no_mount(
    namespaces: str, request_: dict[str, Any], *, mounted: bool
) -> None:
    rules = Rules({namespaces: Choices()}, folder="/srv/affinityd")
    assert made(rules, **request_).folder == ("/srv/affinityd" if mounted else None)


@pytest.mark.parametrize(
    ("nics", "request_", "expected"),
    [
        ("ucx,nccl", {}, {"UCX_NET_DEVICES": "mlx5_0:1", "NCCL_IB_HCA": "=mlx5_0:1"}),
        ("ucx", {"env": ["UCX_NET_DEVICES=mine"]}, {}),
        ("ucx", {"env": ["AFFINITYD_NICS=none"]}, {}),
        ("", {"env": ["AFFINITYD_NICS=uccl"]}, {"UCCL_P2P_RDMA_DEV": "mlx5_0"}),
        ("", {}, {}),
        ("ucx,nonsense", {}, {}),
        ("ucx", {"devices": ["/dev/nvidia0"]}, {}),  # no NIC can be opened
        ("ucx", {"devices": ["/dev/nvidia0", "/dev/nvidia1", "/dev/infiniband/uverbs0"]}, {}),
    ],
)
def test_a_container_with_one_rank_gets_variables_of_its_nics(
    nics: str, request_: dict[str, Any], expected: dict[str, str]
) -> None:
    near = machine("dgx-h100")
    gpus = tuple(replace(gpu, minor=gpu.index) for gpu in near.gpus)
    files = {"devices": ["/dev/nvidia0", "/dev/infiniband/uverbs0"]}
    verbs = {"mlx5_0": ("uverbs0",)}
    namespaces = {"training": Choices(nics=nics)}
    rules = replace(RULES, namespaces=namespaces, verbs=lambda device: verbs.get(device, ()))
    adjusted = made(rules, Node(replace(near, gpus=gpus)), **{**files, **request_})
    told = {name: it for name, it in adjusted.environment.items() if "AFFINITYD" not in name}
    assert told == expected


SHORT, LONG = (Ttrpc(PLUGIN, 7, RESPONSE, b"x" * size) for size in (3, 3 * 4096))


@pytest.mark.parametrize("part", [1, 7, 4096, 10**6])
def test_messages_are_joined_from_any_parts(part: int) -> None:
    sent = packed(SHORT) + packed(LONG) + FRAME.pack(9, 2) + b"xx" + packed(SHORT)
    trunk = Trunk()
    assert FRAME.unpack_from(packed(LONG))[1] == 4096, "a runtime's buffer holds no longer frame"
    parts = (sent[place : place + part] for place in range(0, len(sent), part))
    assert [it for data in parts for it in trunk.received(data)] == [SHORT, LONG, SHORT]
