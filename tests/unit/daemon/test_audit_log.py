"""What the log says of scans: what has come, once, and that it is gone, once."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from affinityd.daemon.audit_log import AuditLog
from affinityd.daemon.state.scanner import Audit
from tests.support.scans import GPU0, GPU1, audit, process

FAR = process(1, cause="mask", placement="remote")
FARTHER = process(2, cause="allocation", placement="remote")


def told(caplog: pytest.LogCaptureFixture, *audits: Audit) -> list[str]:
    """Return the lines of these scans, one after the other."""
    caplog.set_level(logging.INFO)
    log = AuditLog()
    for one in audits:
        log.scanned(one)
    return [f"{record.levelname}: {record.message}" for record in caplog.records]


GPU = "nvidia GPU 0 (0000:10:00.0)"
APPEARED = f"WARNING: {GPU}: {{}} of its processes may run far from it ({{}}); see affinityd audit"
GONE = f"INFO: {GPU}: its processes are near it again, or gone"


@pytest.mark.parametrize(
    ("audits", "lines"),
    [
        ([audit(process(1))], []),
        ([audit(FAR), audit(FAR)], [APPEARED.format(1, "mask: 1")]),
        ([audit(FAR, FARTHER)], [APPEARED.format(2, "allocation: 1, mask: 1")]),
        ([audit(FAR), audit(FAR, FARTHER)], [APPEARED.format(1, "mask: 1")]),
        ([audit(FAR), audit(process(1))], [APPEARED.format(1, "mask: 1"), GONE]),
        ([audit(FAR), audit()], [APPEARED.format(1, "mask: 1"), GONE]),
        ([audit(process(1, cause="mask", is_daemon=True))], []),
        (
            [audit(FAR), audit(unknown={GPU0: "NVML is silent"}), audit(FAR)],
            [APPEARED.format(1, "mask: 1")],
        ),
        (
            [audit(FAR), audit(unknown={GPU0: "NVML is silent"}), audit()],
            [APPEARED.format(1, "mask: 1"), GONE],
        ),
        ([audit(notices=("a",)), audit(notices=("a", "b"))], ["WARNING: a", "WARNING: b"]),
        ([audit(notices=("a",)), audit(), audit(notices=("a",))], ["WARNING: a"] * 2),
    ],
    ids=[
        "who is near is no news",
        "a mismatch is news once",
        "two processes of a GPU are one line",
        "another process is no news",
        "the end of it is news",
        "a process that is gone is the end of it too",
        "a known daemon is no news",
        "what cannot be seen has not ended",
        "until it can be seen again",
        "a notice is news once",
        "a notice that comes back is news again",
    ],
)
def test_the_log_says(
    caplog: pytest.LogCaptureFixture, audits: list[Audit], lines: list[str]
) -> None:
    assert told(caplog, *audits) == lines


def test_each_gpu_has_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    lines = told(caplog, audit(FAR, process(3, GPU1, cause="unpinned", placement="unpinned")))
    assert [line.split(":")[1] for line in lines] == [" nvidia GPU 0 (0000", " nvidia GPU 1 (0000"]


def test_another_gpu_under_the_number_of_one_that_has_left_is_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = audit(FAR)
    first, *others = before.topology.gpus
    moved = replace(before.topology, gpus=(replace(first, pci_bus_id="0000:aa:00.0"), *others))
    assert told(caplog, before, Audit(moved, before.scan)) == [
        APPEARED.format(1, "mask: 1"),
        APPEARED.format(1, "mask: 1").replace("0000:10:00.0", "0000:aa:00.0"),
    ]
