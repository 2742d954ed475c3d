"""The node's state in a sentence, each GPU's in a word, and the last hour in letters."""

from dataclasses import astuple, replace

import pytest

from affinityd.audit.model import AuditedProcess, Job, Scan
from affinityd.audit.remedies import RESCAN, reset_gpu
from affinityd.audit.verdict import FINDINGS, IS_GONE, History, states, verdict
from affinityd.audit.waits import Runner, Waits
from tests.support.scans import GPU0, GPU1, MACHINE, NEAR, process, scan

FAR = process(1, cause="mask", placement="remote")
ORPHAN = process(2, orphan="its job has ended")
FAR_FROM_1 = process(1, GPU1, cause="mask", placement="remote")
FROM_NEAR = "1 GPU in use, from near alone"
DAEMON = process(3, cause="mask", placement="remote", is_daemon=True)


def beside(it: AuditedProcess) -> AuditedProcess:
    """Return the process as one that uses GPU 0, too."""
    return replace(it, facts=replace(it.facts, beside=(GPU0,)))


def waiting(seconds: float | None, beside: float = 10) -> dict[int, Waits]:
    """Return the waits of process 1; `beside`: how long another ran there."""
    runners = [Runner("neighbor", 5, "make", None, beside)]
    return {1: Waits(10.0, seconds, cpus=frozenset({0}), runners=runners)}


@pytest.mark.parametrize(
    ("found", "state", "texts"),
    [
        (scan(near={}), None, ["there is no GPU here"]),
        (scan(), "idle", ["no process uses a GPU"]),
        (scan(DAEMON), "idle", ["no process uses a GPU"]),
        (scan(process(1), process(4)), "near", [FROM_NEAR]),
        (scan(FAR, FAR), "far", ["GPU 0 is used from far away"]),
        (
            scan(FAR, process(5, GPU1, cause="unpinned", placement="unpinned")),
            "far",
            [
                "GPU 0 is used from far away",
                "GPU 1 is used by unpinned processes, which may run far away",
            ],
        ),
        (
            scan(process(5, cause="unpinned", placement="unpinned")),
            "unpinned",
            ["GPU 0 is used by unpinned processes, which may run far away"],
        ),
        (
            scan(ORPHAN, FAR),
            "far",
            [
                "GPU 0 is used from far away",
                "GPU 0 is held by processes of no living job, or that have ended",
            ],
        ),
        (scan(beside(process(1, GPU1))), "near", ["2 GPUs in use, from near alone"]),
        (scan(beside(FAR_FROM_1)), "far", ["GPUs 0-1 are used from far away"]),
        (scan(process(1), waits=waiting(2.0)), "waiting", ["GPU 0 is waiting for CPUs"]),
        (scan(process(1), waits=waiting(0.5)), "near", [FROM_NEAR]),
        (
            scan(process(1), waits=waiting(9.0, beside=0)),
            "near",
            [FROM_NEAR],
        ),
        (
            scan(reserved={GPU0: "slurm 7"}),
            "reserved",
            ["GPU 0 is reserved by a job, and used by no process"],
        ),
        (
            scan(unknown={GPU0: "silent"}),
            "unknown",
            ["GPU 0 is impossible to judge"],
        ),
        (
            scan(FAR_FROM_1, unknown={GPU0: "silent"}, lost=frozenset([GPU0])),
            "lost",
            ["GPU 0 is lost or hung", "GPU 1 is used from far away"],
        ),
        (
            scan(unknown={GPU0: "silent"}, lost=frozenset([GPU0]), gone=MACHINE.gpus[1:]),
            "lost",
            ["GPU 0 and GPU 1 (0000:11:00.0) are lost or hung"],
        ),
        (scan(gone=MACHINE.gpus[1:]), "idle", ["GPU 1 (0000:11:00.0) is lost or hung"]),
        (
            scan(near={**NEAR, GPU0: None}),
            "unknown",
            ["GPU 0 is impossible to judge"],
        ),
    ],
)
def test_the_worst_comes_first(found: Scan, state: str | None, texts: list[str]) -> None:
    assert states(found).get(GPU0) == state
    assert [finding.text for finding in verdict(found, lambda _state, _process: None)] == texts


def test_a_finding_has_the_gpus_and_the_remedy_of_each_job_that_is_concerned() -> None:
    def remedy(state: str, its: AuditedProcess) -> str:
        return f"{state} {its.facts.pid}"

    job = Job("slurm", "7")
    of_job = [process(pid, gpu, cause="mask", job=job) for pid, gpu in ((1, GPU0), (9, GPU1))]
    silent = {GPU0: "silent", GPU1: "silent"}
    for found, concerns in (
        (
            scan(*of_job, process(2, orphan="its job has ended", uid=None)),
            [
                [
                    ("GPU 0", "slurm 7, user 1000", "far 1"),
                    ("GPU 1", "slurm 7, user 1000", "far 9"),
                ],
                [("GPU 0", "process 2 (python)", "orphan 2")],
            ],
        ),
        (
            scan(
                *(process(pid, orphan="it is no more", job=job) for pid in (1, 2, 3)),
                process(4, orphan="its main thread has ended", job=job),
            ),
            [
                [
                    ("GPU 0", "slurm 7, user 1000 (process 1 and 2 more)", "orphan 1"),
                    ("GPU 0", "slurm 7, user 1000", "orphan 4"),
                ]
            ],
        ),
        (scan(beside(FAR_FROM_1)), [[("GPUs 0-1", "process 1 (python), user 1000", "far 1")]]),
        (scan(unknown=silent), [[("GPUs 0-1", "silent", None)]]),
        (
            scan(unknown={GPU0: "silent"}, lost=frozenset([GPU0]), gone=MACHINE.gpus[1:]),
            [[("GPU 0", "silent", None), ("GPU 1 (0000:11:00.0)", IS_GONE, None)]],
        ),
    ):
        told = [[*map(astuple, finding.concerns)] for finding in verdict(found, remedy)]
        assert told == concerns
    gone = scan(gone=MACHINE.gpus[1:])
    both = replace(gone, lost=frozenset([GPU0]))
    for found, helps in ((gone, RESCAN), (both, f"{reset_gpu()}; for one that is gone {RESCAN}")):
        assert [finding.remedy for finding in verdict(found)] == [helps]
    (for_all,) = verdict(scan(*of_job))
    assert (for_all.remedy, for_all.concerns) == (FINDINGS["far"].remedy, [])


def test_the_history_has_the_worst_state_of_each_minute_of_an_hour() -> None:
    history = History()
    for minute, state, letters in (
        (1000, "far", "." * 59 + "f"),
        (1057, "near", ".." + "f" + "." * 56 + "n"),
        (1058, "idle", "." + "f" + "." * 56 + "ni"),
        (1058, "waiting", "." + "f" + "." * 56 + "nw"),
        (1058, "near", "." + "f" + "." * 56 + "nw"),
        (1061, "near", "." * 55 + "nw..n"),
        (1200, "idle", "." * 59 + "i"),
    ):
        assert history.add(60.0 * minute, {GPU0: state}) == {GPU0: letters}
    assert history.add(60.0 * 1201, {}) == {}
    assert history.add(60.0 * 1202, {GPU0: "near"}) == {GPU0: "." * 59 + "n"}  # it is back
