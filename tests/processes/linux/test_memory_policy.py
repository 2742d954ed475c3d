"""The memory policy of a thread, set and read back in the real kernel.

Everything that sets one runs in a child: the tests' own process keeps its policy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from affinityd.linux import memory_policy, syscalls
from tests.support.paths import REPOSITORY

PATIENCE = 30  #: seconds that a child may take; a busy machine is slow
MIB = 1 << 20

#: The nodes of a policy that was asked for on node 0, and how numa_maps spells it.
ON_0 = [
    pytest.param("local", [], "local", id="local"),
    pytest.param("preferred", [0], "prefer:0", id="preferred"),
    pytest.param("bind", [0], "bind:0", id="bind"),
    pytest.param("interleave", [0], "interleave:0", id="interleave"),
]

PRELUDE = """
import json, os, subprocess, sys, threading
from affinityd.linux.memory_policy import own_policy, policy_of, resident_bytes, set_policy

ON_0, ON_1 = frozenset({0}), frozenset({1})

def told(it):
    return it and [it.policy, sorted(it.nodes), list(it.refusals)]

def tell(*them):
    print(json.dumps([told(it) for it in them]), flush=True)
"""

#: seccomp(2): the call, if its first argument is `mode` where one is named, returns the error.
SECCOMP = (
    PRELUDE
    + """
import ctypes, errno, resource, struct
from affinityd.linux.syscalls import NUMBERS

SET, GET, *_ = NUMBERS[os.uname().machine]
LOAD, JUMP_IF_EQUAL, RETURN, ERRNO, ALLOW = 0x20, 0x15, 0x06, 0x50000, 0x7FFF0000
NO_NEW_PRIVS, SECCOMP_ON, FILTER = 38, 22, 2

def refuse(number, error, mode=None):
    tests = [(0, number)] + ([] if mode is None else [(16, mode)])
    steps = []
    for place, (offset, value) in enumerate(tests):
        to_allow = 2 * (len(tests) - place) - 1
        steps += [(LOAD, 0, 0, offset), (JUMP_IF_EQUAL, 0, to_allow, value)]
    steps += [(RETURN, 0, 0, ERRNO | error), (RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *it) for it in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None).prctl
    assert prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert prctl(SECCOMP_ON, FILTER, program, 0, 0) == 0

def open_nothing_more():
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
"""
)

LEFT_OUT = "without memory, or outside Mems_allowed"
NO_NODE = "(EINVAL: nonexistent, without memory, or outside Mems_allowed)"
NO_NODE_OR_OLD = f"{NO_NODE[:-1]}; or the kernel is too old for it)"
NO_PERMISSION = "(EPERM: Operation not permitted)"


def child(code: str, prelude: str = PRELUDE) -> Any:  # noqa: ANN401 - what the child told
    done = subprocess.run(
        [sys.executable, "-c", prelude + code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def waiting(code: str) -> Iterator[subprocess.Popen[str]]:
    """Start a child that tells, and waits to be told, by lines."""
    command = [sys.executable, "-c", PRELUDE + code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def columns_of(pid: int) -> set[str]:
    return {line.split()[1] for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines()}


# What holds.


@pytest.mark.parametrize(("policy", "nodes", "spelling"), ON_0)
def test_a_policy_is_held_and_seen_from_outside(
    policy: str, nodes: list[int], spelling: str
) -> None:
    with waiting(f"tell(set_policy({policy!r}, ON_0)); input()") as process:
        assert json.loads(line_of(process)) == [[policy, nodes, []]]
        assert columns_of(process.pid) == {spelling}
        seen = memory_policy.policy_of(process.pid)
    assert seen
    assert (seen.policy, sorted(seen.nodes)) == (policy, nodes)


@pytest.mark.parametrize("heir", ["a thread", "a child", "a program"])
@pytest.mark.parametrize(("policy", "nodes", "spelling"), ON_0)
def test_a_policy_is_inherited(heir: str, policy: str, nodes: list[int], spelling: str) -> None:
    program = f"tell(own_policy()); assert {spelling!r} in open('/proc/self/numa_maps').read()"
    told = child(f"""
set_policy({policy!r}, ON_0)
command = [sys.executable, "-c", {PRELUDE + program!r}]
match {heir!r}:
    case "a thread":
        thread = threading.Thread(target=lambda: tell(own_policy()))
        thread.start()
        thread.join()
    case "a child":
        subprocess.run(command, check=True)
    case "a program":
        os.execv(sys.executable, command)
""")
    assert told == [[policy, nodes, []]]


def test_a_thread_that_was_there_before_keeps_its_own_policy() -> None:
    before, after = child("""
