"""A process for long computations: its failures, its log, and the calls that the daemon makes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from affinityd.audit.facts.job import Job
from affinityd.audit.model import CpuTime
from affinityd.daemon.audit_reports import AuditReports
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.peers.viewer import Viewer
from affinityd.daemon.state.audits import PackedAudit
from affinityd.daemon.state.worker import T, Worker
from affinityd.linux.processes import exists
from tests.support.children import children_of
from tests.support.daemons import eventually
from tests.support.scans import audit, process


@contextmanager
def working(make: Callable[[], T]) -> Iterator[Worker[T]]:
    """Run it until the daemon would end."""
    before = {*children_of(os.getpid())}
    worker = Worker("is of a test", make)
    (pid,) = {*children_of(os.getpid())} - before
    try:
        yield worker
    finally:
        vars(worker)["_pipe"].close()  # as the end of the daemon does
        os.waitpid(pid, 0)


def test_one_that_cannot_start_has_a_traceback_and_tries_again() -> None:
    failures = [ImportError("no such module"), ImportError("still not")]

    def make() -> list[int]:
        if failures:
            raise failures.pop(0)
        return [3]

    with working(make) as worker:
        for told in ("no such module", "still not"):
            with pytest.raises(RuntimeError, match=rf"(?s)in make.*ImportError: {told}"):
                worker.call("copy")
        assert worker.call("copy") == [3]


HANGING = """
import os, signal, threading, time
from affinityd.daemon.state.worker import Worker

class Hangs:
    def hang(self):
        os.write(1, f"{os.getpid()}\\n".encode())
        time.sleep(600)

Worker("is of a test", Hangs).call("hang")
"""


def test_one_that_hangs_ends_with_the_daemon() -> None:
    command = [sys.executable, "-c", HANGING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout
        pid = int(daemon.stdout.readline())
        daemon.kill()
    eventually(lambda: not exists(pid), "it has ended")


def test_its_log_lines_are_the_daemons(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    far, near = (
        audit(process(1, cause="mask", placement="remote")),
        audit(process(1)),
    )
    with working(lambda: AuditReports(0)) as worker:
        for found in (far, near, near):
            worker.call("scanned", PackedAudit.of(found))
    name = "affinityd.daemon.audit_log"
    assert [(it.name, it.levelname) for it in caplog.records] == [(name, "WARNING"), (name, "INFO")]
    assert caplog.records[0].message.startswith("nvidia GPU 0 (0000:10:00.0): 1 of its processes")


def test_a_large_scan_costs_the_daemon_no_more_calls_than_a_small_one() -> None:
    """A plan waits for the daemon's interpreter, whatever thread it runs."""
    calls_of_daemon(jobs=4, processes=1)  # imports
    few = calls_of_daemon(jobs=4, processes=1)
    assert calls_of_daemon(jobs=400, processes=100) < few + 10


def calls_of_daemon(jobs: int, processes: int) -> int:
    """Return how many functions the daemon calls for a scan, a scrape and a document of it."""
    job_time = {Job("slurm", str(number)): CpuTime(2.0, 1.0) for number in range(jobs)}
    found = audit(*(process(pid + 1, threads=50) for pid in range(processes)), job_time=job_time)
    packed, calls = PackedAudit.of(found), 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    with working(lambda: AuditReports(jobs)) as worker:
        metrics = Metrics(lambda: None, of_scan=lambda accept: worker.call("exposition", accept))
        sys.setprofile(count)
        try:
            worker.call("scanned", packed)
            metrics.scanned(packed)
            body, _ = metrics.exposition("")
            document = worker.call("document", Viewer(is_admin=True))
        finally:
            sys.setprofile(None)
    assert body.count(b"affinityd_job_gpus{") == jobs
    assert document.count(b'"tid"') == processes * 50
    return calls
