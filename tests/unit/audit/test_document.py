"""A scan as JSON, for those who see all of it, their own processes, or counts alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from affinityd.audit import describe
from affinityd.audit.describe import Sees, counts, everything, render
from affinityd.audit.document import AuditDocument
from affinityd.audit.judge import Judge
from affinityd.audit.model import AuditedProcess, CpuTime, Scan
from affinityd.cpuset import parse_list
from affinityd.json_codec import dumps
from affinityd.topology.model import Topology
from tests.support.audit_facts import GPU, SLURM_JOB, audited, process
from tests.support.documents import exactly
from tests.support.machines.by_hand import made

TWO = made({0: "0-3", 1: "4-7"}, gpus=[1, None])
LOST = ("nvidia", 1)

PROCESSES = (
    Judge(TWO).judge(process("0-3", "0-3", "4", cpuset="0-7", membership=SLURM_JOB)),
    Judge(TWO).judge(process("4-7", pid=200, uid=1001, holds=False, parent=100)),
    Judge(TWO).judge(process("0-7", pid=300, uid=0, name="nv-hostengine")),
    audited(process(pid=400, gpu=LOST, uid=None), "unknown", orphan="nobody's"),
)
SCAN = Scan(
    time=1_790_000_000.25,
    seconds=0.5,
    processes=PROCESSES,
    near={GPU: parse_list("4-7"), LOST: None},
    unknown={LOST: "NVML is silent"},
    overlap={("session 9", "slurm 7"): frozenset((5, 6))},
    gpu_time={GPU: CpuTime(3.0, 1.5), LOST: CpuTime(1.0)},
    numa_balancing=1,
    notices=("look",),
)


def document(topology: Topology, scan: Scan, sees: Sees | None) -> Any:  # noqa: ANN401 - as JSON
    return json.loads(render(topology, scan, sees))


def test_the_head_tells_of_the_scan_and_of_every_gpu() -> None:
    told = document(TWO, SCAN, None)
    assert told == {
        "node": "made",
        "time": "2026-09-21T14:13:20.250Z",
        "seconds": 0.5,
        "sees": "counts",
        "gpus": [
            {
                "vendor": "nvidia",
                "index": 0,
                "uuid": None,
                "pci_bus_id": "0000:10:00.0",
                "numa_node": 1,
                "near": "4-7",
                "audited": True,
                "unknown": None,
                "processes": {"local": 1, "mixed": 0, "remote": 1, "unpinned": 0, "unknown": 0},
                "threads": {"local": 2, "mixed": 0, "remote": 2, "unpinned": 0, "unknown": 0},
                "mismatch": {"allocation": 0, "mask": 1, "unpinned": 0},
                "orphans": 0,
                "cpu_seconds": 3.0,
                "remote_cpu_seconds": 1.5,
            },
            {
                "vendor": "nvidia",
                "index": 1,
                "uuid": None,
                "pci_bus_id": "0000:11:00.0",
                "numa_node": None,
                "near": None,
                "audited": False,
                "unknown": "NVML is silent",
                "processes": None,
                "threads": None,
                "mismatch": None,
                "orphans": None,
                "cpu_seconds": None,
                "remote_cpu_seconds": None,
            },
        ],
        "pin_overlap": "5-6",
        "skipped": 0,
        "numa_balancing": 1,
        "notices": ["look"],
    }


def test_of_a_gpu_whose_place_nobody_knows_no_time_is_remote() -> None:
    lost = document(TWO, replace(SCAN, unknown={}), None)["gpus"][1]
    assert (lost["cpu_seconds"], lost["remote_cpu_seconds"], lost["orphans"]) == (1.0, None, 1)
    assert (lost["processes"]["unknown"], lost["threads"]["unknown"]) == (1, 0)


def test_a_process_is_told_with_its_threads() -> None:
    first = document(TWO, SCAN, everything)["processes"][0]
    assert first == {
        "pid": 100,
        "name": "python",
        "uid": 1000,
        "parent": 50,
        "state": "S",
        "vendor": "nvidia",
        "gpu": 0,
        "gpus_beside": [],
        "holds_gpu": True,
        "gpu_memory_bytes": 2**30,
        "mig": None,
        "job": {"scheduler": "slurm", "id": "7", "step": "0"},
        "container": None,
        "cpuset": "0-7",
        "placement": "remote",
        "cause": "mask",
        "remedy": "GPU 0 is on node 1, near CPUs 4-7, and its cpuset has CPUs there; affinityd pin "
        "--gpus 0000:10:00.0 100 mends it now",
        "daemon": False,
        "orphan": None,
        "threads": [
            {
                "tid": 100 + at,
                "name": "worker",
                "cpulist": cpulist,
                "last_cpu": last,
                "placement": placement,
                "pinned_itself": itself,
            }
            for at, (cpulist, last, placement, itself) in enumerate(
                [("0-3", 0, "remote", False), ("0-3", 0, "remote", False), ("4", 4, "local", True)]
            )
        ],
    }


def test_a_descendant_holds_no_gpu_and_no_memory_of_one() -> None:
    worker = document(TWO, SCAN, everything)["processes"][1]
    assert (worker["holds_gpu"], worker["gpu"], worker["parent"]) == (False, 0, 100)
    assert (worker["gpu_memory_bytes"], worker["mig"], worker["job"]) == (None, None, None)
    assert worker["cpuset"] is None


def test_a_process_on_several_gpus_names_them_all_and_counts_for_the_first() -> None:
    amd = replace(TWO.gpus[0], vendor="amd")
    three = replace(TWO, gpus=(*TWO.gpus, amd))
    judge = Judge(three)
    facts = process("0-3", gpu=amd.key, beside=(GPU, LOST), cpuset="0-7")
    scan = replace(SCAN, processes=(judge.judge(facts),), near=judge.near)
    (told,) = document(three, scan, everything)["processes"]
    assert (told["vendor"], told["gpu"]) == ("amd", 0)
    assert told["gpus_beside"] == [{"vendor": "nvidia", "gpu": 0}, {"vendor": "nvidia", "gpu": 1}]
    assert {key: sum(its.processes.values()) for key, its in counts(scan).items()} == {
        amd.key: 1,
        GPU: 0,
        LOST: 0,
    }


@pytest.mark.parametrize("sees", [lambda it: it.facts.uid == 1001, None])
def test_whose_pins_overlap_is_told_to_who_sees_everybodys_processes(
    sees: Callable[[AuditedProcess], bool] | None,
) -> None:
    told = document(TWO, SCAN, everything)
    assert told["pin_overlaps"] == [{"cpulist": "5-6", "owners": ["session 9", "slurm 7"]}]
    less = document(TWO, SCAN, sees)
    assert "pin_overlaps" not in less
    assert told["pin_overlap"] == less["pin_overlap"] == "5-6"


def test_a_known_daemon_is_told_and_not_counted() -> None:
    assert [it["daemon"] for it in document(TWO, SCAN, everything)["processes"]] == [
        *(False, False, True, False)
    ]
    assert counts(SCAN)[GPU].processes == {"remote": 1, "local": 1}


@pytest.mark.parametrize(
    ("sees", "word", "pids"),
    [
        pytest.param(everything, "all", [100, 200, 300, 400], id="all"),
        pytest.param(lambda it: it.facts.uid == 1001, "own", [200], id="one user's"),
        pytest.param(lambda _it: False, "own", [], id="of a user who has none"),
    ],
)
def test_who_sees_less_is_told_less(
    sees: Callable[[AuditedProcess], bool], word: str, pids: list[int]
) -> None:
    told = document(TWO, SCAN, sees)
    assert (told["sees"], [it["pid"] for it in told["processes"]]) == (word, pids)
    assert told["gpus"] == document(TWO, SCAN, None)["gpus"]


@pytest.mark.parametrize("sees", [everything, lambda it: it.facts.uid == 1001, None])
def test_what_is_written_process_by_process_is_the_document_in_one_line(sees: Sees | None) -> None:
    written = render(TWO, SCAN, sees)
    assert exactly(AuditDocument, written) == exactly(
        AuditDocument, dumps(describe.document(TWO, SCAN, sees))
    )
    assert b"\n" not in written