go, of_threads = threading.Event(), []
thread = threading.Thread(target=lambda: (go.wait(), of_threads.append(own_policy())))
thread.start()
set_policy("bind", ON_0)
go.set()
thread.join()
tell(*of_threads, own_policy())
""")
    assert (before, after) == (["default", [], []], ["bind", [0], []])


def test_local_undoes_what_was_inherited() -> None:
    assert child('set_policy("bind", ON_0); tell(set_policy("local", ON_1))') == [["local", [], []]]


def test_a_process_that_asked_for_nothing_holds_the_default() -> None:
    assert child("tell(own_policy(), policy_of(os.getpid()))") == [["default", [], []]] * 2


def test_flags_that_came_with_a_mode_are_passed_over() -> None:
    [[policy, nodes, _]] = child("""
from affinityd.linux import syscalls
syscalls.set_mempolicy(2 | 1 << 15, ON_0)
tell(own_policy())
""")
    assert (policy, nodes) == ("bind", [0])


@pytest.mark.parametrize(
    ("mode", "nodes", "held"),
    [
        pytest.param(1, [], "local", id="kernels before 5.14 tell so of local"),
        pytest.param(6, [0, 1], "weighted_interleave on nodes 0-1", id="kernel 6.9"),
        pytest.param(9, [1], "mode 9 on node 1", id="a kernel to come"),
    ],
)
def test_what_other_kernels_tell_is_named(
    monkeypatch: pytest.MonkeyPatch, mode: int, nodes: list[int], held: str
) -> None:
    monkeypatch.setattr(syscalls, "get_mempolicy", lambda: (mode, frozenset(nodes)))
    assert str(memory_policy.own_policy()) == held


# What does not.


@pytest.mark.parametrize(
    ("asked", "held", "refusals"),
    [
        pytest.param(
            "'bind', ON_1",
            ["default", []],
            [
                f"bind on node 1 was refused {NO_NODE}",
                f"preferred on node 1 was refused {NO_NODE}; default holds",
            ],
            id="bind, then preferred, then none",
        ),
        pytest.param(
            "'preferred', ON_1",
            ["default", []],
            [f"preferred on node 1 was refused {NO_NODE}; default holds"],
            id="preferred, then none",
        ),
        pytest.param(
            "'preferred', frozenset({1, 2})",
            ["local", []],
            [f"preferred_many on nodes 1-2 was refused {NO_NODE_OR_OLD}; local holds"],
            id="preferred with several nodes, then local",
        ),
        pytest.param(
            "'interleave', ON_1",
            ["default", []],
            [f"interleave on node 1 was refused {NO_NODE}; default holds"],
            id="interleave, then none",
        ),
        pytest.param(
            "'preferred', frozenset({1023})",
            ["default", []],
            [f"preferred on node 1023 was refused {NO_NODE}; default holds"],
            id="the last node that a kernel can have",
        ),
        pytest.param(
            "'preferred', frozenset({1024})",
            ["default", []],
            [f"preferred on node 1024 was refused {NO_NODE}; default holds"],
            id="a node that no kernel can have",
        ),
        pytest.param(
            "'preferred', frozenset({-1})",
            ["default", []],
            [f"preferred on node -1 was refused {NO_NODE}; default holds"],
            id="no node's number",
        ),
        pytest.param(
            "'bind', frozenset({0, 1, 1023})",
            ["bind", [0]],
            [f"bind on nodes 0-1,1023 left out nodes 1,1023: {LEFT_OUT}"],
            id="some of the nodes",
        ),
        pytest.param(
            "'preferred', ON_0 | ON_1",
            ["preferred_many", [0]],
            [f"preferred_many on nodes 0-1 left out node 1: {LEFT_OUT}"],
            id="some of the preferred nodes",
        ),
        pytest.param(
            "'bind', frozenset()",
            ["default", []],
            ["bind needs a node and was given none; default holds"],
            id="no nodes",
        ),
    ],
)
def test_what_is_refused_degrades_and_says_so(
    asked: str, held: list[Any], refusals: list[str]
) -> None:
    assert child(f"tell(set_policy({asked}))") == [[*held, refusals]]


def test_a_refusal_leaves_what_held_before() -> None:
    [[policy, nodes, refusals]] = child(
        'set_policy("interleave", ON_0); tell(set_policy("bind", ON_1))'
    )
    assert (policy, nodes) == ("interleave", [0])
    assert refusals[-1].endswith("; interleave on node 0 holds")


def test_seccomp_refuses_every_policy_and_the_process_goes_on() -> None:
    of_bind, of_local = child(
        'refuse(SET, errno.EPERM); tell(set_policy("bind", ON_0), set_policy("local", ON_0))',
        SECCOMP,
    )
    assert of_bind == [
        *("default", []),
        [
            f"bind on node 0 was refused {NO_PERMISSION}",
            f"preferred on node 0 was refused {NO_PERMISSION}; default holds",
        ],
    ]
    assert of_local == ["default", [], [f"local was refused {NO_PERMISSION}; default holds"]]


def test_where_seccomp_refuses_bind_alone_preferred_holds() -> None:
    code = 'refuse(SET, errno.EPERM, mode=2); tell(set_policy("bind", ON_0))'
    refusal = f"bind on node 0 was refused {NO_PERMISSION}; preferred on node 0 holds"
    assert child(code, SECCOMP) == [["preferred", [0], [refusal]]]


def test_where_seccomp_refuses_the_reading_numa_maps_tells() -> None:
    code = 'refuse(GET, errno.EPERM); tell(set_policy("bind", ON_0), own_policy())'
    assert child(code, SECCOMP) == [["bind", [0], []]] * 2


def test_the_calling_threads_policy_is_read_from_numa_maps_not_the_first_threads() -> None:
    code = """
