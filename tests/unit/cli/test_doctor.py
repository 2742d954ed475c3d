"""`affinityd doctor`, as a person runs it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.cli.commands.doctor import gather
from affinityd.config.settings import Settings
from affinityd.discovery import open_tree
from affinityd.discovery.snapshot import write_snapshot
from affinityd.doctor.checks.registry import CHECKS
from affinityd.machines import NAMES
from tests.support.doctor_facts import CPU, TWO, Files
from tests.support.machines.sysfs_tree import nvml_report, put, write_tree
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs/doctor.md"

ISOLATED = {f"{CPU}/isolated": "1"}
BALANCED = {"proc/sys/kernel/numa_balancing": "1"}


@pytest.fixture(autouse=True)
def _no_settings_of_this_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))


def node(root: Path, files: Files) -> str:
    """Write a node named gpu07 with these files, and return its root."""
    write_tree(TWO, root / "gpu07")
    for path, text in files.items():
        put(root / "gpu07" / path, text)
    return os.fspath(root / "gpu07")


@pytest.mark.parametrize(
    ("files", "worst", "code"),
    [
        ({}, "ok", 0),
        (BALANCED, "warn", 0),
        (ISOLATED, "fail", 1),
        ({**BALANCED, **ISOLATED}, "fail", 1),
    ],
)
def test_what_fails_is_the_exit_status_and_a_warning_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: Files, worst: str, code: int
) -> None:
    assert main(["doctor", "--json", "--root", node(tmp_path, files)]) == code
    document = json.loads(capsys.readouterr().out)
    assert (document["node"], document["worst"]) == ("gpu07", worst)
    assert [it["name"] for it in document["checks"]] == list(CHECKS)
    assert all(
        it.keys() == {"name", "status", "found", "remedy", "gpus"} for it in document["checks"]
    )


def test_a_finding_names_its_gpus_and_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = node(tmp_path, ISOLATED)
    assert main(["doctor", "isolcpus", "--root", root, "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["checks"]
    assert (found["status"], found["gpus"]) == ("fail", [0])
    assert "isolcpus= takes CPU 1 near GPU 0" in found["found"]
    assert "--reserved-cpus 1" in found["remedy"]
    assert main(["doctor", "isolcpus", "--root", root, "--reserved-cpus", "1"]) == 0


def test_the_table_has_each_remedy_below_what_it_mends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = node(tmp_path, BALANCED)
    assert main(["doctor", "numa-balancing", "gpu-numa-node", "--root", root]) == 0
    head, place, balancing, remedy, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["check", "status", "found"]
    assert place == "gpu-numa-node   ok      GPU 0 on node 0; GPU 1 on node 1"
    assert balancing.startswith("numa-balancing  warn    kernel.numa_balancing is 1: ")
    assert remedy.startswith(f"{' ' * 24}→ sysctl -w kernel.numa_balancing=0")
    assert total == "gpu07: 1 warn, 1 ok"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_about_a_shipped_machine(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["doctor", "--machine", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["worst"] == "ok"
    assert {it["status"] for it in document["checks"]} == {"ok", "n/a"}


def test_a_snapshot_is_examined_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "gpu07.tar.xz"
    write_snapshot(open_tree(node(tmp_path, {})), nvml_report(TWO), archive)
    assert main(["doctor", "--root", os.fspath(archive), "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    status = {it["name"]: it["status"] for it in checks}
    assert (status["nvml"], status["gpu-numa-node"], status["socket"]) == ("ok", "ok", "n/a")


def test_nvml_is_asked_for_the_checks_that_want_it_and_while_nobody_works_on_its_driver(
    tmp_path: Path,
) -> None:
    hold = tmp_path / "hold"
    here = Settings(socket=os.fspath(tmp_path / "none.sock"))
    assert gather(here, ["isolcpus", "cgroup"], str(hold)).nvml is None
    facts = gather(here, ["isolcpus", "nvml"], str(hold))
    assert (facts.nvml is None, facts.maintenance, facts.hold_seconds) == (False, None, None)
    hold.write_text("an upgrade")
    facts = gather(here, hold=str(hold))
    assert (facts.nvml, facts.maintenance) == (
        None,
        f"NVML is held off by 'an upgrade', until {hold} is removed",
    )
    assert facts.hold_seconds is not None


def test_this_machine_without_a_daemon_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "socket", "--socket", str(tmp_path / "none.sock")]) == 1
    assert "no daemon at " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["cpus"], "affinityd doctor: 'cpus' is no check; there are socket, variables, "),
        (["--root", "/nowhere"], "affinityd doctor: root '/nowhere' cannot be opened"),
        (["--machine", "cray-1"], "affinityd doctor: no machine is named 'cray-1'"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert main(["doctor", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1


def test_the_help_says_what_each_check_looks_at(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    lines = capsys.readouterr().out.splitlines()
    for name, check in CHECKS.items():
        assert any(line.split() == [name, *check.looks_at.split()] for line in lines)


def test_the_page_has_a_row_for_every_check() -> None:
    table = PAGE.read_text().partition("| check |")[2]
    rows = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert rows == list(CHECKS)
