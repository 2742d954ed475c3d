"""AFFINITYD=on, observe or off, as a job, its init container and a node's daemon say it.

How the words are read, and which of two counts, is held by tests/processes/config.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.daemons import Daemon, running
from tests.support.pods import GPU_2, ONLINE, SHELLS, Pod, unreachable

UNIQUE = {"AFFINITYD_MODE": "unique_contiguous"}
OBSERVED = f"observe: would run on CPUs {GPU_2} (local)"


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_observing_moves_nothing_and_tells_the_command_alone(pod: Pod, shell: list[str]) -> None:
    """With a daemon and by the table, and `--fail-closed` has nothing to hold up."""
    for away in ({}, unreachable(pod)):
        command = ("--fail-closed", "env")
        told = pod.run(*command, cpus=ONLINE, shell=shell, AFFINITYD="observe", **away)
        assert (told.environment["AFFINITYD_UNPINNED"], told.lines) == (OBSERVED, [])
        assert told.cpus is None
    assert not (pod.folder / "pinned").exists()


def test_a_word_that_is_none_is_told_and_the_command_runs(pod: Pod) -> None:
    told = pod.run(cpus=ONLINE, AFFINITYD="obsreve")
    line = "affinityd run: AFFINITYD is none of on, observe and off; the command runs unpinned"
    assert (told.cpus, told.lines) == (None, [line])


def test_observing_tells_the_command_what_would_keep_it_from_its_place(pod: Pod) -> None:
    said = {"AFFINITYD": "observe", "AFFINITYD_MODE": "fast"}
    told = pod.run("--fail-closed", "env", cpus=ONLINE, **said)
    why = "Malformed request: mode: 'fast' is not one of all"
    assert told.environment["AFFINITYD_UNPINNED"].startswith(why)
    assert told.lines == []
    pinned = pod.run(cpus=ONLINE, AFFINITYD_UNPINNED=OBSERVED).environment
    assert "AFFINITYD_UNPINNED" not in pinned  # which says why an earlier one was not
    assert pinned["AFFINITYD_CPULIST"] == GPU_2


@pytest.mark.parametrize(
    ("init", "unpinned"), [("observe", OBSERVED), ("off", None), ("obsreve", None)]
)
def test_a_program_cannot_turn_on_what_its_pod_turned_off(
    tmp_path: Path, daemon: Daemon, init: str, unpinned: str | None
) -> None:
    pod = Pod(tmp_path, daemon.socket, {"AFFINITYD": init, **UNIQUE})
    pod.has("nvidia5")
    for away in ({}, unreachable(pod)):
        told = pod.run(cpus=ONLINE, AFFINITYD="on", **away)
        assert (told.cpus, told.lines) == (None, [])
        assert told.environment.get("AFFINITYD_UNPINNED") == unpinned


@pytest.mark.parametrize(("site", "unpinned"), [("observe", OBSERVED), ("off", None)])
def test_a_node_s_daemon_says_it_for_pods_before_and_after_and_when_it_is_gone_too(
    tmp_path: Path, tree: Path, site: str, unpinned: str | None
) -> None:
    with running(tmp_path / "run", "--root", str(tree)) as daemon:
        before = Pod(tmp_path / "before", daemon.socket, UNIQUE)
        before.has("nvidia5")
        assert before.run(cpus=ONLINE).environment["AFFINITYD_CPULIST"] == GPU_2
    with running(tmp_path / "run", "--root", str(tree), env={"AFFINITYD": site}) as daemon:
        after = Pod(tmp_path / "after", daemon.socket, UNIQUE)
        after.has("nvidia5")
        there = [pod.run(cpus=ONLINE) for pod in (before, after)]
    for told in (*there, after.run(cpus=ONLINE)):
        assert told.environment.get("AFFINITYD_UNPINNED") == unpinned
        assert (told.cpus, told.lines) == (None, [])
