"""Kubelet's list of pods, as Protocol Buffers has it."""

from __future__ import annotations

import pytest

from affinityd.cpuset import parse_list
from affinityd.kubernetes.podresources import MOST, _containers, containers
from affinityd.linux import protobuf as wire
from affinityd.linux.protobuf import MOST_FIELDS


def field(number: int, data: bytes) -> bytes:
    """Return a field of bytes, as Protocol Buffers writes it."""
    return bytes([number << 3 | 2, len(data)]) + data


DEVICES = field(1, b"nvidia.com/gpu") + field(2, b"GPU-0") + field(2, b"GPU-1")
ON_NODE_0 = field(3, field(1, b""))  # NUMA node 0 is the default, and not written
ON_NODE_3 = field(3, field(1, b"\x08\x03"))
CLAIM = field(5, field(2, b"claim") + field(4, field(2, b"gpu.nvidia.com") + field(4, b"gpu-7")))
PACKED, ALONE = field(3, b"\x01\xac\x02"), b"\x18\x04"


def pod(*fields: bytes) -> bytes:
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
def test_what_kubelet_says_of_a_container(
    fields: tuple[bytes, ...], expected: dict[str, object]
) -> None:
    (found,) = _containers(pod(*fields))
    assert (found.namespace, found.pod, found.container) == ("team", "train-0", "main")
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0a", b"\xff" * 12, b"\x0a\x02\x0a\x09"])
def test_what_is_cut_off_is_no_list(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut off|bits"):
        list(_containers(data))


def test_as_many_pods_as_a_node_has_are_read() -> None:
    assert len(containers(pod() * 500)) == 500


@pytest.mark.parametrize(
    "answer",
    [
        pod() * (MOST + 1),
        b"\x0a\x00" * (MOST_FIELDS + 1),
        wire.field(1, wire.field(3, wire.field(3, b"\x01" * (MOST_FIELDS + 1)))),
    ],
)
def test_more_than_a_node_can_have_is_no_list(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"^the answer is no list of pods: over [0-9]+ "):
        containers(answer)
