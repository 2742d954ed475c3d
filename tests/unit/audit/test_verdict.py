"""The node's state in a sentence, each GPU's in a word, and the last hour in letters."""

from dataclasses import replace

import pytest

from affinityd.audit.model import AuditedProcess, Scan
from affinityd.audit.verdict import History, states, verdict
from affinityd.audit.waits import Runner, Waits
from tests.support.scans import GPU0, GPU1, NEAR, process, scan

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
        (scan(FAR, FAR), "far", ["1 of 2 GPUs is used from far away"]),
        (
            scan(FAR, process(5, GPU1, cause="unpinned", placement="unpinned")),
            "far",
            [
                "1 of 2 GPUs is used from far away",
                "1 of 2 GPUs is used by unpinned processes, which may run far away",
            ],
        ),
        (
            scan(process(5, cause="unpinned", placement="unpinned")),
            "unpinned",
            ["1 of 2 GPUs is used by unpinned processes, which may run far away"],
        ),
        (
            scan(ORPHAN, FAR),
            "far",
            ["1 of 2 GPUs is used from far away", "1 of 2 GPUs is held by an ended job"],
        ),
        (scan(beside(process(1, GPU1))), "near", ["2 GPUs in use, from near alone"]),
        (scan(beside(FAR_FROM_1)), "far", ["2 of 2 GPUs are used from far away"]),
        (scan(process(1), waits=waiting(2.0)), "waiting", ["1 of 2 GPUs waits for CPUs"]),
        (scan(process(1), waits=waiting(0.5)), "near", [FROM_NEAR]),
        (
            scan(process(1), waits=waiting(9.0, beside=0)),
            "near",
            [FROM_NEAR],
        ),
        (scan(unknown={GPU0: "silent"}), "unknown", ["1 of 2 GPUs cannot be judged"]),
        (scan(near={**NEAR, GPU0: None}), "unknown", ["1 of 2 GPUs cannot be judged"]),
    ],
)
def test_the_worst_comes_first(found: Scan, state: str | None, texts: list[str]) -> None:
    assert states(found).get(GPU0) == state
    assert [finding.text for finding in verdict(found, lambda _state, _process: None)] == texts


def test_a_finding_has_the_remedy_of_the_first_process_concerned() -> None:
    def remedy(state: str, its: AuditedProcess) -> str:
        return f"{state} {its.facts.pid}"

    found = verdict(scan(process(9), FAR, ORPHAN), remedy)
    assert [finding.remedy for finding in found] == ["far 1", "orphan 2"]


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
