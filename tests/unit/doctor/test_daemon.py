"""The checks of the daemon, by what is seen and heard of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.doctor.facts import DaemonFacts
from affinityd.request.document import AllowedCpus
from affinityd.topology.model import Node
from tests.support.doctor_facts import TWO, check, facts_of
from tests.support.machines.by_hand import made

NODES = {0: "0-3", 1: "4-7"}


@pytest.mark.parametrize(
    "name", ["socket", "variables", "daemon-cpuset", "hidepid", "caller", "sandbox", "enforce"]
)
def test_a_replayed_machine_has_no_daemon_to_judge(tmp_path: Path, name: str) -> None:
    check(name, facts_of(tmp_path), "n/a: the machine is replayed")


@pytest.mark.parametrize("name", ["daemon-cpuset", "sandbox"])
def test_a_daemon_whose_process_is_not_seen_is_not_judged(tmp_path: Path, name: str) -> None:
    facts = replace(facts_of(tmp_path), daemon=DaemonFacts("/s", listens=True))
    check(name, facts, "n/a: the daemon's process is not visible")


RENAMED = Node(replace(TWO, name="gpu08"))
OTHER_CPUS = Node(made({**NODES, 1: "4-6"}, gpus=[0, 1]))
OTHER_GPUS = made(NODES, gpus=[0])
RELOAD = "systemctl reload affinityd, or remove the file"
A_FOLDER = "run a replaying daemon on a socket in a folder of its own"


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        (Node(TWO), "ok: /run/s answers (process unknown)"),
        (RENAMED, f"warn: out of date: its name: gpu08, here: made → {RELOAD}"),
        (OTHER_CPUS, f"warn: its online CPUs: 0-6, here: 0-7 → {RELOAD}"),
        (Node(OTHER_GPUS), f"warn: its GPUs: 0000:10:00.0, here: 0000:10:00.0, 0000:11 → {RELOAD}"),
        (Node(OTHER_GPUS, replayed=True), f"warn: its GPUs:  → {A_FOLDER}"),
        (Node(TWO, replayed=True), f"warn: /run/node.json is of another machine → {A_FOLDER}"),
        ("there is none", "warn: /run/node.json: there is none → let the daemon write to its fol"),
    ],
)
def test_a_node_file_is_of_this_machine(
    tmp_path: Path, published: Node | str, expected: str
) -> None:
    daemon = DaemonFacts("/run/s", listens=True, status=200, published=published)
    check("socket", replace(facts_of(tmp_path), daemon=daemon), expected)


UNKNOWN = "the daemon cannot identify callers"
NO_CPUSET = "and not its cpuset: it cannot see its cgroup; this process has CPUs 0-1"


@pytest.mark.parametrize(
    ("answer", "cpuset", "expected"),
    [
        (AllowedCpus("0-3", "caller", "0-3"), {0, 1}, "ok: within its cpuset, CPUs 0-3"),
        (AllowedCpus("0-3", "caller", None), None, "ok: the daemon identifies callers"),
        (AllowedCpus("0-3", "caller", None), {0, 1}, f"warn: {NO_CPUSET} → mount the node's /sys"),
        (AllowedCpus("0-3", "node", None), {0, 1}, f"warn: {UNKNOWN} → its log says why"),
        ("this node has no GPU", {0, 1}, "n/a: this node has no GPU"),
    ],
)
def test_what_the_daemon_says_of_who_asks(
    tmp_path: Path, answer: AllowedCpus | str, cpuset: set[int] | None, expected: str
) -> None:
    own = None if cpuset is None else frozenset(cpuset)
    daemon = DaemonFacts("/s", listens=True, pid=7, allowed=answer, own_cpuset=own)
    check("caller", replace(facts_of(tmp_path), daemon=daemon), expected)


def test_a_daemon_that_replays_knows_nobody_s_cpus(tmp_path: Path) -> None:
    replay, allowed = Node(TWO, replayed=True), AllowedCpus("0-3", "node", None)
    daemon = DaemonFacts("/s", listens=True, allowed=allowed, published=replay)
    check("caller", replace(facts_of(tmp_path), daemon=daemon), "n/a: the daemon replays made")
