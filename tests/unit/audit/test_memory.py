"""The host memory of a process: how much is far, why, and the remedy."""

from collections.abc import Mapping
from concurrent.futures import wait
from threading import Event

import pytest

from affinityd import threads
from affinityd.audit import memory as module
from affinityd.audit.memory import HostMemory, MemoryMeter
from affinityd.linux.memory_policy import MemoryPolicy
from affinityd.linux.resident import ANONYMOUS, CUDA_MAPPED, HUGE, MAPPED, SHARED, ResidentMemory
from affinityd.topology.nearness import LOCAL, UNKNOWN, Vicinity

GIB = 2**30
FAR = 1  #: node 0 is near


def memory(
    drawn: Mapping[tuple[str, int], int],
    facts: Mapping[str, object] | None = None,
    locked: Mapping[str, int] | None = None,
) -> HostMemory:
    resident = ResidentMemory({ANONYMOUS: 212 * GIB}, drawn, locked or {})
    base: dict[str, object] = {"near": frozenset({0}), "far": frozenset({FAR, 3})}
    base |= {"placement": LOCAL, **(facts or {})}
    return HostMemory(resident, **base)  # type: ignore[arg-type]


def policy(name: str, *nodes: int) -> MemoryPolicy:
    return MemoryPolicy(name, frozenset(nodes))


PRIVATE = {(ANONYMOUS, 0): 62, (ANONYMOUS, FAR): 38}
TOUCHED = {(ANONYMOUS, FAR): 20, (SHARED, FAR): 10, (MAPPED, FAR): 9, (SHARED, 0): 90}
POOL = {(HUGE, FAR): 40, (SHARED, FAR): 20, (MAPPED, FAR): 20}
NO_PLACE = Vicinity((), (), frozenset(), frozenset(), frozenset())
SOME = 81 * GIB  #: about 38 % of 212 GiB


@pytest.mark.parametrize(
    ("cause", "drawn", "facts"),
    [
        (None, {(ANONYMOUS, 0): 91, (ANONYMOUS, FAR): 9}, {}),
        (None, {}, {}),
        (None, PRIVATE, {"near": frozenset()}),
        (None, {(ANONYMOUS, 0): 10, (ANONYMOUS, 8): 90}, {}),  # a GPU's own memory
        ("late", PRIVATE, {}),
        ("late", TOUCHED, {}),
        ("late", PRIVATE, {"policy": policy("preferred", 0)}),
        ("late", PRIVATE, {"policy": policy("bind", 0, 1)}),  # the nearest allowed node comes first
        ("late", PRIVATE, {"refused": SOME}),  # there is room now: the refusal may be old
        ("late", PRIVATE, {"refused": SOME / 2, "room": GIB}),
        ("policy", PRIVATE, {"policy": policy("bind", 1)}),
        ("policy", POOL, {"policy": policy("preferred", 1)}),
        ("policy", PRIVATE, {"policy": policy("interleave", 0, 1)}),
        ("shared", POOL, {}),
        ("allocation", PRIVATE, {"allowed": frozenset({1, 3})}),
        ("late", PRIVATE, {"allowed": frozenset({0, 1})}),
        ("late", {(CUDA_MAPPED, FAR): 80}, {}),  # no other process wrote this memory
        ("full", PRIVATE, {"refused": SOME, "room": GIB}),
        ("unknown", PRIVATE, {"placement": UNKNOWN}),
    ],
)
def test_the_cause_of_far_memory_is_the_first_that_applies(
    cause: str | None, drawn: Mapping[tuple[str, int], int], facts: Mapping[str, object]
) -> None:
    assert memory(drawn, facts).cause == cause


@pytest.mark.parametrize(
    ("host", "text", "placed"),
    [
        (memory(PRIVATE), "212 GiB, 38% far on node 1", (131, 81, 0)),
        (
            memory({**PRIVATE, (ANONYMOUS, 8): 100}),
            "106 GiB, 38% far on node 1, and 106 GiB of a GPU",
            (66, 40, 0),
        ),
        (
            memory({(ANONYMOUS, 0): 75, (CUDA_MAPPED, 0): 25}, locked={"VmPin": 3 * GIB}),
            "212 GiB, near, likely pinned (VmPin 3.0 GiB, CUDA buffers 53 GiB)",
            (212, 0, 0),
        ),
        (memory({(ANONYMOUS, 0): 63}), "212 GiB, on unknown nodes", (0, 0, 212)),
        (memory(PRIVATE, {"near": frozenset()}), "212 GiB, on unknown nodes", (0, 0, 212)),
    ],
)
def test_far_memory_is_described_in_a_line(
    host: HostMemory, text: str, placed: tuple[int, ...]
) -> None:
    assert str(host) == f"host memory {text}"
    assert tuple(round(size / GIB) for size in host.placed.values()) == placed


MOVES, PINNED = "; migratepages 100 1 0 moves it now", "; pinned: restart the process near"


@pytest.mark.parametrize(
    ("host", "end"),
    [
        (memory(PRIVATE), MOVES),
        (memory({**PRIVATE, (CUDA_MAPPED, 0): 90, (CUDA_MAPPED, FAR): 30}), MOVES),
        (memory({**PRIVATE, (CUDA_MAPPED, FAR): 40}), PINNED),
        (memory(PRIVATE, {"near": frozenset({0, 2}), "allowed": frozenset({0, 1})}), MOVES),
        (memory(PRIVATE, locked={"VmLck": 40 * GIB}), MOVES),
        (memory(PRIVATE, locked={"VmPin": 81 * GIB}), PINNED),
        (memory(PRIVATE, {"policy": policy("bind", 1)}), "exec --memory preferred"),
        (memory(PRIVATE, {"allowed": frozenset({1, 3})}), "start the pod again"),
    ],
)
def test_the_remedy_is_a_command_for_movable_memory_and_a_restart_for_pinned_memory(
    host: HostMemory, end: str
) -> None:
    remedy = host.remedy(100)
    assert remedy
    assert remedy.endswith(end)
    assert host.remedy(None) == remedy.removesuffix(MOVES)


def test_processes_that_block_their_reader_do_not_hide_those_of_other_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, looked = Event(), list[int]()

    def of(pid: int, _near: Vicinity, _placement: str) -> HostMemory:
        looked.append(pid)
        if pid < 20:
            answers.wait(30)
        return memory(PRIVATE)

    monkeypatch.setattr(threads, "STUCK_SECONDS", 0.01)
    monkeypatch.setattr(module, "policy_of", lambda _pid: None)
    monkeypatch.setattr(HostMemory, "of", of)
    meter, processes = MemoryMeter(30), {(pid, 5): (NO_PLACE, LOCAL) for pid in range(21)}

    def sampled() -> set[int]:
        found = meter.look(processes, dict.fromkeys(range(20), 7))
        return {pid for pid, its in found.items() if its.resident.drawn}

    assert [sampled(), sampled()] == [{20}, {20}]
    assert len(looked) == len({*looked}) + 1, "no second thread waits for a process"
    assert len(meter._readings._late) == threads.MOST_STUCK_OF_ONE
    answers.set()
    wait([reading for _, reading in meter._readings._late.values()])
    assert sampled() > {20}
