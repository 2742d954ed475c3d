"""The table that `affinityd audit` prints of a scan, and the remedies below the table."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from affinityd.audit.judge import Judge
from affinityd.audit.memory import HostMemory
from affinityd.audit.model import AuditedProcess, ProcessFacts, Scan
from affinityd.audit.verify import Verification
from affinityd.cli.render import audit as audit_table
from affinityd.linux.resident import ANONYMOUS, ResidentMemory
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import vicinity
from tests.support.audit_facts import GPU, KUBERNETES_POD, SLURM_JOB, audited, process, scan_of
from tests.support.machines.by_hand import made

OTHER = ("nvidia", 1)
TWO = made({0: "0-3", 1: "4-7"}, gpus=[1, 0])


def scan(*facts: ProcessFacts, topology: Topology = TWO) -> Scan:
    return scan_of(topology, *map(Judge(topology).judge, facts))


def rows(lines: Sequence[str]) -> list[str]:
    return [" | ".join(re.split("  +", line.strip())) for line in lines]


def shown(found: Scan, *, topology: Topology = TWO) -> list[str]:
    return list(audit_table.table(topology, found))


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
    )  # the audit begins with the GPU with most memory
    assert f"{near}" == sentence


TABLE = """
gpu | pid | name | user | job | placement | cause | cpulist | gpu memory
0 | 100 | python | root | slurm 7.0 | local | - | 4-7 | 1024 MiB
0 | 200 | python +5 alike | root | - | remote | mask | 0-3 | -
0 | 300 | python | root | - | remote | mask | 0-3 | -
0 | 206 | python | root | - | local | - | 4 | -
1+0 | 400 | python | root | - | local | - | 0-7 | 1024 MiB
1 | 500 | nv-hostengine | root | - | remote | known daemon | 4-7 | 1024 MiB
"""


def test_equal_workers_of_a_parent_share_a_row_below_their_rank() -> None:
    *lines, why, command = shown(FAMILIES)
    assert rows(lines) == TABLE.strip().splitlines()
    column = lines[0].index("name")
    names = [line[column:] for line in lines[1:5]]
    assert [len(name) - len(name.lstrip()) for name in names] == [0, 2, 4, 2]
    assert why == (
        "GPU 0: process 200 (python) and 6 more, user root: mask: GPU 0 is on node 1, near CPUs "
        "4-7, and its cpuset has CPUs there; to fix it now:"
    )
    assert command == "  affinityd pin --tree --force --gpus 0000:10:00.0 100"


@pytest.mark.parametrize(("width", "columns"), [(120, 9), (110, 8), (104, 7), (60, 5)])
def test_a_row_that_is_too_long_loses_columns(width: int, columns: int) -> None:
    facts = process("4-7", membership=KUBERNETES_POD, name="n" * 15, cpuset="0-7", uid=0)
    head, row = audit_table.table(TWO, scan(facts), width=width)
    assert len(rows([head])[0].split(" | ")) == columns
    assert max(len(head), len(row)) <= width


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
    assert [line.startswith(start) for line in said] == [True]  # the other has little memory


def test_every_other_kind_of_finding_has_its_own_line() -> None:
    found = replace(
        scan_of(TWO),
        skipped=3,
        notices=("look",),
        overlap={("session 9", "slurm 7"): frozenset({4, 5})},
    )
    assert shown(found) == [
        "CPUs 4-5: pinned for own use by session 9 and slurm 7",
        "not scanned, as the time limit was reached: 3 processes or more",
        "look",
    ]


def test_repeated_findings_are_counted_and_the_worst_gpu_comes_first() -> None:
    def orphans(why: str) -> list[AuditedProcess]:
        facts = (process(pid=pid, gpu=OTHER) for pid in range(100, 475))
        return [audited(it, "unknown", orphan=why.format(it.pid)) for it in facts]

    lines = shown(scan_of(TWO, audited(process(pid=7)), *orphans("its job has ended")))
    assert [line.partition(", user")[0] for line in lines if "orphan" in line] == [
        "GPU 1: process 100 (python) and 374 more"
    ]
    assert rows(lines)[1].startswith("1 | ")
    lines = shown(scan_of(TWO, *orphans("its job {} has ended")))
    assert lines[-1] == "and 359 more: affinityd audit --json"
