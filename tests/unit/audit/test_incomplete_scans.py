"""Scans that could not see everything: what they say of the GPUs, and remember."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.auditor import HIDDEN, Auditor
from affinityd.audit.model import GpuHolders
from tests.support.audit_facts import GPU, Known
from tests.support.children import sleeping
from tests.support.small_node import FAR, TOPOLOGY


def test_what_nobody_knows_is_handed_on() -> None:
    known = Known()
    known.now = GpuHolders(unknown={GPU: "NVML is silent"})
    scan = Auditor(known).scan(TOPOLOGY)
    assert (scan.unknown, scan.processes) == ({GPU: "NVML is silent"}, ())
    assert set(scan.gpu_time) == {GPU, ("nvidia", 1)}


def test_a_mismatch_outlasts_a_scan_that_could_not_see_it() -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        known = Known(child.pid)
        auditor = Auditor(known)
        first = auditor.scan(TOPOLOGY)
        seen, known.now = known.now, GpuHolders(unknown={GPU: "NVML is silent"})
        blind = auditor.scan(TOPOLOGY)
        known.now = seen
        third = auditor.scan(TOPOLOGY)
    assert (blind.since, third.since) == ({}, {GPU: first.time})


def test_of_a_gpu_with_a_holder_that_proc_hides_nobody_knows_that_all_is_well(
    tmp_path: Path,
) -> None:
    """In a /proc without processes: this very process, which runs, is hidden there."""
    scan = Auditor(Known(os.getpid()), str(tmp_path)).scan(TOPOLOGY)
    assert scan.unknown == {GPU: HIDDEN}
    assert Auditor(Known(os.getpid())).scan(TOPOLOGY).unknown == {}


def test_a_holder_that_has_ended_is_not_hidden(tmp_path: Path) -> None:
    assert Auditor(Known(10**7), str(tmp_path)).scan(TOPOLOGY).unknown == {}


def test_a_mismatch_outlasts_a_scan_to_which_its_process_was_hidden(tmp_path: Path) -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        auditor = Auditor(Known(child.pid))
        first = auditor.scan(TOPOLOGY)
        auditor._proc = str(tmp_path)
        assert auditor.scan(TOPOLOGY).since == {}
        auditor._proc = "/proc"
        assert auditor.scan(TOPOLOGY).since == {GPU: first.time}


def test_of_a_gpu_whose_processes_were_not_all_reached_nobody_knows_that_all_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("affinityd.audit.auditor.READING", -1.0)
    with sleeping() as one, sleeping() as other:
        known = Known(one.pid, other.pid)
        known.now = replace(known.now, skipped=5, notices=("look",))
        scan = Auditor(known).scan(TOPOLOGY)
    assert (scan.processes, scan.skipped, scan.late) == ((), 7, {GPU: 2})
    assert list(scan.unknown) == [GPU]
    assert scan.unknown[GPU].startswith("2 of them were not looked at")
    assert scan.notices == ("look",)


def test_why_a_driver_does_not_tell_goes_before_what_was_missed(tmp_path: Path) -> None:
    known = Known(os.getpid())
    known.now = replace(known.now, unknown={GPU: "NVML is silent"})
    assert Auditor(known, str(tmp_path)).scan(TOPOLOGY).unknown == {GPU: "NVML is silent"}
