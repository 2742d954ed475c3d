"""The log lines about scans, each finding once; the documents."""

import logging
from dataclasses import replace

import pytest

from affinityd.audit.remedies import RESCAN, reset_gpu
from affinityd.audit.verdict import IS_GONE
from tests.support.scans import GPU0, GPU1, Audit, audit, process, scanned

REMOTE = process(1, cause="mask", placement="remote")
BOTH = audit(REMOTE, process(2, cause="allocation", placement="remote"))
FAR, NEAR, NONE = audit(REMOTE), audit(process(1)), audit()
OF_DAEMON = audit(process(1, cause="mask", is_daemon=True))
UNSEEN = audit(unknown={GPU0: "NVML is silent"})
ON_OTHER = audit(process(3, GPU1, cause="unpinned", placement="unpinned"))

LOST = audit(unknown={GPU0: "silent"}, lost=frozenset([GPU0]))
SILENT = "nvidia GPU 0 (0000:10:00.0): silent"
WAS_LOST = f"ERROR: lost or hung: {SILENT}; {reset_gpu('0000:10:00.0')}"
FOUND = "INFO: not lost any more: nvidia GPU 0 (0000:10:00.0)"

first, *others = FAR.topology.gpus
gpus = (replace(first, pci_bus_id="0000:aa:00.0"), *others)
ANOTHER_GPU = Audit(replace(FAR.topology, gpus=gpus), FAR.scan)

SECOND = replace(FAR.topology, gpus=(replace(others[0], index=0),))
SECOND_ALONE = Audit(SECOND, audit(near={GPU0: None}, gone=(first,)).scan)
SECOND_FAR = Audit(SECOND, replace(FAR.scan, gone=(first,)))
FIRST_GONE = f"ERROR: lost or hung: nvidia GPU 0 (0000:10:00.0): {IS_GONE}; {RESCAN}"
BOTH_LOST = audit(unknown={GPU0: "silent"}, lost=frozenset([GPU0]), gone=others)
SECOND_GONE = f"ERROR: lost or hung: nvidia GPU 1 (0000:11:00.0): {IS_GONE}; {RESCAN}"
PARTS = replace(FAR.topology, gpus=(first, replace(others[0], pci_bus_id=first.pci_bus_id)))
ON_PART = Audit(PARTS, FAR.scan)

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
        ([LOST, LOST, NEAR], [WAS_LOST, FOUND]),
        ([LOST, SECOND_ALONE, SECOND_ALONE, NEAR], [WAS_LOST, FOUND]),  # indices shift
        ([LOST, BOTH_LOST], [WAS_LOST, SECOND_GONE]),
        ([ON_OTHER, SECOND_FAR], [OTHER_FAR, FIRST_GONE]),
        ([ON_PART], [APPEARED]),
        ([ON_PART, ON_PART], [APPEARED]),
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
