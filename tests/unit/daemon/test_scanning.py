"""The log lines about scans, one for each finding."""

import logging
from dataclasses import replace

import pytest

from affinityd.audit.findings import IS_GONE
from affinityd.audit.remedies import RESCAN, reset_gpu
from tests.support.scans import GPU0, GPU1, Audit, audit, process, scanned

NONE = audit()
FAR = audit(process(1, cause="mask", placement="remote"))
IS_FAR = "WARNING: used from far away: nvidia GPU 0 (0000:10:00.0): mask; see affinityd audit"
IS_NEAR = "INFO: no longer used from far away: the GPU at 0000:10:00.0"
UNSEEN = audit(unknown={GPU0: "silent"})
LOST = audit(unknown={GPU0: "silent"}, lost=frozenset([GPU0]))
SILENT = "nvidia GPU 0 (0000:10:00.0): silent"
WAS_LOST = f"ERROR: lost or hung: {SILENT}; {reset_gpu('0000:10:00.0')}"
FOUND = "INFO: not lost any more: the GPU at 0000:10:00.0"

first, *others = NONE.topology.gpus
SECOND = replace(NONE.topology, gpus=(replace(others[0], index=0),))
SECOND_ALONE = Audit(SECOND, audit(near={GPU0: None}, gone=(first,)).scan)
FIRST_GONE = f"ERROR: lost or hung: nvidia GPU 0 (0000:10:00.0): {IS_GONE}; {RESCAN}"
BOTH_LOST = audit(unknown={GPU0: "silent"}, lost=frozenset([GPU0]), gone=others)
SECOND_GONE = f"ERROR: lost or hung: nvidia GPU 1 (0000:11:00.0): {IS_GONE}; {RESCAN}"
PARTS = replace(NONE.topology, gpus=(first, replace(others[0], pci_bus_id=first.pci_bus_id)))
A_LOST_PART = Audit(PARTS, LOST.scan)
A_FAR_PART = Audit(PARTS, FAR.scan)
BOTH_FAR = Audit(
    PARTS, audit(*FAR.scan.processes, process(2, GPU1, cause="mask", placement="remote")).scan
)
OTHER_FAR = IS_FAR.replace("GPU 0", "GPU 1")


@pytest.mark.parametrize(
    ("audits", "lines"),
    [
        ([FAR, FAR, NONE], [IS_FAR, IS_NEAR]),
        ([FAR, UNSEEN, FAR, UNSEEN, NONE], [IS_FAR, IS_NEAR]),
        ([LOST, LOST, NONE], [WAS_LOST, FOUND]),
        ([LOST, SECOND_ALONE, SECOND_ALONE, NONE], [WAS_LOST, FOUND]),  # indices shift
        ([LOST, BOTH_LOST], [WAS_LOST, SECOND_GONE]),
        ([NONE, SECOND_ALONE], [FIRST_GONE]),
        ([A_LOST_PART, A_LOST_PART], [WAS_LOST]),
        ([A_FAR_PART, BOTH_FAR], [IS_FAR, OTHER_FAR]),
        ([audit(notices=("a",)), audit(notices=("a", "b"))], ["WARNING: a", "WARNING: b"]),
        ([audit(notices=("a",)), NONE, audit(notices=("a",))], ["WARNING: a"]),
    ],
)
def test_scans_cause_these_log_lines(
    caplog: pytest.LogCaptureFixture, audits: list[Audit], lines: list[str]
) -> None:
    caplog.set_level(logging.INFO)
    scanned(*audits)
    assert [f"{record.levelname}: {record.message}" for record in caplog.records] == lines
