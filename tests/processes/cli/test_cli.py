"""The commands, as a person runs them, and programs that accept a plan."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from affinityd import __version__
from affinityd.cli import COMMANDS, main
from affinityd.cpuset import format_list, parse_list
from affinityd.discovery.machine import Machine
from affinityd.request.formats import render
from affinityd.request.parameters import FORMATS
from affinityd.topology.model import Core, Gpu, NumaNode, Topology
from tests.support.asking import ask
from tests.support.daemons import running
from tests.support.tables import table

DGX = "--machine dgx-a100"

#: Runs a command line; returns the command's exit status, its stdout and its stderr.
Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _no_settings_of_this_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(words: str) -> tuple[int, str, str]:
        try:
            status = main(words.split(" ") if words else [])
        except SystemExit as end:
            status = int(end.code or 0)
        written = capsys.readouterr()
        return status, written.out, written.err

    return run


#: Each command that prints JSON, with the arguments that it needs.
JSON = (f"plan {DGX}", f"topology {DGX}", f"doctor {DGX}", "version", "verify", "audit")


@pytest.mark.parametrize("words", JSON)
def test_commands_take_json_and_format_json_alike(run: Run, words: str) -> None:
    answers = [run(f"{words} {said}") for said in ("--json", "--format json")]
    assert all(err or json.loads(out) for _, out, err in answers)
    assert len({(status, err) for status, _, err in answers}) == 1


def test_plan_and_topology_are_the_same_without_a_daemon(tmp_path: Path, run: Run) -> None:
    with running(tmp_path, *DGX.split()) as daemon:
        for form in FORMATS:
            _, out, _ = run(f"plan {DGX} --gpus=3,1 --visible=7,6,5,4 --format {form}")
            assert out == daemon.get(f"/plan?gpus=3,1&visible=7,6,5,4&format={form}").text
        _, out, _ = run(f"topology {DGX} --format json")
        assert json.loads(out) == daemon.get("/topology").json["topology"]


def test_a_boolean_option_may_have_a_value(run: Run) -> None:
    for flags, values in (
        ("--strict", (True, True)),
        ("--balanced=no --strict no", (False, False)),
    ):
        request = json.loads(run(f"plan {DGX} --json {flags}")[1])["request"]
        assert (request["balanced"], request["strict"]) == values


CONTROL = [f"plan {DGX} --x\n\x1b[31my", "2", " plan: unrecognized arguments: --x\\n\\x1b"]


@pytest.mark.parametrize(
    ("words", "code", "line"), [*table("command_errors.tsv", DGX=DGX), CONTROL]
)
def test_an_error_is_one_line_on_stderr(run: Run, words: str, code: str, line: str) -> None:
    status, out, err = run(words)
    assert (status, out, err.count("\n")) == (int(code), "", 1)
    assert err.startswith(f"affinityd{line}")


def test_plan_on_a_machine_without_a_gpu_suggests_another_machine(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = (Core((0,), node=0, package=0, die=0, llc=0),)
    monkeypatch.setattr(Machine, "read", lambda _: Topology(name="laptop", cores=cores, nodes=()))
    line = "affinityd plan: this machine has no GPU; --machine plans on another, like dgx-a100\n"
    assert run("plan") == (1, "", line)


def test_warnings_go_to_stderr_so_that_the_answer_can_be_piped(run: Run) -> None:
    _, out, err = run(f"plan {DGX} --gpus 0 --cpuset 0-15 --format cpulist")
    assert (out, err.count("affinityd: remote_home: rank 0")) == ("0-15\n", 1)


def test_a_warning_of_many_ranks_is_one_line(run: Run) -> None:
    _, _, err = run("plan --machine mi250x")
    assert (err.count("\n"), err.endswith("(NODE); likewise ranks 1-7\n")) == (1, True)


def test_a_plan_without_variables_for_libraries_says_so(run: Run) -> None:
    line = "affinityd: format nics: the plan has no active device of InfiniBand, RoCE or EFA\n"
    assert run("plan --machine gh200x4 --format nics") == (0, "", line)


@pytest.mark.parametrize("command", [*COMMANDS, "slurm gres-conf"])
def test_every_command_has_a_help_text(run: Run, command: str) -> None:
    status, out, _ = run(f"{command} --help")
    assert (status, out[: len(command) + 17]) == (0, f"usage: affinityd {command}")
    name = command.partition(" ")[0]
    assert run(f"help {name}") == run(f"{name} --help")
    assert COMMANDS[name] in run("help")[1]
    assert "exit status: 0: " in " ".join(out.split()) or name == "exec"
    assert len(re.findall(r"^  -", out, re.MULTILINE)) <= 12


def test_the_version_is_printed(run: Run) -> None:
    said = {run(word) for word in ("version", "--version", "-V")}
    assert said == {(0, f"affinityd {__version__}\n", "")}


# The streams of a process.


def in_shell(script: str, **env: str) -> tuple[int, bytes, bytes]:
    """Run a script in which `$a` is the program; return its exit status, and what it wrote."""
    env = {**os.environ, **env, "a": f"{sys.executable} -m affinityd"}
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


PLAN = f"$a plan {DGX} --cpuset 0 --format cpulist"
FULL = b"affinityd: the answer could not be written: No space left on device\n"


def test_a_full_or_closed_stream_does_not_affect_other_streams() -> None:
    assert in_shell(f"{PLAN} --gpus 0 2>&-") == (0, b"0\n", b"")
    assert in_shell(f"{PLAN} --gpus 99 2>&-") == (1, b"", b"")
    assert in_shell(f"$a topology {DGX} >/dev/full") == (1, b"", FULL)
    assert in_shell(f"$a topology {DGX} | head -n 1 | wc -l") == (0, b"1\n", b"")


def test_a_terminal_without_box_characters_still_gets_a_tree() -> None:
    status, out, _ = in_shell("$a topology --machine mi250x", PYTHONIOENCODING="latin-1")
    assert (status, b"NUMA node 3" in out) == (0, True)


ALL = sorted(os.sched_getaffinity(0))
HERE = Topology(
    name="here",
    cores=tuple(Core((cpu,), 0, 0, None, 0) for cpu in ALL),
    nodes=(NumaNode(0),),
    gpus=(Gpu(0, "nvidia", "0000:01:00.0", 0),),
)


@pytest.mark.parametrize("cpus", [ALL, ALL[-1:]], ids=["all", "last"])
@pytest.mark.parametrize(
    ("command", "format_name"),
    [("taskset -c", "cpulist"), ("taskset", "mask"), ("numactl", "numactl")],
)
def test_programs_accept_a_plan(command: str, format_name: str, cpus: list[int]) -> None:
    plan = render(ask(HERE, mode="node", cpuset=format_list(cpus)), format_name)
    run = f"{command} {plan.strip()} grep Cpus_allowed_list /proc/self/status".split()
    out = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert parse_list(out.split(":")[1]) == {*cpus}
