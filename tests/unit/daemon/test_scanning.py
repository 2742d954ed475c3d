"""The log lines about scans, each finding once; the documents; the daemon's own CPUs."""

import logging
import os
from dataclasses import replace

import pytest

from affinityd.cpuset import format_list, parse_list
from affinityd.daemon.scanning import cpus_beside
from affinityd.daemon.state import scans
from tests.support.scans import GPU0, GPU1, Audit, audit, process, scanned

REMOTE = process(1, cause="mask", placement="remote")
BOTH = audit(REMOTE, process(2, cause="allocation", placement="remote"))
FAR, NEAR, NONE = audit(REMOTE), audit(process(1)), audit()
OF_DAEMON = audit(process(1, cause="mask", is_daemon=True))
UNSEEN = audit(unknown={GPU0: "NVML is silent"})
ON_OTHER = audit(process(3, GPU1, cause="unpinned", placement="unpinned"))

first, *others = FAR.topology.gpus
gpus = (replace(first, pci_bus_id="0000:aa:00.0"), *others)
ANOTHER_GPU = Audit(replace(FAR.topology, gpus=gpus), FAR.scan)

SEE = "of its processes may run far from it ({}); see affinityd audit"
APPEARED = f"WARNING: nvidia GPU 0 (0000:10:00.0): 1 {SEE.format('mask: 1')}"
GONE = "INFO: nvidia GPU 0 (0000:10:00.0): its processes are near it again, or have ended"
TWO_FAR = f"WARNING: nvidia GPU 0 (0000:10:00.0): 2 {SEE.format('allocation: 1, mask: 1')}"
OTHER_FAR = f"WARNING: nvidia GPU 1 (0000:11:00.0): 1 {SEE.format('unpinned: 1')}"


@pytest.mark.parametrize(
    ("audits", "lines"),
    [
        ([NEAR, OF_DAEMON], []),
        ([FAR, FAR, BOTH], [APPEARED]),
        ([BOTH], [TWO_FAR]),
        ([FAR, NEAR], [APPEARED, GONE]),
        ([FAR, NONE], [APPEARED, GONE]),
        ([FAR, UNSEEN, FAR], [APPEARED]),  # what cannot be seen has not ended
        ([FAR, UNSEEN, NONE], [APPEARED, GONE]),
        ([FAR, ON_OTHER], [APPEARED, GONE, OTHER_FAR]),
        ([FAR, ANOTHER_GPU], [APPEARED, APPEARED.replace("0000:10:00.0", "0000:aa:00.0")]),
        ([audit(notices=("a",)), audit(notices=("a", "b"))], ["WARNING: a", "WARNING: b"]),
        ([audit(notices=("a",)), NONE, audit(notices=("a",))], ["WARNING: a"]),
    ],
)
def test_the_log_has_these_lines_of_scans(
    caplog: pytest.LogCaptureFixture, audits: list[Audit], lines: list[str]
) -> None:
    caplog.set_level(logging.INFO)
    scanned(*audits)
    assert [f"{record.levelname}: {record.message}" for record in caplog.records] == lines


@pytest.mark.parametrize(
    ("audit", "reserved", "may_use", "cpus"),
    [
        (NONE, "", "0-7", "0-7"),
        (NEAR, "", "0-7", "1-7"),  # a rank is pinned to CPU 0
        (NEAR, "6", "0-7", "6"),
        (NEAR, "6", "0-5", "1-5"),  # the daemon's own cpuset has no reserved CPU
        (NEAR, "", "0", "0"),  # nor any other
        (OF_DAEMON, "", "0-7", "0-7"),
        (ON_OTHER, "", "0-7", "0-7"),  # it is not pinned
    ],
)
def test_the_daemon_keeps_off_the_cpus_of_pinned_ranks(
    audit: Audit, reserved: str, may_use: str, cpus: str
) -> None:
    found = cpus_beside(audit.scan, parse_list(reserved), parse_list(may_use))
    assert format_list(found) == cpus


def test_the_daemon_s_threads_are_moved_but_not_those_of_init_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[int] = []
    monkeypatch.setattr(scans, "thread_ids", lambda pid: [pid])
    monkeypatch.setattr(scans, "mask_of", lambda _tid: frozenset({1}))
    monkeypatch.setattr(os, "sched_setaffinity", lambda tid, _cpus: moved.append(tid))
    monkeypatch.setattr(os, "getppid", lambda: 1)
    scans.move_to(frozenset({0}), daemon=777)
    assert moved == []
    monkeypatch.setattr(os, "getppid", lambda: 777)
    scans.move_to(frozenset({0}), daemon=777)
    assert moved == [777, os.getpid()]
