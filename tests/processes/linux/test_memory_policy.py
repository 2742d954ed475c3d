"""The memory policy of a thread, set and read back in the real kernel, and read from numa_maps.

Code that sets a policy runs in a child: the tests' own process keeps its policy.
"""

import ctypes
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from affinityd.linux import memory_policy, syscalls
from affinityd.linux.memory_policy import MemoryPolicy
from tests.support.child_python import SECCOMP, said
from tests.support.children import program
from tests.support.paths import REPOSITORY

PRELUDE = f"""
import json, os, sys, threading
sys.path.insert(0, {os.fspath(REPOSITORY)!r})
from affinityd.linux.memory_policy import own_policy, policy_of, set_policy

ON_0, ON_1 = frozenset({{0}}), frozenset({{1}})

def told(it):
    return it and [str(it), *it.refusals]

def tell(*them):
    print(json.dumps([told(it) for it in them]), flush=True)
"""

NODE = "nonexistent, without memory, or outside Mems_allowed"
NO = f"was refused (EINVAL: {NODE})"
NO_OR_OLD = f"was refused (EINVAL: {NODE}; or the kernel is too old for it)"
FORBIDDEN = "was refused (EPERM: Operation not permitted)"
ACCEPTED = "was accepted, but "


def child(code: str) -> list[object]:
    """Run code, and return its results: the name of each policy, and its refusals."""
    told: list[object] = json.loads(said(PRELUDE + SECCOMP + code))
    return told


# Policies that take effect.


@pytest.mark.parametrize(
    ("policy", "nodes", "spelling"),
    [
        ("local", set(), "local"),
        ("preferred", {0}, "prefer:0"),
        ("bind", {0}, "bind:0"),
        ("interleave", {0}, "interleave:0"),
    ],
)
def test_a_policy_applies_and_is_seen_from_outside(
    policy: str, nodes: set[int], spelling: str
) -> None:
    code = f"held = set_policy({policy!r}, ON_0); assert held == own_policy(); tell(held); input()"
    with program(PRELUDE + code) as process:
        lines = Path(f"/proc/{process.pid}/numa_maps").read_text().splitlines()
        assert {line.split()[1] for line in lines} == {spelling}
        seen = memory_policy.policy_of(process.pid)
    assert seen == MemoryPolicy(policy, frozenset(nodes))


@pytest.mark.parametrize(
    ("mode", "nodes", "policy"),
    [
        (1, {3}, "preferred on node 3"),
        (1, set(), "local"),  # as kernels before 5.14 answer
        (7, {3}, "mode 7 on node 3"),
    ],
)
def test_every_mode_of_a_kernel_has_a_name(
    monkeypatch: pytest.MonkeyPatch, mode: int, nodes: set[int], policy: str
) -> None:
    monkeypatch.setattr(syscalls, "get_mempolicy", lambda: (mode, frozenset(nodes)))
    assert str(memory_policy.own_policy()) == policy


# Policies that are refused, or have no effect.


@pytest.mark.parametrize(
    ("policy", "nodes", "refusal"),
    [
        ("bind", {1}, f"bind on node 1 {NO}"),
        ("preferred", {1, 2}, f"preferred_many on nodes 1-2 {NO_OR_OLD}"),
        # The last node that a kernel can have, and a node that no kernel can have.
        ("preferred", {1023}, f"preferred on node 1023 {NO}"),
        ("preferred", {1024}, f"preferred on node 1024 {NO}"),
        ("bind", set(), "bind needs a node and was given none"),
    ],
)
def test_a_refused_policy_changes_nothing_and_says_so(
    policy: str, nodes: set[int], refusal: str
) -> None:
    told = child(f"tell(set_policy({policy!r}, frozenset({nodes})))")
    assert told == [["default", f"{refusal}; default applies"]]


def test_nodes_that_the_kernel_leaves_out_are_reported() -> None:
    bound, preferred, kept = child(
        "tell(set_policy('bind', {0, 1, 1023}), set_policy('preferred', {0, 1}),"
        "set_policy('interleave', {1}))"
    )
    lacks = "without memory, or outside Mems_allowed"
    assert bound == ["bind on node 0", f"bind on nodes 0-1,1023 left out nodes 1,1023: {lacks}"]
    held = "preferred_many on node 0"
    assert preferred == [held, f"preferred_many on nodes 0-1 left out node 1: {lacks}"]
    assert kept == [held, f"interleave on node 1 {NO}; {held} applies"]


ON_0_NOT = f"bind on node 0 {FORBIDDEN}; default applies"
BIND, WISH = 'set_policy("bind", ON_0)', "bind on node 0"
IN_A_THREAD = f"""
thread = threading.Thread(target=lambda: ({BIND}, tell(own_policy())))
thread.start(); thread.join()"""


@pytest.mark.parametrize(
    ("refused", "code", "told"),
    [
        ('"set_mempolicy"', f"tell({BIND})", [["default", ON_0_NOT]]),
        # Accepted, but without effect.
        ('"set_mempolicy", 0', f"tell({BIND})", [["default", f"{WISH} {ACCEPTED}default applies"]]),
        # numa_maps shows the policy of the thread, not of the main thread.
        ('"get_mempolicy"', f"tell({BIND}, own_policy())", [[WISH]] * 2),
        ('"get_mempolicy"', IN_A_THREAD, [[WISH]]),
    ],
)
def test_a_policy_that_seccomp_refuses_is_reported(refused: str, code: str, told: object) -> None:
    assert child(f"refuse({refused})\n{code}") == told


# The policies of other processes.


def test_the_policy_of_an_ended_or_another_user_s_process_is_unknown() -> None:
    assert child("""
if os.geteuid() == 0:
    os.setuid(65534)
tell(policy_of(1), policy_of(2**22 + 1))
""") == [None, None]


#: AUDIT_ARCH_* of linux/audit.h.
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "ppc64le": 0xC0000015}


def test_the_numbers_of_system_calls_equal_libseccomp_s() -> None:
    resolve = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    for machine, numbers in syscalls.SYSCALL_NUMBERS.items():
        for call, number in numbers.items():
            token = ctypes.c_uint32(MACHINES[machine])
            assert resolve(token, call.encode()) == number, (machine, call)


def test_no_system_call_with_an_unknown_number_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    with pytest.raises(OSError, match="only on 64-bit"):
        syscalls.get_mempolicy()


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("default", "default"),
        ("local", "local"),
        ("prefer:3", "preferred on node 3"),
        ("prefer (many):1,3 stack anon=1", "preferred_many on nodes 1,3"),
        ("weighted interleave:0-1,4", "weighted_interleave on nodes 0-1,4"),
        ("prefer=relative:0", "preferred on node 0"),
        ("bind=static|balancing:0,2", "bind on nodes 0,2"),
        ("bind:3 file=/usr/bin/x mapped=2 N0=2 kernelpagesize_kB=4", "bind on node 3"),
        ("default heap anon=1 dirty=1 N0=1 kernelpagesize_kB=4", "default"),
        *((it, "None") for it in ("", "unknown", "bind", "bind:", "bind:x", "bind:3-", "binds:3")),
        *((it, "None") for it in ("prefer", "local:3", "default:0")),
    ],
)
def test_the_policy_column_of_numa_maps_is_read(text: str, held: str) -> None:
    assert str(memory_policy.parse_policy(text)) == held
