"""Pins of real processes are journaled, and undone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.cpuset import CpuSet
from affinityd.enforce import journal
from affinityd.linux.pinning import PinResult, Target, pin_threads
from affinityd.linux.processes import thread_ids
from tests.processes.linux.test_pinning import ALL, FAMILY, FIRST, SECOND, masks
from tests.support.children import present, program, sleeping
from tests.support.daemons import eventually

THREE_THREADS = 3


def pinned(path: Path, pid: int, cpus: CpuSet, job: str = "7") -> PinResult:
    stat = present(pid)
    result = pin_threads(lambda: [Target(pid, stat.start, cpus)])
    threads = result.replaced.get(pid, ())
    pin = journal.JournaledPin(0.0, pid, stat.start, stat.name, 0, job, "mask", cpus, threads)
    journal.append(path, pin)
    return result


def undo(path: Path, *words: str) -> int:
    return main(["enforce", "--undo", "--socket", f"{path.with_name('affinityd.sock')}", *words])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / journal.FILE


def test_each_thread_has_the_mask_back_that_it_had_before_the_first_pin(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with program(FAMILY, str(max(SECOND))) as child:
        before = masks(child.pid)
        assert before == [ALL, SECOND, ALL]
        for cpus in (FIRST, SECOND, FIRST):
            pinned(path, child.pid, cpus)
        assert masks(child.pid) == [FIRST] * THREE_THREADS
        assert undo(path) == 0
        assert masks(child.pid) == before
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(set(before))
        assert all(line.startswith(f"process {child.pid} (python") for line in lines)
        assert undo(path) == 0
    assert "no running process has a pin to undo" in capsys.readouterr().out


def test_a_thread_that_has_chosen_another_mask_since_keeps_it(path: Path) -> None:
    with sleeping() as child:
        pinned(path, child.pid, FIRST)
        os.sched_setaffinity(child.pid, SECOND)
        assert undo(path) == 0
        assert masks(child.pid) == [SECOND]


def test_a_later_thread_has_inherited_the_pin_and_gets_the_main_thread_s_mask(path: Path) -> None:
    start_one = (
        "import sys, threading; print(1, flush=True); sys.stdin.readline(); "
        "threading.Thread(target=sys.stdin.read).start()"
    )
    with program(start_one) as child:
        pinned(path, child.pid, FIRST)
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        eventually(lambda: len(thread_ids(child.pid)) > 1, "the thread has started")
        undo(path)
        assert masks(child.pid) == [ALL, ALL]


def test_only_the_processes_of_a_job_are_undone_where_one_is_named(path: Path) -> None:
    with sleeping() as one, sleeping() as other:
        pinned(path, one.pid, FIRST, job="7")
        pinned(path, other.pid, FIRST, job="8")
        undo(path, "--job", "8")
        assert (masks(one.pid), masks(other.pid)) == ([FIRST], [ALL])
    assert main(["enforce", "--job", "8"]) != 0


def test_another_process_with_the_pid_is_left_alone(path: Path) -> None:
    with sleeping() as child:
        pinned(path, child.pid, FIRST)
        start = present(child.pid).start
        text = path.read_text().replace(f'"start": {start}', f'"start": {start - 1}')
        path.write_text(text)
        undo(path)
        assert masks(child.pid) == [FIRST]


def test_a_long_journal_keeps_the_pins_of_living_processes_and_skips_torn_lines(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sleeping() as child:
        pinned(path, child.pid, FIRST)
        with sleeping() as ended:
            pinned(path, ended.pid, FIRST)
        path.write_bytes(path.read_bytes() + b'{"time": 1.0, "pi')
        assert living(journal.pins(path)) == [child.pid, ended.pid]
        monkeypatch.setattr(journal, "MOST", path.stat().st_size)
        pinned(path, child.pid, SECOND)
        assert living(journal.pins(path)) == [child.pid, child.pid]
        assert path.stat().st_mode & 0o777 == journal.PRIVATE


def living(pins: Iterable[journal.JournaledPin]) -> list[int]:
    return [pin.pid for pin in pins]
