"""`affinityd doctor`, as a person runs it."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from affinityd.cli import main
from affinityd.cli.commands.doctor import gather
from affinityd.config import NODE_FILE
from affinityd.config.settings import Settings
from affinityd.cpuset import parse_list
from affinityd.doctor.checks import CHECKS
from affinityd.machines import NAMES
from affinityd.topology.document import write_node
from affinityd.topology.model import Node
from tests.support.doctor_facts import CPU, TWO, Files
from tests.support.machines.sysfs_tree import put, write_tree
from tests.support.paths import REPOSITORY

ISOLATED = {f"{CPU}/isolated": "1"}
BALANCED = {"proc/sys/kernel/numa_balancing": "1"}

#: Runs `doctor` with these words; returns its exit status and what it printed.
Doctor = Callable[..., tuple[int, str]]


@pytest.fixture
def doctor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Doctor:
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))
    return lambda *words: (main(["doctor", *map(str, words)]), capsys.readouterr().out)


def found(doctor: Doctor, *words: object) -> tuple[int, Any]:
    status, printed = doctor(*words, "--json")
    return status, json.loads(printed)


def node(root: Path, files: Files) -> Path:
    """Write a node named gpu07 with these files, and return its root."""
    write_tree(TWO, root / "gpu07")
    for path, text in files.items():
        put(root / "gpu07" / path, text)
    return root / "gpu07"


def test_the_exit_status_is_1_for_a_failure_and_0_for_a_warning(
    doctor: Doctor, tmp_path: Path
) -> None:
    for files, worst, code in (({}, "ok", 0), (BALANCED, "warn", 0), (ISOLATED, "fail", 1)):
        status, document = found(doctor, "--root", node(tmp_path / worst, files))
        assert (status, document["node"], document["worst"]) == (code, "gpu07", worst)
        assert [it["name"] for it in document["checks"]] == list(CHECKS)
        keys = {"name", "status", "found", "remedy", "gpus"}
        assert all(it.keys() == keys for it in document["checks"])


@pytest.mark.parametrize("name", NAMES)
def test_the_doctor_finds_no_fault_on_a_built_in_machine(doctor: Doctor, name: str) -> None:
    status, document = found(doctor, "--machine", name)
    assert (status, document["worst"]) == (0, "ok")
    judged = {it["name"] for it in document["checks"] if it["status"] == "ok"}
    assert judged <= {"gpu-numa-node", "gpu-nics"}  # a built-in machine has no files for others


def test_nvml_is_called_only_for_checks_that_need_it_and_not_on_hold(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    here = Settings(socket=os.fspath(tmp_path / "none.sock"))
    assert gather(here, ["isolcpus", "cgroup"], str(hold)).nvml is None
    facts = gather(here, ["isolcpus", "nvml"], str(hold))
    assert (facts.nvml is None, facts.maintenance) == (False, None)
    hold.write_text("an upgrade")
    facts = gather(here, hold=str(hold))
    held = f"NVML calls are on hold by 'an upgrade', until {hold} is removed"
    assert (facts.nvml, facts.maintenance) == (None, held)


def test_reserved_cpus_are_the_daemon_s_or_else_those_of_the_settings(tmp_path: Path) -> None:
    here = Settings(socket=os.fspath(tmp_path / "d.sock"), reserved_cpus=parse_list("1"))
    assert gather(here, ["isolcpus"]).reserved == parse_list("1")
    write_node(tmp_path / NODE_FILE, Node(TWO, reserved=parse_list("3")))
    assert gather(here, ["isolcpus"]).reserved == parse_list("3")


def test_an_unknown_check_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "cpus"]) == 2
    out, err = capsys.readouterr()
    line = "affinityd doctor: 'cpus' is not a check; there are daemon, nri, gpu-numa-node, "
    assert (out, err[: len(line)], err.count("\n")) == ("", line, 1)


def test_the_help_and_the_page_have_a_row_for_every_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [it for it, check in CHECKS.items() if [it, *check.looks_at.split()] not in lines] == []
    table = (REPOSITORY / "docs/doctor.md").read_text().partition("| check |")[2]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == list(CHECKS)


def test_a_check_that_does_not_apply_has_a_row_only_if_it_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = []
    for names in ([], ["irqbalance"]):
        assert main(["doctor", "--machine", "p4d-24xlarge", *names]) == 0
        shown.append(capsys.readouterr().out)
    assert ["irqbalance  n/a" in text for text in shown] == [False, True]
    assert re.search(r"p4d-24xlarge: .*\d+ n/a$", shown[0].strip())
