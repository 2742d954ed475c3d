"""The screen of `affinityd top`: what is wrong comes first, and alike processes share a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from affinityd.audit.document import AuditDocument, document, everything
from affinityd.audit.model import Job
from affinityd.audit.waits import CAUSES, Waits
from affinityd.cli.render.top import View, screen
from tests.support.scans import GPU0, GPU1, MACHINE, process, scan

NOW = 1_790_000_000.0
SEVEN, EIGHT = Job("slurm", "7"), Job("slurm", "8")
FOUND = scan(
    process(1, job=SEVEN, uid=1001),
    process(2, job=EIGHT, cause="mask", placement="remote"),
    process(3, GPU1, job=EIGHT),
    process(4, GPU1, job=EIGHT),
    process(5, GPU1, is_daemon=True),
    time=NOW - 5,
    users={1001: "alice"},
    history={GPU0: "." * 58 + "nf", GPU1: "." * 60},
    waits={3: Waits(10.0, {**dict.fromkeys(CAUSES, 0.0), "neighbor": 4.0})},
)


def shown(audit: AuditDocument, view: View = View(), now: float = NOW) -> list[str]:  # noqa: B008
    return [" ".join(line.split()) for line in screen(audit, view, "by the daemon at x", now)]


def pids(lines: Sequence[str]) -> list[str]:
    begin = next(place for place, line in enumerate(lines) if line.startswith("gpu pid"))
    return [line.split()[1] for line in lines[begin + 1 :]]


ALL = document(MACHINE, FOUND, everything)


def test_the_verdict_comes_first_then_a_line_a_gpu_then_the_processes() -> None:
    lines = shown(ALL)
    assert lines[0] == f"{MACHINE.name}: by the daemon at x, scanned 5 s ago"
    assert lines[1].startswith("1 of 2 GPUs is used from far away: ")
    assert lines[2].startswith("1 of 2 GPUs waits for CPUs: ")
    begin = lines.index("gpu state jobs processes waits far memory last hour")
    # The job that is far comes first.
    assert lines[begin + 1] == "0 far slurm 8 (1000) slurm 7 (alice) 2 - - nf"
    assert lines[begin + 2] == "1 waiting slurm 8 (1000) 2 0.40 neighbor - -"
    assert pids(lines) == ["1", "2", "3"]
    assert lines[-1] == "1 3 python +1 alike 1000 slurm 8 local - 0.40 neighbor 0"


def test_an_old_scan_is_called_old() -> None:
    assert "OLD" in shown(ALL, now=NOW + 60)[0]
    assert "OLD" not in shown(ALL, now=NOW + 50)[0]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (View(wanted="slurm 7"), ["1"]),
        (View(wanted="alice"), ["1"]),
        (View(wanted="nothing"), []),
        (View(gpu=1), ["3"]),
        (View(sort="waits"), ["3", "1", "2"]),
        (View(sort="job"), ["1", "2", "3"]),
    ],
)
def test_processes_are_sorted_and_filtered(view: View, expected: list[str]) -> None:
    assert pids(shown(ALL, view)) == expected


def test_keys_go_round() -> None:
    view = View()
    assert view.next_gpu(2).next_gpu(2).gpu == 1
    assert view.next_gpu(2).next_gpu(2).next_gpu(2) == view
    for _ in range(5):
        view = view.next_sort()
    assert view == View()


def test_a_gpu_that_is_no_more_is_not_shown_alone() -> None:
    assert View(gpu=1).of(2) == View(gpu=1)
    assert View(gpu=1).of(1) == View()


def test_a_gpu_alone_has_the_screen_for_itself() -> None:
    lines = shown(ALL, View(gpu=1))
    begin = lines.index("gpu state jobs processes waits far memory last hour")
    assert [line[:9] for line in lines[begin + 1 : begin + 3]] == ["1 waiting", ""]


def test_counts_alone_are_shown_without_processes() -> None:
    lines = shown(document(MACHINE, FOUND, None))
    assert lines[1] == "1 of 2 GPUs is used from far away"
    assert lines[-1] == "processes are named over the daemon's socket alone"


def test_a_hostile_name_stays_on_its_line() -> None:
    first, *rest = ALL.processes or ()
    hostile = replace(ALL, processes=[replace(first, name="a\x1b[2J\nb"), *rest])
    assert any("a\\x1b[2J\\nb" in line for line in shown(hostile))
