"""A report as JSON, for those who see all of it, their own processes, or counts alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from affinityd.audit.document import Sees, everything
from affinityd.audit.model import GpuKey
from affinityd.config.settings import OBSERVE
from affinityd.cpuset import parse_list
from affinityd.enforce.decide import PinRecord
from affinityd.enforce.document import Enforced, EnforceDocument, render, summary
from affinityd.enforce.model import REASONS, Decision
from affinityd.enforce.policy import PolicyState
from tests.support.documents import exactly, in_json
from tests.support.enforce_reports import drifted, enforced, fits, left, totals
from tests.support.scans import GPU0, GPU1, MACHINE

FIRST = fits(1)
FACTS = replace(FIRST.process.facts, beside=(GPU1,), cpuset=parse_list("0-5"))
FOUND = enforced(
    replace(FIRST, process=replace(FIRST.process, facts=FACTS)),
    drifted(2, "mask", rule=3, uid=1001),
    left(3, "no_job", job=None),
    left(4, "allocation", cause="allocation"),
    does=OBSERVE,
    hindrance="another daemon pins",
    notices=("environments",),
    unknown={GPU1: "no NVML"},
    policy=PolicyState("/etc/p", 1_790_000_000.0, 2, "rule 1: no"),
    totals=totals(pinned=3, threads=40, resets=1),
    unreached=1,
    seconds=0.5,
)
FOUND = replace(FOUND, records={**FOUND.records, 2: PinRecord(pins=2, resets=1, last_pin=5.0)})


def document(enforced: Enforced, sees: Sees | None) -> Any:  # noqa: ANN401 - as JSON has it
    written = render(enforced, sees)
    assert b"\n" not in written
    exactly(EnforceDocument, written)
    return json.loads(written)


def named(index: int) -> dict[str, object]:
    gpu = MACHINE.gpus[index]
    ids = {"pci_bus_id": gpu.pci_bus_id, "uuid": gpu.uuid}
    return {"vendor": gpu.vendor, "gpu": gpu.index, **ids}


MEND, ALLOCATE, LEAVE = "gpus_pinning_would_mend", "gpus_need_allocation", "gpus_left"
HEAD = """
{"node": "made", "time": "2026-09-21T14:13:20.250Z", "sees": "counts", "enforce": "pin",
"does": "observe", "hindrance": "another daemon pins", "notices": ["environments"],
"policy": {"file": "/etc/p", "read": "2026-09-21T14:13:20.000Z", "rules": 2,
 "error": "the file has an error; only root and --admin-group see which"},
"totals": {"pins": {"pinned": 3, "cut": 0, "refused": 0, "unsettled": 0}, "threads": 40,
 "resets": 1},
"unreached": 1, "seconds": 0.5}
"""


def test_the_document_has_the_mode_the_policy_and_the_totals() -> None:
    gpus = [
        {**named(0), "fate": "allocation", "why": None},
        {**named(1), "fate": "unknown", "why": "no NVML"},
    ]
    processes = {
        "fits": 1,
        "drifted": {"mask": 1, "unpinned": 0, "share": 0},
        "left": {**dict.fromkeys(REASONS, 0), "no_job": 1, "allocation": 1},
    }
    counts = {"gpus_mismatched": 1, MEND: 0, ALLOCATE: 1, LEAVE: 0, "gpus_unknown": 1}
    summary = {**counts, "gpus": gpus, "processes": processes}
    assert document(FOUND, None) == {**json.loads(HEAD), "summary": summary}


def test_a_policys_error_is_shown_only_to_readers_of_all_processes() -> None:
    assert document(FOUND, everything)["policy"]["error"] == "rule 1: no"
    assert "rule 1" not in document(FOUND, lambda _: True)["policy"]["error"]
    assert document(enforced(), None)["policy"]["error"] is None


PROCESS_2 = """
{"pid": 2, "name": "python", "uid": 1001, "container": null,
"vendor": "nvidia", "gpu": 0, "gpus_beside": [],
"placement": "remote", "verdict": "drifted", "cause": "mask", "reason": null, "why": null,
"observed": false, "masks": "0", "cpulist": "0-3", "cpuset": null, "mode": "node",
"share": "auto", "scope": "node", "rule": 3, "threads_drifted": 2, "threads_on_purpose": 0,
"pins": 2, "resets": 1, "last_pin": "2026-09-21T14:11:45.250Z"}
"""


def test_a_process_is_listed_in_its_job_with_its_cpus_and_pins() -> None:
    jobs = document(FOUND, everything)["jobs"]
    named = [[job[it] for it in ("scheduler", "id", "pod")] for job in jobs]
    assert named == [["slurm", "7", None], [None, None, None]]
    (first, second, last), (lone,) = (job["processes"] for job in jobs)
    assert second == json.loads(PROCESS_2)
    assert [it["pid"] for it in (first, last)] == [1, 4]
    assert (first["gpus_beside"], first["cpuset"]) == ([{"vendor": "nvidia", "gpu": 1}], "0-5")
    assert [lone[it] for it in ("verdict", "reason", "why")] == ["left", "no_job", "so it is"]
    unknown = ("cause", "cpulist", "cpuset", "mode", "share", "scope", "rule", "last_pin")
    assert {lone[name] for name in unknown} == {None}


def far(reason: str, pid: int = 2, gpu: GpuKey = GPU0) -> Decision:
    return left(pid, reason, gpu=gpu, cause="mask")


@pytest.mark.parametrize(
    ("decisions", "fates"),
    [
        ([fits()], set()),
        ([drifted(), drifted(2, "unpinned")], {MEND}),
        ([drifted(), far("young"), far("waiting", 3)], {MEND}),
        ([drifted(), far("policy")], {LEAVE}),
        ([drifted(), far("on_purpose"), drifted(3)], {MEND}),  # a pin moves the others
        ([far("on_purpose")], {LEAVE}),
        ([far("given_up")], {LEAVE}),
        ([far("opted_out"), far("allocation", 3)], {ALLOCATE}),
        ([drifted(), left(2, "no_job")], {MEND}),  # what is near does not count
        ([drifted(1, "share")], set()),  # nor what is near on another rank's CPUs
        ([drifted(), far("policy", gpu=GPU1)], {MEND, LEAVE}),
    ],
)
def test_gpus_with_a_mismatch_are_counted_by_remedy(
    decisions: list[Decision], fates: set[str]
) -> None:
    told = in_json(summary(enforced(*decisions)))
    assert {fate for fate in (MEND, ALLOCATE, LEAVE) if told[fate]} == fates
    assert told["gpus_mismatched"] == len(fates)


@pytest.mark.parametrize(
    ("sees", "word", "pids"),
    [
        (everything, "all", [1, 2, 4, 3]),
        (lambda it: it.facts.uid == 1001, "own", [2]),
        (lambda _it: False, "own", []),
    ],
)
def test_a_reader_gets_only_the_processes_that_it_may_see(
    sees: Sees, word: str, pids: list[int]
) -> None:
    told = document(FOUND, sees)
    assert told["sees"] == word
    assert [process["pid"] for job in told["jobs"] for process in job["processes"]] == pids
    assert all(job["processes"] for job in told["jobs"])
    assert told["summary"] == document(FOUND, None)["summary"]
