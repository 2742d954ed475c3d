"""A report of NVML that a new interpreter prints."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from affinityd.discovery.nvml import ProcessReport
from affinityd.discovery.nvml.query import ask

NOISE = "os.write(1, b'NVRM: noise'), __import__('ctypes').CDLL(None).puts(b'more of it')"
REPORT = 'print(\'{"gpus": [], "error": "%s"}\' % text)'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def said(folder: Path, statement: str, timeout: float = 10) -> str | None:
    (folder / "job.py").write_text(f"import os, sys, time\ndef main():\n {statement}\n")
    return ask("job", ProcessReport, timeout).error


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (f"{NOISE}; text = os.getpgrp() == os.getpid(); {REPORT}", "True"),
        (f"text = len(os.listdir('/proc/self/fd')); {REPORT}", "5"),  # stdout twice, no open file
        (f"text = 'x' * 10**6; {REPORT}", "x" * 10**6),
        ("os.abort()", "NVML crashed: Aborted"),
        ("1 / 0", "NVML failed: ZeroDivisionError: division by zero"),
        ("os._exit(3)", "NVML failed: "),
        ("print('?')", "NVML's child printed no report: "),
    ],
)
def test_a_report_is_the_printed_one_or_names_the_failure(
    folder: Path, statement: str, error: str
) -> None:
    with Path(os.devnull).open() as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003  it takes it by position only
        assert str(said(folder, statement)).startswith(error)


def test_a_child_that_hangs_is_ended(folder: Path) -> None:
    assert said(folder, "time.sleep(600)", 0.2) == "NVML did not answer in time"


def test_a_python_that_is_not_there_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    assert "'/no/python'" in str(said(folder, "pass"))
