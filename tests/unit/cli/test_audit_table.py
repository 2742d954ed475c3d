"""What `affinityd audit` says of a scan: rows, and what mends what they show."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from affinityd.audit.judge import Judge
from affinityd.audit.memory import HostMemory
from affinityd.audit.model import CpuTime, ProcessFacts, Scan
from affinityd.audit.verify import Verification
from affinityd.audit.waits import Runner, Waits
from affinityd.cli.render import audit as audit_table
from affinityd.linux.resident import ANONYMOUS, ResidentMemory
from affinityd.linux.scheduling import TICKS
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import vicinity
from tests.support.audit_facts import (
    GPU,
    KUBERNETES_POD,
    POD,
    SLURM_JOB,
    audited,
    process,
    scan_of,
    thread,
)
from tests.support.machines.by_hand import made

OTHER = ("nvidia", 1)
TWO = made({0: "0-3", 1: "4-7"}, gpus=[1, 0])


def scan(*facts: ProcessFacts, topology: Topology = TWO) -> Scan:
    return scan_of(topology, *map(Judge(topology).judge, facts))


def rows(lines: Sequence[str]) -> list[str]:
    return [" | ".join(re.split("  +", line.strip())) for line in lines]


def shown(found: Scan, *, topology: Topology = TWO, is_second: bool = False) -> list[str]:
    return list(audit_table.table(topology, found, is_second=is_second))


def worker(pid: int, mask: str, parent: int = 100) -> ProcessFacts:
    return process(mask, pid=pid, parent=parent, holder=100, cpuset="0-7", uid=0)


FAMILIES = scan(
    process("4-7", "4-7", membership=SLURM_JOB, cpuset="0-7", uid=0),
    *(worker(pid, "0-3") for pid in range(200, 205)),
    *(worker(205, "0-3"), worker(300, "0-3", parent=205), worker(206, "4")),
    process("0-7", pid=400, gpu=OTHER, beside=(GPU,), uid=0),
    process("4-7", pid=500, gpu=OTHER, name="nv-hostengine", uid=0),
)
FIRST, SECOND = TWO.gpus
AMD = replace(SECOND, vendor="amd", index=0)
MIXED = replace(TWO, gpus=(FIRST, AMD))


@pytest.mark.parametrize(
    ("topology", "gpus", "column", "sentence"),
    [
        (TWO, (SECOND,), "1", "GPU 1 is on node 0"),
        (TWO, (FIRST, SECOND), "0+1", "GPUs 0-1 are on nodes 0-1"),
        (MIXED, (AMD,), "amd 0", "GPU amd 0 is on node 0"),
        (MIXED, (FIRST, AMD), "nvidia 0+amd 0", "GPUs nvidia 0+amd 0 are on nodes 0-1"),
    ],
)
def test_audit_and_verify_name_gpus_alike(
    topology: Topology, gpus: Sequence[Gpu], column: str, sentence: str
) -> None:
    first, *beside = (gpu.key for gpu in gpus)
    facts = process("0-7", gpu=first, beside=tuple(beside), uid=0)
    _, audit_row, *_ = rows(shown(scan(facts, topology=topology), topology=topology))
    near = vicinity(topology, gpus)
    found = Verification(Judge(topology).judge(facts), near)
    _, row, *_ = rows(list(audit_table.verify_table([found])))
    assert audit_row.split(" | ")[0] == column
    assert row.split(" | ")[2] == column.replace(
        "0+1", "0-1"
    )  # the audit's begins with most memory
    assert f"{near}" == sentence


TABLE = """
gpu | pid | name | user | job | threads | far | placement | cause | cpulist | \
ran last on | gpu memory
0 | 100 | python | root | slurm 7.0 | 2 | - | local | - | 4-7 | 4 | 1024 MiB
0 | 200 | python +4 alike | root | - | 5 | 5 (0 s) | remote | mask | 0-3 | 0 | -
0 | 205 | python | root | - | 1 | 1 (0 s) | remote | mask | 0-3 | 0 | -
0 | 300 | python | root | - | 1 | 1 (0 s) | remote | mask | 0-3 | 0 | -
0 | 206 | python | root | - | 1 | - | local | - | 4 | 4 | -
1+0 | 400 | python | root | - | 1 | - | local | - | 0-7 | 0 | 1024 MiB
1 | 500 | nv-hostengine | root | - | 1 | 1 (0 s) | remote | known daemon | 4-7 | 4 | 1024 MiB
"""


def test_equal_workers_without_children_share_a_row_below_their_rank() -> None:
    *lines, why, command = shown(FAMILIES)
    assert rows(lines) == TABLE.strip().splitlines()
    column = lines[0].index("name")
    names = [line[column:] for line in lines[1:6]]
    assert [len(name) - len(name.lstrip()) for name in names] == [0, 2, 2, 4, 2]
    assert why == (
        "process 200 (python) and 6 more: mask: GPU 0 is on node 1, near CPUs 4-7, and "
        "its cpuset has CPUs there; to fix it now:"
    )
    assert command == "  affinityd pin --tree --force --gpus 0000:10:00.0 100"


def test_far_memory_has_a_line_with_its_remedy() -> None:
    found = scan_of(TWO, audited(process(pid=100)), audited(process(pid=200)))
    held = [
        HostMemory(
            ResidentMemory({ANONYMOUS: size * 2**30}, {(ANONYMOUS, 0): 60, (ANONYMOUS, 1): 40}),
            *(frozenset({0}), frozenset({1}), "local"),
        )
        for size in (100, 1)
    ]
    found = replace(found, memory=dict(zip((100, 200), held, strict=True)))
    said = [line for line in shown(found) if "host memory" in line]
    start = "process 100 (python): host memory 100 GiB, 40% far on node 1; late: "
    assert [line.startswith(start) for line in said] == [True]  # the other's is little


@pytest.mark.parametrize(
    ("threads", "said"),
    [
        ((("4-7", 4, 900), ("5", 5, 900)), "local | -"),
        ((("4-7", 4, 900), ("0", 0, 83 * TICKS)), "local | 1 (83 s)"),  # a library pinned it
        ((("0-7", 1, 7 * TICKS), ("0-7", 4, 900)), "unpinned | 2 (7 s)"),
    ],
)
def test_a_row_has_the_number_of_far_threads_and_their_cpu_time(
    threads: Sequence[tuple[str, int, int]], said: str
) -> None:
    its = (
        thread(mask, 100 + at, last_cpu=on, ticks=used)
        for at, (mask, on, used) in enumerate(threads)
    )
    cells = rows(shown(scan(process(threads=tuple(its)))))[1].split(" | ")
    assert f"{cells[7]} | {cells[6]}" == said


def test_each_other_finding_has_its_own_line() -> None:
    facts = process("4", name="a b", membership=KUBERNETES_POD, uid=4_000_000_000, state="Z")
    orphan = audited(facts, "unknown", orphan="nothing has noticed")
    found = replace(
        scan_of(TWO, orphan),
        near={GPU: frozenset({4}), OTHER: None},
        unknown={OTHER: "NVML is silent"},
        skipped=3,
        notices=("look",),
        overlap={
            ("session 9", "slurm 7"): frozenset({4, 5}),
            ("slurm 7", "slurm 8"): frozenset({6}),
        },
    )
    _, row, *lines = shown(found)
    assert rows([row])[0].split(" | ")[3:5] == ["4000000000", f"kubernetes {POD}"]
    name = "process 100 (a b)"
    end = "check process 50, which must wait(2) for it or end"
    assert lines == [
        f"{name}: orphan, holds 1024 MiB of GPU 0: nothing has noticed; {end}",
        "CPUs 4-5: pinned for own use by session 9 and slurm 7",
        "CPU 6: pinned for own use by slurm 7 and slurm 8",
        "GPU 1: its processes are not known: NVML is silent",
        "GPU 1: its NUMA node is not known: its processes cannot be judged",
        "not scanned, as the time limit was reached: 3 processes or more",
        "look",
    ]


def test_equal_sentences_are_said_once_and_the_worst_gpu_comes_first() -> None:
    orphans = [
        audited(process(pid=pid, gpu=OTHER), "unknown", orphan="its job has ended")
        for pid in range(100, 475)
    ]
    lines = shown(scan_of(TWO, audited(process(pid=7)), *orphans))
    said = [line for line in lines if "orphan, holds" in line]
    assert [line.partition(": orphan, holds 1024 MiB of GPU 1: its job")[0] for line in said] == [
        "process 100 (python) and 374 more"
    ]
    assert rows(lines)[1].startswith("1 | ")


def test_a_second_scan_shows_the_part_of_cpu_time_spent_far_from_the_gpus() -> None:
    families = (
        audited(process(pid=100)),
        audited(process(pid=300), near=None),
        audited(process(pid=400)),
        *(audited(process(pid=pid, parent=50, holder=50)) for pid in range(600, 605)),
    )
    used = {100: CpuTime(4.0, 3.0), 300: CpuTime(1.0), 600: CpuTime(1.0, 1.0), 604: CpuTime(1.0)}
    found = replace(scan_of(TWO, *families), used=used)
    head, *lines = rows(shown(found, is_second=True))
    assert head.endswith(" | remote time | waits")
    assert [line.split(" | ")[-2] for line in lines] == ["75%", "?", "-", "50%"]


def waiting(waited: float | None) -> Waits:
    return Waits(
        10.0, waited, cpus=frozenset({0}), runners=[Runner("neighbor", 5, "make", None, 9)]
    )


def test_a_second_scan_shows_how_long_threads_waited_and_for_what() -> None:
    found = scan_of(TWO, *(audited(process(pid=pid)) for pid in (100, 200, 300, 400)))
    found = replace(found, waits={100: waiting(4.2), 200: waiting(0.05), 300: waiting(None)})
    lines = shown(found, is_second=True)
    assert [line.rpartition(" | ")[2] for line in rows(lines)[1:5]] == ["0.42 neighbor", *"-??"]
    assert ["waits for CPUs, neighbor: on its CPUs ran make" in it for it in lines[5:]] == [True]
