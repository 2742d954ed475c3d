"""The child process that scans: its results, failures, log lines and end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pytest

from affinityd.audit.document import ALL, COUNTS
from affinityd.audit.model import Scan
from affinityd.config.settings import Settings
from affinityd.daemon.logging import log_on_stdout
from affinityd.daemon.scanning import Scanning
from affinityd.daemon.state import scans as module
from affinityd.daemon.state.scans import METRICS, ScanChild, ScanResult, serve_scans
from affinityd.errors import FatalError
from affinityd.linux.processes import exists
from tests.support.daemons import eventually
from tests.support.scans import MACHINE, process, scan

FOUND = scan(*(process(pid, threads=3) for pid in range(100, 105)))


@contextmanager
def scanning(work: Callable[..., Scan]) -> Iterator[ScanChild]:
    """Run a child until the end of the block, as a daemon would."""
    child = ScanChild(partial(serve_scans, make=lambda: Scanning(Settings(), work).scan))
    try:
        yield child
    finally:
        child._pipe.close()  # the daemon's end closes it, too
        with suppress(ChildProcessError):
            os.waitpid(child._pid, 0)


def scanned(child: ScanChild) -> ScanResult:
    child.scan(MACHINE, {})
    assert child.last is not None
    return child.last


def document(result: ScanResult, reader: str) -> dict[str, Any]:
    return json.loads(result.texts[reader])  # type: ignore[no-any-return]


def test_metrics_and_documents_of_a_scan_are_returned() -> None:
    with scanning(lambda *_: FOUND) as child:
        results = [scanned(child), scanned(child)]
        assert [it.boot for it in results] == [FOUND.boot] * 2
        assert b"affinityd_gpu_processes" in results[0].texts[METRICS]
        pids = [it["pid"] for it in document(results[0], ALL)["processes"]]
        assert pids == [100, 101, 102, 103, 104]
        assert "processes" not in document(results[0], COUNTS)


def test_a_failed_scan_is_logged_with_its_traceback_and_the_next_one_is_made(
    capfd: pytest.CaptureFixture[str],
) -> None:
    failing = [True]

    def fails_once(*_: object) -> Scan:
        if failing.pop() if failing else False:
            raise ValueError("a bug of the test")
        return FOUND

    def work(pipe: Connection) -> None:
        with log_on_stdout("json"):
            serve_scans(pipe, lambda: Scanning(Settings(), fails_once).scan)

    child = ScanChild(work)
    child.scan(MACHINE, {})
    assert child.last is None
    assert scanned(child).boot == FOUND.boot
    child._pipe.close()
    os.waitpid(child._pid, 0)
    line = json.loads(capfd.readouterr().out)
    assert line["message"] == "a scan of the processes failed; the last good one stays"
    assert "in fails_once" in line["exception"]


def test_a_child_that_has_ended_is_a_fatal_error_of_one_line() -> None:
    ends = scanning(lambda *_: os._exit(1))
    with ends as child, pytest.raises(FatalError, match=r"\Athe process that scans .* has ended\Z"):
        child.scan(MACHINE, {})


@pytest.mark.parametrize(
    "hang", [lambda: time.sleep(600), lambda: os.kill(os.getpid(), signal.SIGSTOP)]
)
def test_a_child_that_hangs_or_is_stopped_is_killed_as_a_fatal_error(
    monkeypatch: pytest.MonkeyPatch, hang: Callable[[], None]
) -> None:
    monkeypatch.setattr(module, "HUNG_SECONDS", 0.1)
    with (
        scanning(lambda *_: hang()) as child,  # type: ignore[arg-type]
        pytest.raises(FatalError, match=r"\Aa scan of the processes has hung for 0\.1 s\Z"),
    ):
        child.scan(MACHINE, {})


HANGING = """
import os, time
from affinityd.daemon.state.scans import ScanChild

def hang(_):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(600)

ScanChild(hang).scan(None, {})
"""


def test_a_child_that_hangs_ends_with_the_daemon() -> None:
    command = [sys.executable, "-c", HANGING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout
        pid = int(daemon.stdout.readline())
        daemon.kill()
    eventually(lambda: not exists(pid), "it has ended")
