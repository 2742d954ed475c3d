"""The JSON documents of a scan: all of it, its counts alone, and one process."""

import json
from dataclasses import replace
from typing import Any

import pytest

from affinityd.audit import document as module
from affinityd.audit.document import AuditDocument
from affinityd.audit.judge import Judge
from affinityd.audit.memory import HostMemory
from affinityd.audit.model import CpuTime, Scan
from affinityd.audit.waits import Runner, Waits
from affinityd.cpuset import parse_list
from affinityd.discovery.nvml import NvmlLoad
from affinityd.json_codec import dumps
from affinityd.linux.resident import ANONYMOUS, SHARED, ResidentMemory
from tests.support.audit_facts import GPU, SLURM_JOB, audited, process
from tests.support.documents import exactly
from tests.support.machines.by_hand import made
from tests.support.paths import DATA

TWO = made({0: "0-3", 1: "4-7"}, gpus=[1, None])
LOST = ("nvidia", 1)

FAR = HostMemory(
    ResidentMemory(
        {ANONYMOUS: 900, SHARED: 100},
        {(ANONYMOUS, 0): 62, (ANONYMOUS, 1): 38, (SHARED, 8): 100},  # node 8 is a GPU's
        {"VmPin": 7},
    ),
    frozenset({1}),
    frozenset({0}),
    "remote",
)

OTHER = Runner("neighbor", 500, "make", None, 5.0)

SCAN = Scan(
    time=1_790_000_000.25,
    seconds=0.5,
    processes=(
        Judge(TWO).judge(process("0-3", "0-3", "4", cpuset="0-7", membership=SLURM_JOB)),
        Judge(TWO).judge(process("4-7", pid=200, uid=1001, holds=False, parent=100)),
        Judge(TWO).judge(process("0-7", pid=300, uid=0, name="nv-hostengine")),
        audited(process(pid=400, gpu=LOST, uid=None), "unknown", orphan="not owned"),
    ),
    near={GPU: parse_list("4-7"), LOST: None},
    unknown={LOST: "NVML is silent"},
    overlap={("session 9", "slurm 7"): frozenset((5, 6))},
    gpu_time={GPU: CpuTime(3.0, 1.5, 2.0, 0.5), LOST: CpuTime(1.0)},
    waits={100: Waits(10.0, 2.0, cpus=frozenset({0}), runners=[OTHER])},
    last_hour={GPU: CpuTime(2.0, 1.0, 0.5, 0.25)},
    loads={GPU: NvmlLoad(37, 1, 2)},
    history={GPU: "rr"},
    users={1000: "alice"},
    memory={100: FAR},
    numa_balancing=1,
    notices=("look",),
)


def golden(name: str) -> Any:  # noqa: ANN401 - as JSON
    return json.loads((DATA / f"golden/{name}.json").read_text())


def document(scan: Scan, *, names_all: bool) -> Any:  # noqa: ANN401 - as JSON
    return json.loads(dumps(module.document(TWO, scan, names_all=names_all)))


def test_a_scan_document_has_gpus_and_processes() -> None:
    assert document(SCAN, names_all=False) == golden("audit-counts")
    rank, worker, daemon, lost = document(SCAN, names_all=True)["processes"]
    assert rank == golden("audit-process")
    assert (worker["waits"], worker["host_memory"]) == (None, None)
    assert (worker["parent"], worker["holds_gpu"], worker["cpuset"]) == (100, False, None)
    assert (worker["placement"], worker["cause"], worker["remedy"]) == ("local", None, None)
    assert (daemon["daemon"], daemon["cause"]) == (True, "unpinned")  # the daemon is not counted
    assert (lost["orphan"], lost["gpu_memory_bytes"]) == ("not owned", 2**30)


def test_a_gpu_of_unknown_place_has_no_remote_time() -> None:
    lost = document(replace(SCAN, unknown={}), names_all=False)["gpus"][1]
    assert (lost["cpu_seconds"], lost["remote_cpu_seconds"], lost["orphans"]) == (1.0, None, 1)
    assert lost["processes"]["unknown"] == 1


@pytest.mark.parametrize("names_all", [True, False])
def test_a_document_of_counts_names_no_process_and_no_owner(names_all: bool) -> None:
    written = dumps(module.document(TWO, SCAN, names_all=names_all)).encode()
    assert exactly(AuditDocument, written)
    assert b"\n" not in written
    told, least = json.loads(written), document(SCAN, names_all=False)
    concerns = [it.pop("concerns") for it in (*told["findings"], *least["findings"])][:3]
    assert [bool(its) for its in concerns] == [names_all] * 3
    processes, overlaps = told.pop("processes", None), told.pop("pin_overlaps", None)
    assert told == {**least, "sees": "all" if names_all else "counts"}
    pids = [100, 200, 300, 400]
    assert (processes and [it["pid"] for it in processes]) == (pids if names_all else None)
    whose = [{"cpulist": "5-6", "owners": ["session 9", "slurm 7"]}]
    assert overlaps == (whose if names_all else None)
