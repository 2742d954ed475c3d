"""What `affinityd audit` says of a scan: rows, and what mends what they show."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from affinityd.audit.gather import TICKS
from affinityd.audit.model import GpuKey, Scan
from affinityd.cli.commands import audit
from affinityd.cli.render import audit as audit_table
from affinityd.text import one_line
from tests.support.audit_facts import (
    GPU,
    KUBERNETES_POD,
    SLURM_JOB,
    audited,
    process,
    scan_of,
    thread,
)
from tests.support.machines.by_hand import made
from tests.support.small_node import TOPOLOGY

OTHER = ("nvidia", 1)


TWO = made({0: "0-3", 1: "4-7"}, gpus=[1, 0])


def test_of_many_commands_the_first_are_printed() -> None:
    ranks = [audited(process("0", pid=pid), "remote", cause="mask") for pid in range(1, 11)]
    lines = list(audit_table.table(TOPOLOGY, scan_of(TOPOLOGY, *ranks), None))[11:]
    assert lines[0].startswith("process 1 (python) and 9 more: mask: ")
    assert [line.split()[-1] for line in lines[1:-1]] == list("12345678")
    assert lines[-1] == "  and 2 more: affinityd audit --json"


def test_what_is_of_another_job_or_gpu_or_cause_is_mended_apart() -> None:
    several = [
        audited(process("0", pid=1), "remote", cause="mask"),
        audited(process("0", pid=2, membership=SLURM_JOB), "remote", cause="mask"),
        audited(process("0-3", pid=3), "unpinned", cause="unpinned"),
        audited(process("1", pid=4, gpu=OTHER), "remote", cause="mask"),
        audited(process("0", pid=5), "remote", cause="mask"),
    ]
    lines = list(audit_table.table(TOPOLOGY, scan_of(TOPOLOGY, *several), None))
    said = [re.match(r"process (\d)[^:]*: ", line) for line in lines[6:]]
    assert [it[0] for it in said if it] == [
        "process 1 (python) and 1 more: ",
        "process 2 (python): ",
        "process 3 (python): ",
        "process 4 (python): ",
    ]


def test_of_other_gpus_neither_overlaps_nor_missed_processes_are_told() -> None:
    pins = [
        audited(process("4", session=40)),
        audited(process("4", session=41)),
        audited(process("0", session=42, gpu=OTHER), near="0-3"),
        audited(process("0", session=43, gpu=OTHER), near="0-3"),
    ]
    first_two: tuple[str, ...] = ("session 40", "session 41")
    last_two: tuple[str, ...] = ("session 42", "session 43")
    both = {first_two: frozenset({4}), last_two: frozenset({0})}
    scan = replace(
        _scan(), processes=tuple(pins), overlap=both, skipped=10, late={GPU: 2, OTHER: 3}
    )
    first, second, all_of_them = (audit._only(scan, it) for it in ({GPU}, {OTHER}, {GPU, OTHER}))
    assert (first.overlap, first.skipped) == ({first_two: both[first_two]}, 7)
    assert (second.overlap, second.skipped) == ({last_two: both[last_two]}, 8)
    assert (all_of_them.overlap, all_of_them.skipped) == (both, 10)


def test_what_else_was_found_is_said_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    topology = made({0: "0-3", 1: "4-7"}, gpus=[1, 0])
    facts = process("4", name="a\x1b[2Jb", membership=KUBERNETES_POD, uid=4_000_000_000)
    orphan = audited(replace(facts, state="Z"), "unknown", orphan="nobody has noticed")
    daemon = audited(process("0", pid=200, name="nv-hostengine"), "remote", is_daemon=True)
    scan = replace(
        _scan(),
        processes=(orphan, daemon),
        skipped=3,
        notices=("look",),
        overlap={
            ("session 9", "slurm 7"): frozenset({4, 5}),
            ("slurm 7", "slurm 8"): frozenset({6}),
        },
    )
    lines = list(audit_table.table(topology, scan, None))
    assert lines[1].split()[3:6] == [
        "4000000000",
        "kubernetes",
        "0d6f3a52-1c1e-4f0e-9d55-2f6f4b0c7a01",
    ]
    assert "known daemon" in lines[2]
    assert lines[3:] == [
        (
            "process 100 (a\x1b[2Jb): orphan, holds 1024 MiB of GPU 0: nobody has noticed; "
            "look at process 50, which has to wait(2) for it or to end"
        ),
        "CPUs 4-5: in the unique pins of session 9, slurm 7",
        "CPU 6: in the unique pins of slurm 7, slurm 8",
        "not looked at, as time was up: 3 processes or more",
        "look",
    ]
    audit._show([one_line(line) for line in lines], is_first=True, again=False)
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("idle", "end"),
    [
        pytest.param(0.0, "it may still compute: ask its owner", id="it computes"),
        pytest.param(75.0, "it has used no CPU time for 75 s: look what it is", id="it is idle"),
    ],
)
def test_an_orphan_has_the_remedy_of_its_placement_too(idle: float, end: str) -> None:
    topology = made({0: "0-3", 1: "4-7"}, gpus=[1, 0])
    orphan = audited(process("0-3"), "remote", cause="mask", orphan="its job has ended")
    scan = replace(_scan(), processes=(orphan,), idle={100: idle})
    _, _, said, why, command = audit_table.table(topology, scan, None)
    assert said.startswith("process 100 (python): orphan, holds 1024 MiB of GPU 0: its job has")
    assert end in said
    assert ("kill 100" in said) == (idle > 60)
    assert why.startswith("process 100 (python): mask: GPU 0 is on node 1")
    assert command == "  affinityd pin --gpus 0000:10:00.0 100"


def test_the_gpus_of_two_vendors_are_told_apart() -> None:
    topology = made({0: "0-3", 1: "4-7"}, gpus=[1, 0])
    amd = replace(topology.gpus[1], vendor="amd", index=0)
    mixed = replace(topology, gpus=(topology.gpus[0], amd))
    scan = replace(
        _scan(),
        processes=(audited(process("4", gpu=("amd", 0))), audited(process("4"))),
        near={GPU: frozenset({4}), ("amd", 0): frozenset({0})},
    )
    lines = list(audit_table.table(mixed, scan, None))
    assert [line.split()[:2] for line in lines[1:]] == [["amd", "0"], ["nvidia", "0"]]


@pytest.mark.parametrize(
    ("gpu", "beside", "shown"),
    [
        pytest.param(("amd", 0), (), ["amd", "0"], id="one"),
        pytest.param(
            ("amd", 2), (("amd", 0), ("amd", 1), ("amd", 3)), ["amd", "2+0-1,3"], id="four"
        ),
        pytest.param(
            ("amd", 0), (("amd", 1), GPU), ["amd", "0+1+nvidia", "0"], id="of two vendors"
        ),
    ],
)
def test_of_several_gpus_the_first_is_followed_by_the_others(
    gpu: GpuKey, beside: tuple[GpuKey, ...], shown: list[str]
) -> None:
    those = [replace(TWO.gpus[0], vendor="amd", index=index) for index in range(4)]
    mixed = replace(TWO, gpus=(TWO.gpus[0], *those))
    scan = scan_of(mixed, audited(process("4", gpu=gpu, beside=beside)))
    _, row, *_ = audit_table.table(mixed, scan, None)
    assert row.split()[: len(shown)] == shown


def test_remote_time_is_what_was_spent_far_from_all_of_its_gpus() -> None:
    def look(*ticks: int) -> Scan:
        threads = tuple(
            thread("0-7", 100 + last, last_cpu=last, ticks=its, start=5)
            for last, its in zip((0, 4), ticks, strict=True)
        )
        one = audited(process(threads=threads, pid=100))
        both = audited(process(threads=threads, pid=200, beside=(OTHER,)), near="0-7")
        return scan_of(TWO, one, both)

    lines = audit_table.table(TWO, look(40, 20), look(10, 10))
    assert [line.split()[-1] for line in lines][1:3] == ["75%", "0%"]


def _scan() -> Scan:
    return Scan(
        time=0.0,
        seconds=0.0,
        processes=(),
        near={GPU: frozenset({4, 5, 6, 7}), OTHER: frozenset({0, 1, 2, 3})},
        unknown={},
    )


def test_the_remote_time_of_workers_that_share_a_row_is_that_of_all() -> None:
    def look(*ticks: int) -> Scan:
        workers = (
            process(
                pid=pid,
                parent=100,
                holder=100,
                threads=(thread("0-7", pid, last_cpu=last, ticks=its_ticks, start=5),),
            )
            for pid, last, its_ticks in zip(range(200, 205), (0, 4, 4, 4, 4), ticks, strict=True)
        )
        return scan_of(TWO, *map(audited, (process("4"), *workers)))

    _, _, row = audit_table.table(TWO, look(50, 10, 10, 10, 50), look(*[10] * 5))
    assert row.split()[1:5] == ["200", "python", "+4", "alike"]
    assert row.split()[-1] == "50%"


def test_a_worker_that_has_started_others_has_a_row_of_its_own() -> None:
    workers = [process("4", pid=pid, parent=100, holder=100) for pid in range(200, 206)]
    below = process("4", pid=300, parent=201, holder=100)
    found = [process("4"), *workers[:2], below, *workers[2:]]
    lines = list(audit_table.table(TWO, scan_of(TWO, *map(audited, found)), None))
    user = lines[1].split()[3]
    assert [line.split()[1:4] for line in lines[1:]] == [
        ["100", "python", user],
        ["200", "python", "+4"],
        ["201", "python", user],
        ["300", "python", user],
    ]


def test_what_a_thread_spent_that_was_born_since_the_look_before_counts() -> None:
    near = thread("4", 100, ticks=10, start=5)
    spent = [thread("0", 101, last_cpu=0, ticks=30, start=int(20.5 * TICKS))]
    before, after = (
        replace(_scan(), processes=(audited(process(threads=threads)),), boot=boot)
        for boot, threads in ((20.0, (near,)), (22.0, (replace(near, cpu_ticks=20), *spent)))
    )
    _, row = audit_table.table(TWO, after, before)
    assert row.split()[-1] == "75%"
