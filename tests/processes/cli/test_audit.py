"""`affinityd audit` on real processes; the test says which of them hold a GPU.

The node is that of a daemon's node.json, as if its CPUs 0 to 3 were this machine's. In a pipe, and
when interrupted, the command is a process of its own.
"""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from affinityd.audit.remedies import reset_gpu
from affinityd.cli import main
from affinityd.cli.commands import audit as audit_command
from affinityd.config import NODE_FILE
from affinityd.cpuset import format_list
from tests.support.audit_facts import Known
from tests.support.children import sleeping
from tests.support.machines.by_hand import made
from tests.support.paths import REPOSITORY
from tests.support.small_node import ALL, FAR, NEAR, TOPOLOGY, publish, use_small_node

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _small_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_small_node(monkeypatch, tmp_path)
    monkeypatch.delenv("AFFINITYD_ROOT")
    publish(tmp_path, TOPOLOGY)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    holders = Known()
    monkeypatch.setattr(audit_command, "HolderSources", lambda _ask: holders)
    return holders


def document(capsys: Capture, *flags: str) -> tuple[int, dict[str, Any]]:
    code = main(["audit", "--json", *flags])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_on_a_terminal_a_row_is_one_line_and_a_placement_is_colored(
    known: Known, monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm"), ("NO_COLOR", no_color)):
        monkeypatch.setenv(name, value)
    reader, terminal = pty.openpty()
    with sleeping() as child, os.fdopen(terminal, "w") as screen, os.fdopen(reader, "rb") as shown:
        known.now = Known(child.pid).now
        os.sched_setaffinity(child.pid, FAR)
        monkeypatch.setattr(sys, "stdout", screen)
        assert main(["audit"]) == 1
        state, head, row, *_ = os.read(shown.fileno(), 65536).decode().splitlines()
    assert state == ("{}" if no_color else "\x1b[31m{}\x1b[0m").format(
        "GPU 0 is used from far away"
    )
    assert ("\x1b[31mremote\x1b[0m" in row) is not bool(no_color)
    assert head.split()[:3] == ["gpu", "pid", "name"]
    assert max(len(head), len(re.sub(r"\x1b\[\d+m", "", row))) <= 80


def test_a_remote_process_fails_and_the_printed_remedy_corrects_its_mask(
    capsys: Capture, known: Known
) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "1", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    with sleeping(env=env) as child:
        known.now = Known(child.pid).now
        for mask, placement, code in ((NEAR, "local", 0), (ALL, "mixed", 1), (FAR, "remote", 1)):
            os.sched_setaffinity(child.pid, mask)
            found, told = document(capsys)
            (shown,) = told["processes"]
            assert (found, shown["pid"], shown["placement"]) == (code, child.pid, placement)
            assert shown["masks"] == format_list(mask)
            assert (told["sees"], told["gpus"][0]["processes"][placement]) == ("all", 1)
        assert main(["audit"]) == 1
        said = capsys.readouterr().out.splitlines()[-1]
        assert said == f"  affinityd pin --gpus 0000:10:00.0 {child.pid}"
        assert main(said.split()[1:]) == 0
        assert main(["audit"]) == 0


def test_a_node_without_gpus_or_with_an_unplaced_gpu_cannot_be_judged(
    capsys: Capture, tmp_path: Path, known: Known
) -> None:
    publish(tmp_path, replace(made({0: "0-1"}), gpus=()))
    assert main(["audit"]) == 2
    assert capsys.readouterr().err == (
        "affinityd audit: this node has no GPU; "
        "affinityd audit --machine dgx-a100-busy shows an example\n"
    )
    publish(tmp_path, made({0: "0,2", 1: "1,3"}, gpus=[None]))
    known.now = Known(os.getpid()).now
    assert main(["audit"]) == 2


def test_a_machine_with_recorded_processes_is_audited_as_a_demo(capsys: Capture) -> None:
    for name, line in (("dgx-h100", "is a replayed machine"), ("dgx", "no machine is named 'dgx'")):
        assert main(["audit", "--machine", name]) == 2
        assert line in capsys.readouterr().err
    assert main(["audit", "--machine", "dgx-a100-busy"]) == 1
    state, *lines = capsys.readouterr().out.splitlines()
    assert state.startswith("demo: dgx-a100-busy, with made-up processes: GPUs 0-1,3 are used")
    assert "  affinityd pin --tree --gpus 0000:07:00.0 5000101" in lines


@pytest.mark.parametrize("is_published", [True, False])
def test_processes_of_this_machine_are_not_judged_by_a_replayed_machine(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_published: bool
) -> None:
    publish(tmp_path, TOPOLOGY, replayed=True)
    if not is_published:
        (tmp_path / NODE_FILE).unlink()
        monkeypatch.setenv("AFFINITYD_MACHINE", "dgx-a100")
    assert main(["audit"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "is a replayed machine, which has no processes" in told.err


@pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(), reason="the driver is loaded, and NVML answers"
)
def test_without_a_source_of_processes_the_result_is_unknown(capsys: Capture) -> None:
    assert main(["audit"]) == 2
    lines = capsys.readouterr().out.splitlines()
    said = "GPUs 0-1: NVIDIA's driver is not loaded"
    assert lines == ["GPUs 0-1 are impossible to judge", said]


def test_missing_processes_orphans_and_unknown_gpus_affect_the_exit_status(
    capsys: Capture, known: Known
) -> None:
    """The driver lists a process that /proc does not have."""
    ended = 2**22 - 1
    known.now = Known(ended).now
    assert main(["audit"]) == 1
    state, *lines = capsys.readouterr().out.splitlines()
    assert state == "GPU 0 is held by processes that have ended, or that no job owns"
    assert any(f"process {ended}" in line and "orphan" in line for line in lines)
    lost = {gpu.key: "GPU is lost" for gpu in TOPOLOGY.gpus[:1]}
    with sleeping() as child:
        known.now = replace(Known(child.pid).now, unknown=lost, lost=frozenset(lost))
        os.sched_setaffinity(child.pid, NEAR)
        assert main(["audit"]) == 2
    state, *lines = capsys.readouterr().out.splitlines()
    assert state == "GPU 0 is lost or hung"
    assert f"GPU 0: GPU is lost: {reset_gpu(TOPOLOGY.gpus[0].pci_bus_id)}" in lines


def test_memory_of_a_near_process_has_a_line_on_request(capsys: Capture, known: Known) -> None:
    with sleeping() as child:
        known.now = Known(child.pid).now
        os.sched_setaffinity(child.pid, NEAR)
        _, without = document(capsys)
        assert without["processes"][0]["host_memory"]["placed_bytes"]["remote"] > 2**20
        assert "memory" not in without["processes"][0]
        code, told = document(capsys, "--memory")
        assert (code, main(["audit", "--memory"])) == (0, 0)
        assert told["processes"][0]["memory"]["0"] > 2**20
    said = r"process \d+ \(python\S*\): host memory \d+ MiB, 100% far on node 0; .*"
    assert re.fullmatch(said, capsys.readouterr().out.splitlines()[-1])


#: The command, in a process of its own, with a holder that the test names.
COMMAND = """
import os, sys
from affinityd.cli import entry
from affinityd.cli.commands import audit
from tests.support.audit_facts import Known
pid = int(sys.argv.pop())
audit.HolderSources = lambda _ask: Known(pid)
entry()
"""

#: A script lets commands with `&` ignore SIGINT, and their children inherit that.
INTERRUPTIBLE = ("env", "--default-signal=INT")


@pytest.fixture
def pid(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("PYTHONPATH", os.fspath(REPOSITORY))
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        yield child.pid


@contextmanager
def started(pid: int, *flags: str, stdout: int) -> Iterator[subprocess.Popen[str]]:
    command = [*INTERRUPTIBLE, sys.executable, "-c", COMMAND, "audit", *flags, str(pid)]
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE, stdout=stdout) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_watch_prints_one_document_per_line_until_interrupted(pid: int) -> None:
    with started(pid, "--json", "--watch", "0.1", stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        told = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        _, complaint = watching.communicate()
    assert (watching.returncode, complaint) == (130, "")
    assert len({document["time"] for document in told}) == 3
    assert {document["processes"][0]["pid"] for document in told} == {pid}


@pytest.mark.parametrize("flags", ["", "--watch 0.1"])
def test_a_closed_pipe_does_not_change_the_exit_status(pid: int, flags: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with started(pid, *flags.split(), stdout=writing) as ending:
        os.close(writing)
        _, complaint = ending.communicate()
    assert (ending.returncode, complaint) == (1, "")