refuse(GET, errno.EPERM)
thread = threading.Thread(target=lambda: (set_policy("bind", ON_0), tell(own_policy())))
thread.start()
thread.join()
"""
    assert child(code, SECCOMP) == [["bind", [0], []]]


def test_what_can_neither_be_set_nor_read_is_unknown() -> None:
    accepted, none, refused = child(
        """
refuse(GET, errno.EPERM)
open_nothing_more()
accepted, none = set_policy("bind", ON_0), own_policy()
refuse(SET, errno.EPERM)
tell(accepted, none, set_policy("interleave", ON_0))
""",
        SECCOMP,
    )
    unread = "what holds cannot be read"
    assert accepted == [None, [], [f"bind on node 0 was accepted, but {unread}"]]
    assert none is None
    refusal = f"interleave on node 0 was refused {NO_PERMISSION}; {unread}"
    assert refused == [None, [], [refusal]]


def test_what_is_accepted_and_does_not_hold_is_said() -> None:
    code = 'refuse(SET, 0); tell(set_policy("bind", ON_0))'
    refusal = "bind on node 0 was accepted, but default holds"
    assert child(code, SECCOMP) == [["default", [], [refusal]]]


def test_a_kernel_without_preferred_many_holds_local_instead() -> None:
    code = 'refuse(SET, errno.EINVAL, mode=5); tell(set_policy("preferred", frozenset({0, 1})))'
    refusal = f"preferred_many on nodes 0-1 was refused {NO_NODE_OR_OLD}"
    assert child(code, SECCOMP) == [["local", [], [f"{refusal}; local holds"]]]


def test_a_machine_whose_system_calls_are_not_known_is_refused() -> None:
    machine, [policy, nodes, [refusal]] = child(
        """
