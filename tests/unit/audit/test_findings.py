"""The node's state in a sentence, each GPU's in a word, and the last hour in letters."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from affinityd.audit.findings import FINDINGS, IS_GONE, Concern, findings, later_history, states
from affinityd.audit.model import AuditedProcess, Job, Scan
from affinityd.audit.remedies import RESCAN, Remedies, reset_gpu
from affinityd.audit.waits import Runner, Waits
from affinityd.topology.model import GpuKey
from tests.support.scans import GPU0, GPU1, MACHINE, NEAR, process, scan

FAR = process(1, cause="mask", placement="remote")
ORPHAN = process(2, orphan="its job has ended")
FAR_FROM_1 = process(1, GPU1, cause="mask", placement="remote")
MIXED = process(6, cause="mask", placement="mixed")
FROM_NEAR = "1 GPU in use, all from near CPUs"
DAEMON = process(3, cause="mask", placement="remote", is_daemon=True)


def beside(it: AuditedProcess) -> AuditedProcess:
    """Return the process as one that also uses GPU 0."""
    return replace(it, facts=replace(it.facts, beside=(GPU0,)))


def waiting(seconds: float | None, beside: float = 10) -> dict[int, Waits]:
    """Return the waits of process 1; `beside`: how long another process ran on its CPUs."""
    runners = [Runner("neighbor", 5, "make", None, beside)]
    return {1: Waits(10.0, seconds, cpus=frozenset({0}), runners=runners)}


FAR_0, UNPINNED_0 = (
    "GPU 0 is used from far away",
    "used by unpinned processes, which may run far away",
)
HELD_0 = "GPU 0 is held by processes that have ended, or that no job owns"
UNPINNED = process(5, cause="unpinned", placement="unpinned")
UNPINNED_1 = process(5, GPU1, cause="unpinned", placement="unpinned")
LOST: dict[str, Any] = {"unknown": {GPU0: "silent"}, "lost": frozenset([GPU0])}
GONE = MACHINE.gpus[1:]
IS_RESERVED = "GPU 0 is reserved by a job, and used by no process"


@pytest.mark.parametrize(
    ("found", "state", "texts"),
    [
        (scan(near={}), None, ["there is no GPU here"]),
        (scan(DAEMON), "idle", ["no process uses a GPU"]),
        (scan(process(1), process(4)), "local", [FROM_NEAR]),
        (scan(FAR, UNPINNED_1), "remote", [FAR_0, f"GPU 1 is {UNPINNED_0}"]),
        (scan(MIXED), "mixed", ["GPU 0 is used from near and far CPUs"]),
        (scan(UNPINNED), "unpinned", [f"GPU 0 is {UNPINNED_0}"]),
        (scan(ORPHAN, FAR), "remote", [FAR_0, HELD_0]),
        (scan(beside(process(1, GPU1))), "local", ["2 GPUs in use, all from near CPUs"]),
        (scan(beside(FAR_FROM_1)), "remote", ["GPUs 0-1 are used from far away"]),
        (scan(process(1), waits=waiting(2.0)), "waiting", ["GPU 0 is waiting for CPUs"]),
        (scan(process(1), waits=waiting(0.5)), "local", [FROM_NEAR]),
        (scan(process(1), waits=waiting(9.0, beside=0)), "local", [FROM_NEAR]),
        (scan(reserved={GPU0: "slurm 7"}), "reserved", [IS_RESERVED]),
        (scan(unknown={GPU0: "silent"}), "unknown", ["GPU 0 is impossible to judge"]),
        (scan(near={**NEAR, GPU0: None}), "unknown", ["GPU 0 is impossible to judge"]),
        (scan(**LOST), "lost", ["GPU 0 is lost or hung"]),
        (scan(**LOST, gone=GONE), "lost", ["GPU 0 and GPU 1 (0000:11:00.0) are lost or hung"]),
        (scan(gone=GONE), "idle", ["GPU 1 (0000:11:00.0) is lost or hung"]),
    ],
)
def test_the_worst_state_comes_first(found: Scan, state: str | None, texts: list[str]) -> None:
    assert states(found).get(GPU0) == state
    assert [finding.text for finding in findings(MACHINE, found)] == texts


JOB = Job("slurm", "7")
OF_JOB = [
    process(pid, gpu, cause="mask", placement="remote", job=JOB)
    for pid, gpu in ((1, GPU0), (9, GPU1))
]
SIBLING = process(2, GPU0, cause="mask", placement="remote", job=JOB)
ALIVE = "it may still compute: ask its user"
GHOSTS = [process(pid, orphan="it is no more", job=JOB, uid=None) for pid in (1, 2, 3)]
SILENT = {GPU0: "silent", GPU1: "silent"}
WORKER = process(2, cause="mask", placement="remote")
WORKERS = [WORKER, replace(WORKER, facts=replace(WORKER.facts, holding=None, holder=2))]
OF_0 = "GPU 0: process 1 (python) of slurm 7, user 1000: "
GPU_1 = "GPU 1 (0000:11:00.0)"
RESET = reset_gpu(MACHINE.gpus[0].pci_bus_id)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (scan(*OF_JOB), [f"{OF_0}mask: … --gpus 0000:10:00.0 1", "GPU 1: process 9 (python) of"]),
        (scan(*WORKERS), ["GPU 0: process 2 (python) and 1 more, user 1000: mask: "]),
        (scan(OF_JOB[0], SIBLING), ["GPU 0: process 1 (python) and 1 more of … 0000:10:00.0 1"]),
        (scan(*GHOSTS), [f"GPU 0: process 1 (python) and 2 more of … it is no more: {ALIVE}"]),
        (scan(beside(FAR_FROM_1)), ["GPUs 0-1: process 1 (python), user 1000: mask: "]),
        (scan(process(1), waits=waiting(2.0)), ["GPU 0: process 1 … for CPUs, neighbor: make"]),
        (scan(unknown=SILENT), ["GPUs 0-1: silent: None"]),
        (scan(near={**NEAR, GPU0: None}), ["GPU 0: its NUMA node is not known: None"]),
        (scan(**LOST, gone=GONE), [f"GPU 0: silent: {RESET}", f"{GPU_1}: {IS_GONE}: {RESCAN}"]),
        (scan(reserved={GPU0: "slurm 7"}), ["GPU 0: slurm 7 has it: None"]),
    ],
)
def test_a_finding_has_the_processes_and_the_remedy_of_each_cause(
    found: Scan, told: list[str]
) -> None:
    concerns: list[Concern] = []
    for finding in findings(MACHINE, found, Remedies(MACHINE, found)):
        concerns += finding.concerns
    texts = [f"{it.gpus}: {it.why}: {it.remedy}" for it in concerns]
    assert len(texts) == len(told)
    for text, expected in zip(texts, told, strict=True):
        begin, _, end = expected.partition(" … ")
        assert text.startswith(begin)
        assert end in text


def test_findings_with_counts_name_no_process() -> None:
    (found,) = findings(MACHINE, scan(*OF_JOB))
    assert (found.remedy, found.concerns) == (FINDINGS["remote"][1], [])
    (reserved,) = findings(MACHINE, scan(reserved={GPU0: "slurm 7"}))
    assert reserved.concerns == []


def test_the_history_has_the_worst_state_of_each_minute_of_an_hour() -> None:
    letters: Mapping[GpuKey, str] = {}
    for minutes, state, expected in (
        (1000, "remote", "." * 59 + "r"),
        (57, "local", ".." + "r" + "." * 56 + "l"),
        (1, "idle", "." + "r" + "." * 56 + "li"),
        (0, "waiting", "." + "r" + "." * 56 + "lw"),
        (0, "local", "." + "r" + "." * 56 + "lw"),
        (3, "local", "." * 55 + "lw..l"),
    ):
        letters = later_history(letters, minutes, {GPU0: state})
        assert letters == {GPU0: expected}
    assert later_history(letters, 1, {GPU1: "local"}) == {GPU1: "." * 59 + "l"}  # GPU 0 is gone
