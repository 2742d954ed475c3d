"""What numa_maps and the kernel's numbers tell of memory, as text."""

from __future__ import annotations

import pytest

from affinityd.linux import memory_policy

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("default", "default"),
        ("local", "local"),
        ("bind:3\n", "bind on node 3"),
        ("prefer:3", "preferred on node 3"),
        ("prefer (many):1,3 stack anon=1", "preferred_many on nodes 1,3"),
        ("interleave:0-1", "interleave on nodes 0-1"),
        ("weighted interleave:0-1,4", "weighted_interleave on nodes 0-1,4"),
        ("prefer=relative:0", "preferred on node 0"),
        ("prefer (many)=static:0-1", "preferred_many on nodes 0-1"),
        ("bind=static|balancing:0,2", "bind on nodes 0,2"),
        ("bind:3 file=/usr/bin/x mapped=2 N0=2 kernelpagesize_kB=4", "bind on node 3"),
        ("default heap anon=1 dirty=1 N0=1 kernelpagesize_kB=4", "default"),
        *((it, "None") for it in ("", "unknown", "bind", "bind:", "bind:x", "bind:3-", "binds:3")),
        *((it, "None") for it in ("prefer", "local:3", "default:0")),
    ],
)
def test_the_policy_column_of_numa_maps_is_read(text: str, held: str) -> None:
    assert str(memory_policy.parse_policy(text)) == held


@pytest.mark.parametrize(
    ("mapping", "amounts"),
    [
        (b"7f00 default anon=17 dirty=17 N3=17 kernelpagesize_kB=4\n", {3: 17 * 4096}),
        (b"7f00 bind:0-1 huge N0=2 N1=1 kernelpagesize_kB=2048\n", {0: 4 * MIB, 1: 2 * MIB}),
        (b"4000 prefer (many):0,2 file=/N1 N2=1 kernelpagesize_kB=64\n", {2: 65536}),
        (b"7f00 default file=/tmp/a\\040N0\\0759 N1=1 kernelpagesize_kB=4\n", {1: 4096}),
        (b"7f00 default stack\n", {}),
    ],
)
def test_bytes_of_a_mapping_by_node(mapping: bytes, amounts: dict[int, int]) -> None:
    assert memory_policy.bytes_by_node(mapping) == amounts
