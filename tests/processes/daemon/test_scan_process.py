"""Scans in a process of their own, and what another tells of them: what they find and fail at."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest

from affinityd.audit.model import Scan
from affinityd.daemon.state import audits
from affinityd.daemon.state.scan_process import ScanProcess
from affinityd.errors import FatalError
from affinityd.topology.model import Topology
from tests.support.children import children_of
from tests.support.scans import MACHINE, process, scan

FOUND = scan(*(process(pid, threads=3) for pid in range(100, 105)))


@contextmanager
def scanning(work: Callable[[Topology], Scan]) -> Iterator[tuple[ScanProcess, int, dict[str, int]]]:
    """Run it until the daemon would end; yield it, its pid, and the daemon's counts."""
    counts, before = {"processes": 0, "topology": 2}, {*children_of(os.getpid())}

    def make() -> tuple[Callable[[Topology], Scan], Mapping[str, int]]:
        its = {"processes": 0}

        def counted(topology: Topology) -> Scan:
            its["processes"] += 1
            return work(topology)

        return counted, its

    scans = ScanProcess(make, counts)
    (pid,) = {*children_of(os.getpid())} - before
    try:
        yield scans, pid, counts
    finally:
        vars(vars(scans)["_worker"])["_pipe"].close()  # as the end of the daemon does
        os.waitpid(pid, 0)


def found_by(scans: ScanProcess) -> Scan:
    return scans(MACHINE).unpacked().scan


def test_a_scan_is_as_it_was_found_in_pieces_or_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for piece in (1, 10**6):
        monkeypatch.setattr(audits, "PIECE", piece)
        with scanning(lambda _: FOUND) as (scans, _, counts):
            assert [found_by(scans), found_by(scans)] == [FOUND, FOUND]
            assert counts == {"processes": 2, "topology": 2}


def test_a_machine_that_is_as_it_was_is_the_same_object_there() -> None:
    """By that the auditor knows that it was not read again."""
    seen: list[Topology] = []

    def found(topology: Topology) -> Scan:
        seen.append(topology)
        return replace(FOUND, skipped=len({id(it) for it in seen}))

    with scanning(found) as (scans, _, _):
        told = [
            scans(it).unpacked().scan.skipped
            for it in (MACHINE, MACHINE, replace(MACHINE, name="new"))
        ]
        assert told == [1, 1, 2]


def test_a_scan_that_fails_has_its_traceback_and_the_next_one_is_made() -> None:
    failing = [True]

    def fails_once(_: Topology) -> Scan:
        if failing.pop() if failing else False:
            raise ValueError("a bug of the test")
        return FOUND

    with scanning(fails_once) as (scans, _, _):
        with pytest.raises(RuntimeError, match=r"(?s)in fails_once.*ValueError: a bug of the test"):
            scans(MACHINE)
        assert found_by(scans) == FOUND


def test_one_that_has_ended_is_fatal_in_one_line() -> None:
    with scanning(lambda _: os._exit(1)) as (scans, _, _):
        for _ in range(2):
            with pytest.raises(FatalError, match=r"\Athe process that scans .* has ended\Z"):
                scans(MACHINE)


def test_it_ignores_the_signals_that_end_the_daemon_and_ends_with_the_daemon() -> None:
    with scanning(lambda _: FOUND) as (scans, pid, _):
        assert found_by(scans) == FOUND
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        assert found_by(scans) == FOUND
