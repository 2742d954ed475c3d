"""`affinityd measure` on this machine, as if its two CPUs were two nodes, with made drivers."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from subprocess import DEVNULL, CompletedProcess, Popen, run
from typing import Any

import pytest

from affinityd.cli.commands import measure
from affinityd.measure.document import OF_GPUS, READ, TO_ALL_DEVICES, WORDS, gpu_ratios
from affinityd.measure.run import ROUNDS
from affinityd.topology.model import Topology
from tests.support.audit_facts import Known
from tests.support.children import children_of, sleeping
from tests.support.daemons import eventually
from tests.support.machines.by_hand import made
from tests.support.paths import REPOSITORY
from tests.support.shared_objects import libraries
from tests.support.small_node import publish, refused, use_small_node

#: Node 1 has no memory, so that all of it is on the one node that this machine may have.
MACHINE = made({0: "0,2", 1: "1,3"}, gpus=[1, 0], memoryless=[1])
COMMAND = (sys.executable, "-m", "affinityd", "measure")
FIRST, SECOND = (gpu.pci_bus_id for gpu in MACHINE.gpus)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_small_node(monkeypatch, tmp_path)
    monkeypatch.delenv("AFFINITYD_ROOT")
    monkeypatch.setenv("LD_LIBRARY_PATH", os.fspath(libraries()))
    monkeypatch.setenv("GPU_ADDRESS", FIRST)
    publish(tmp_path, MACHINE)


def ran(*arguments: str) -> CompletedProcess[str]:
    command = [*COMMAND, *arguments]
    return run(command, check=False, capture_output=True, text=True, cwd=REPOSITORY)


def figures(document: dict[str, Any], gpu: str | None) -> list[tuple[str, int, str | bool]]:
    of = [it for it in document["figures"] if it["gpu"] == gpu]
    return [(it["quantity"], it["numa_node"], it["why"] or it["value"] > 0) for it in of]


def test_every_node_measures_memory_and_the_gpus_and_the_daemon_can_read_the_result(
    tmp_path: Path,
) -> None:
    path = tmp_path / "folder/measure.json"
    done = ran("--force", "--concurrent", "--json", "--save", os.fspath(path))
    assert (done.returncode, done.stderr) == (0, f"{path}: written\n"), "no progress in a pipe"
    document = json.loads(done.stdout)
    assert json.loads(path.read_text()) == document
    assert figures(document, None) == [(READ, node, True) for node in (0, 1)]
    assert sorted(figures(document, FIRST)) == sorted(
        (it, node, True) for node in (0, 1) for it in (*OF_GPUS, TO_ALL_DEVICES)
    )
    assert {why for *_, why in figures(document, SECOND)} == {
        "cuDeviceGetByPCIBusId: ERROR_INVALID_DEVICE"
    }
    assert {len(figure["values"]) for figure in document["figures"]} == {0, ROUNDS}
    compared = [comparison["quantity"] for comparison in document["comparisons"]]
    assert compared == [*WORDS]
    ratios, notices = gpu_ratios(os.fspath(path), MACHINE)
    assert [{*by_node} for by_node in ratios.values()] == [{0, 1}]
    assert notices == ()


@pytest.mark.parametrize("number", [SIGKILL, SIGTERM], ids=lambda it: it.name)
def test_a_measuring_child_ends_with_its_parent_even_in_a_driver_that_hangs(
    number: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_FAIL", "cuInit hang")
    with Popen([*COMMAND, "--force"], cwd=REPOSITORY, stdout=DEVNULL) as parent:
        eventually(lambda: any(map(hangs, children_of(parent.pid))), "a child hangs")
        (child,) = filter(hangs, children_of(parent.pid))
        parent.send_signal(number)
    eventually(lambda: not hangs(child), "it has ended")


def hangs(pid: int) -> bool:
    """Return whether a process waits in the made driver: in its pause(2)."""
    with suppress(OSError):
        return "libcuda" in Path(f"/proc/{pid}/maps").read_text()
    return False


def test_a_gpu_with_unknown_processes_is_not_measured() -> None:
    done = ran()
    assert done.returncode == 0
    assert re.search("GPUs 0-1 from nodes 0-1: .*; --force", done.stdout), done.stdout
    assert "pinned" not in done.stdout


def test_only_idle_gpus_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, dict[tuple[str, int], str]] = {}

    def note(
        _topology: Topology, busy: dict[tuple[str, int], str], *_: object, at_once: bool
    ) -> None:
        assert not at_once
        asked.update(busy=busy)
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure", note)
    with sleeping() as child:
        monkeypatch.setattr(measure, "HolderSources", lambda _ask: Known(child.pid))
        with pytest.raises(KeyboardInterrupt):
            measure.run(_arguments())
    (why,) = asked["busy"].values()
    assert list(asked["busy"]) == [("nvidia", 0)]
    assert why.startswith(f"process {child.pid} (")
    assert "uses it; --force measures it all the same" in why
    assert capsys.readouterr().out == ""


def _arguments() -> Any:  # noqa: ANN401 - argparse's
    from affinityd.cli.parser import Parser  # noqa: PLC0415

    parser = Parser()
    measure.add_arguments(parser)
    return parser.parse_args([])


def test_a_replayed_machine_is_not_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    publish(tmp_path, MACHINE, replayed=True)
    assert "is a replayed machine, which cannot be measured" in refused(capsys, "measure")


def test_nothing_measured_is_a_failure(tmp_path: Path) -> None:
    far = {0: "3000", 1: "3001"}
    publish(tmp_path, replace(made(far, gpus=[]), gpus=()))
    done = ran()
    assert done.returncode == 1
    assert "outside this process's cpuset" in done.stdout