LINUX32 = 8  # personality(2): uname then tells the 32-bit machine
ctypes.CDLL(None).personality(LINUX32)
print(json.dumps([os.uname().machine, told(set_policy("preferred", ON_0))]))
""",
        SECCOMP,
    )
    assert machine not in syscalls.NUMBERS
    assert (policy, nodes) == ("default", [])
    assert refusal == (
        "preferred on node 0 was refused (ENOSYS: no number of set_mempolicy is known on"
        f" {machine}, only on 64-bit x86_64, aarch64, ppc64le); default holds"
    )


def test_a_python_without_ctypes_is_refused() -> None:
    [[policy, _, [refusal]]] = child(
        'sys.modules["ctypes"] = None; tell(set_policy("local", ON_0))'
    )
    assert policy == "default"
    assert refusal.startswith("local was refused (ENOSYS: ")


# What other processes hold.


@pytest.mark.parametrize(
    ("text", "policy", "nodes"),
    [
        ("default", "default", []),
        ("local", "local", []),
        ("bind:3", "bind", [3]),
        ("prefer:3", "preferred", [3]),
        ("prefer (many):1,3", "preferred_many", [1, 3]),
        ("interleave:0-1", "interleave", [0, 1]),
        ("weighted interleave:0-1,4", "weighted_interleave", [0, 1, 4]),
        ("bind=static:3", "bind", [3]),
        ("prefer=relative:0", "preferred", [0]),
        ("prefer (many)=static:0-1", "preferred_many", [0, 1]),
        ("bind=static|balancing:0,2", "bind", [0, 2]),
        ("bind:3\n", "bind", [3]),
        ("bind:3 file=/usr/bin/x mapped=2 N0=2 kernelpagesize_kB=4", "bind", [3]),
        ("default heap anon=1 dirty=1 N0=1 kernelpagesize_kB=4", "default", []),
        ("prefer (many):1,3 stack anon=1", "preferred_many", [1, 3]),
    ],
)
def test_the_policy_column_is_read(text: str, policy: str, nodes: list[int]) -> None:
    parsed = memory_policy.parse_policy(text)
    assert parsed
    assert (parsed.policy, sorted(parsed.nodes), parsed.refusals) == (policy, nodes, ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unknown",
        "bind",
        "bind:",
        "bind:x",
        "bind:3-",
        "binds:3",
        "prefer",
        "local:3",
        "default:0",
    ],
)
def test_what_is_no_policy_column_is_not_guessed_at(text: str) -> None:
    assert memory_policy.parse_policy(text) is None


@pytest.mark.parametrize("spelling", ["bind", "prefer (many)", "weighted interleave"])
@pytest.mark.parametrize("address", ["400000", "5566604d200", "5566604d2000"])
def test_a_list_that_is_cut_short_is_unreadable(
    tmp_path: Path, address: str, spelling: str
) -> None:
    file = tmp_path / "numa_maps"
    even = ",".join(str(node) for node in range(0, 40, 2))
    file.write_text(f"{address} {spelling}:{even} file=/usr/bin/x mapped=2\n")
    assert memory_policy._first_policy(str(file)) is None
    file.write_text(f"{address} {spelling}:0-39 file=/usr/bin/x mapped=2\n")
    assert memory_policy._first_policy(str(file))


def test_a_mapping_without_pages_before_the_programs_own_tells_the_policy_too() -> None:
    code = """
import ctypes
mmap = ctypes.CDLL(None).mmap
mmap.restype = ctypes.c_void_p
mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 5]
PRIVATE, ANONYMOUS, FIXED = 0x02, 0x20, 0x10
assert mmap(0x200000, 4096, 0, PRIVATE | ANONYMOUS | FIXED, -1 % 2**64, 0) == 0x200000
set_policy("bind", ON_0)
assert open("/proc/self/numa_maps").readline() == "00200000 bind:0\\n"
tell(policy_of(os.getpid()))
"""
    assert child(code) == [["bind", [0], []]]


def test_a_process_that_is_gone_or_anothers_has_no_readable_policy() -> None:
    code = """
if os.geteuid() == 0:
    os.setuid(65534)
try:
    resident_bytes(1)
except PermissionError:
    tell(policy_of(1), policy_of(2**22 + 1))
"""
    assert child(code) == [None, None]


def test_resident_memory_is_counted_by_node() -> None:
    code = """
import mmap
print(flush=True); input()
area = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for place in range(0, len(area), mmap.PAGESIZE):
    area[place] = 1
print(flush=True); input()
"""
    with waiting(code) as process:
        assert process.stdin
        line_of(process)
        before = memory_policy.resident_bytes(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        line_of(process)
        after = memory_policy.resident_bytes(process.pid)
    assert before.keys() == after.keys() == {0}
    assert 64 * MIB <= after[0] - before[0] < 66 * MIB


def test_resident_memory_of_a_process_that_is_gone_cannot_be_read() -> None:
    with pytest.raises(OSError, match="No such file"):
        memory_policy.resident_bytes(2**22 + 1)


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
def test_a_mapping_tells_its_bytes_by_node(mapping: bytes, amounts: dict[int, int]) -> None:
    assert memory_policy._amounts(mapping) == amounts


# What it costs.


def test_no_slow_module_is_imported_and_ctypes_only_by_who_asks_the_kernel() -> None:
    slow = {"re", "json", "typing", "dataclasses", "enum", "functools", "pathlib", "subprocess"}
    code = """
import sys
import affinityd.linux.memory_policy
from affinityd.linux.memory_policy import policy_of, set_policy
policy_of(1)
print(*sys.modules)
set_policy("bind", frozenset({0}))
print(*sys.modules)
"""
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    imported, after_asking = (set(line.split()) for line in done.stdout.splitlines())
    assert "affinityd.linux.memory_policy" in imported
    assert not imported & {*slow, "ctypes"}
    assert "ctypes" in after_asking
    assert not after_asking & slow


def test_the_tests_own_process_keeps_its_policy() -> None:
    held, seen = memory_policy.own_policy(), memory_policy.policy_of(os.getpid())
    assert held
    assert seen
    assert (held.policy, seen.policy) == ("default", "default")
