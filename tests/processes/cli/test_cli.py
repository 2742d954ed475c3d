"""The commands, as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from affinityd import __version__
from affinityd.cli import COMMANDS, commands, main
from affinityd.request.parameters import FORMATS
from tests.support.daemons import running
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree

PROGRAM = [sys.executable, "-m", "affinityd"]
DGX = ("--machine", "dgx-a100")


@pytest.fixture(autouse=True)
def _no_settings_of_this_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))


@pytest.mark.parametrize("word", ["version", "--version", "-V"])
def test_version(capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out == f"affinityd {__version__}\n"


#: Each command that prints JSON, with what it needs for that.
JSON = (
    ["plan", *DGX],
    ["topology", *DGX],
    ["doctor", *DGX],
    ["version"],
    ["verify"],
    ["audit"],
    ["enforce", "--socket", "/nonexistent"],
    ["slurm", "check", *DGX, "--gres-conf", "/dev/null"],
)


@pytest.mark.parametrize("words", JSON, ids=lambda words: words[0])
def test_a_command_that_prints_json_takes_both_ways_to_say_so(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    printed = set()
    for said in (["--json"], ["--format", "json"]):
        code = main([*words, *said])
        captured = capsys.readouterr()
        printed.add((code, captured.out, captured.err))
    ((_, out, err),) = printed
    assert err or json.loads(out)


def test_every_command_that_has_a_format_is_among_them() -> None:
    said = {
        name
        for name in COMMANDS
        if (source := Path(next(iter(commands.__path__)), f"{name}.py").read_text())
        if "--json" in source or "add_format" in source or "--format" in source
    }
    assert said == {words[0] for words in JSON}


@pytest.mark.parametrize(
    ("said", "flags", "line"),
    [
        ({}, [], "by mode node, would give ranks 0-1 CPUs 48-63,176-191"),
        ({}, ["--scope=socket"], "by mode all, would give ranks 0-1 CPUs 0-63,128-191"),
        ({"AFFINITYD_MODE": "single"}, [], "by mode single, would give ranks 0-1 CPUs 48,176"),
        ({"AFFINITYD_MODE": "unique-contiguous"}, [], None),
        ({"AFFINITYD_MODE": "fast"}, [], None),
        ({}, ["--mode=even"], None),
        ({}, ["--format=cpulist"], None),
    ],
)
def test_a_table_says_in_a_last_line_what_exec_would_give_where_that_differs(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    said: dict[str, str],
    flags: list[str],
    line: str | None,
) -> None:
    for name, text in said.items():
        monkeypatch.setenv(name, text)
    assert main(["plan", *DGX, "--gpus=0,1", *flags]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"affinityd exec, {line}" if line else "exec" not in last


@pytest.mark.parametrize("form", FORMATS)
def test_a_plan_without_a_daemon_is_the_daemons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    with running(tmp_path, *DGX) as daemon:
        for query in ("gpus=0,1&mode=socket", "gpus=3&visible=7,6,5,4&min_physical_cores=2"):
            flags = [f"--{pair.replace('_', '-')}" for pair in query.split("&")]
            assert main(["plan", *DGX, *flags, "--format", form]) == 0
            assert capsys.readouterr().out == daemon.get(f"/plan?{query}&format={form}").text


def test_reasons_come_when_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", *DGX, "--gpus", "0", "--reserved-cpus", "48"]
    assert main(arguments) == 0
    assert "reserved" not in capsys.readouterr().out
    assert main([*arguments, "--explain"]) == 0
    assert "CPUs 48 of node 3 are reserved" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "balanced", "strict"),
    [
        ([], True, False),
        (["--strict"], True, True),
        (["--strict", "false", "--balanced", "false"], False, False),
        (["--balanced=no", "--strict=yes"], False, True),
    ],
)
def test_a_switch_may_stand_alone_or_have_a_value(
    capsys: pytest.CaptureFixture[str], flags: list[str], balanced: bool, strict: bool
) -> None:
    assert main(["plan", *DGX, *flags, "--format", "json"]) == 0
    request = json.loads(capsys.readouterr().out)["request"]
    assert (request["balanced"], request["strict"]) == (balanced, strict)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (
            ["plan", *DGX, "--gpus", "8"],
            1,
            "affinityd plan: no GPU 8; visible are 0 (0000:07:00.0)",
        ),
        (["plan", *DGX, "--min-physical-cores", "9"], 1, "affinityd plan: rank 0 (GPU 0) would"),
        (["plan", *DGX, "--mode", "fast"], 2, "affinityd plan: mode: 'fast' is not one of all,"),
        (["plan", *DGX, "--gpus", "0", "--gpus", "1"], 2, "affinityd plan: gpus is given twice"),
        (["plan", *DGX, "--gpu", "0"], 2, "affinityd plan: unrecognized arguments: --gpu 0"),
        (["plan", "--machine", "cray-1"], 2, "affinityd plan: "),
        (["plan", "--root", "/nowhere"], 2, "affinityd plan: root '/nowhere' cannot be opened"),
        (["topology", "--format", "xml", *DGX], 2, "affinityd topology: argument --format"),
        (["snapshot"], 2, "affinityd snapshot: the following arguments are required"),
        (
            ["snapshot", "-o", "/nowhere/node.tar"],
            1,
            "affinityd snapshot: /nowhere/node.tar cannot",
        ),
        (["snapshot", "-o", "node.zip"], 2, "affinityd snapshot: "),
        (
            ["plan", *DGX, "--format", "table", "--format", "json"],
            2,
            "affinityd plan: format is given twice; give it once",
        ),
        (
            ["plan", *DGX, "--x\n\x1b[31my"],
            2,
            "affinityd plan: unrecognized arguments: --x\\n\\x1b",
        ),
        (["topology", "--machine", ""], 2, "affinityd topology: --machine is empty"),
        (["plann"], 2, "affinityd: 'plann' is no command; there are serve, plan,"),
        ([], 2, "affinityd: a command is missing; there are serve, plan,"),
    ],
)
def test_what_is_wrong_is_one_line_on_stderr(arguments: list[str], code: int, line: str) -> None:
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


def test_warnings_go_to_stderr_so_that_the_answer_can_be_piped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", *DGX, "--gpus", "0", "--cpuset", "0-15", "--format", "cpulist"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "0-15\n"
    assert captured.err.startswith("affinityd: remote_home: rank 0")


@pytest.mark.parametrize("gpus", ["0", "99"], ids=["a warning", "an error"])
def test_where_stderr_is_closed_nothing_of_it_gets_into_the_answer(gpus: str) -> None:
    plan = f"'{sys.executable}' -m affinityd plan --machine dgx-a100 --cpuset 0 --format cpulist"
    done = subprocess.run(
        ["sh", "-c", f"{plan} --gpus {gpus} 2>&-"], capture_output=True, text=True, check=False
    )
    assert done.stdout == ("0\n" if gpus == "0" else "")


def test_an_answer_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        command = [*PROGRAM, "topology", *DGX]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "affinityd: the answer could not be written: No space left on device\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    done = subprocess.run([*PROGRAM, command, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"usage: affinityd {command}")
    listed = subprocess.run([*PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    assert COMMANDS[command] in listed


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    pipe = f"'{sys.executable}' -m affinityd topology --machine dgx-a100 | head -n 1; echo done"
    done = subprocess.run(["sh", "-c", pipe], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("done", "")


def test_a_terminal_that_has_no_box_characters_gets_a_tree_all_the_same() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [*PROGRAM, "topology", "--machine", "mi250x"]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0
    assert b"NUMA node 3" in done.stdout


def test_the_topology_as_json_is_the_daemons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = write_tree(machine("mi250x"), tmp_path / "root")
    assert main(["topology", "--root", str(tree), "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    with running(tmp_path / "run", "--root", str(tree)) as daemon:
        assert daemon.get("/topology").json["topology"] == printed


def test_a_snapshot_of_this_machine_is_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "node.tar.xz"
    assert main(["topology", "--format", "json"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert main(["snapshot", "-o", str(archive)]) == 0
    assert main(["topology", "--root", str(archive), "--format", "json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["name"] == "node"
    assert {**replayed, "name": None} == {**here, "name": None}


def test_a_snapshot_is_planned_on_as_the_node_it_is_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = write_tree(machine("ascend-910b"), tmp_path / "root")
    assert main(["snapshot", "--root", str(tree), "-o", str(tmp_path / "node.tar.gz")]) == 0
    for root in (tree, tmp_path / "node.tar.gz"):
        assert main(["plan", "--root", str(root), "--gpus", "0", "--format", "cpulist"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["144-155", "144-155"]
