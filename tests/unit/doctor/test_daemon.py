"""The checks of the daemon, by what is seen and heard of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.describe import everything
from affinityd.doctor.checks.daemon import callers, enforcement, published_node
from affinityd.doctor.facts import DaemonFacts, NamedVariable
from affinityd.enforce.document import Enforced, EnforceDocument, render
from affinityd.enforce.policy import PolicyState
from affinityd.json_codec import loads
from affinityd.request.document import AllowedCpus
from affinityd.topology.model import Node
from tests.support.doctor_facts import TWO, check, facts_of, judged
from tests.support.enforce_reports import drifted, enforced
from tests.support.machines.by_hand import made

NODES = {0: "0-3", 1: "4-7"}


def test_a_replayed_machine_has_no_daemon_to_judge(tmp_path: Path) -> None:
    check("daemon", facts_of(tmp_path), "n/a: the machine is replayed")


def test_of_a_daemon_whose_process_is_not_seen_the_rest_is_judged(tmp_path: Path) -> None:
    daemon = DaemonFacts("/s", listens=True, status=200, published=Node(TWO))
    facts = replace(facts_of(tmp_path), daemon=daemon)
    check("daemon", facts, "ok: /s answers (process unknown)")


def test_a_daemon_that_is_not_needed_is_no_finding_and_a_misspelled_setting_is(
    tmp_path: Path,
) -> None:
    facts = replace(facts_of(tmp_path), daemon=DaemonFacts("/s", absent=("/s", "/t")))
    check("daemon", facts, "n/a: no daemon listens at /s or /t, and none is needed")
    misspelled = replace(facts, variables=(NamedVariable("AFFINITYD_MDOE", "x.conf"),))
    check("daemon", misspelled, "warn: AFFINITYD_MDOE in x.conf → AFFINITYD_MODE")


RENAMED = Node(replace(TWO, name="gpu08"))
OTHER_CPUS = Node(made({**NODES, 1: "4-6"}, gpus=[0, 1]))
OTHER_GPUS = made(NODES, gpus=[0])
RELOAD = "systemctl reload affinityd, or remove the file"
A_FOLDER = "run a replaying daemon on a socket in a folder of its own"


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        (Node(TWO), "ok"),
        (RENAMED, f"warn: out of date: its name: gpu08, here: made → {RELOAD}"),
        (OTHER_CPUS, f"warn: its online CPUs: 0-6, here: 0-7 → {RELOAD}"),
        (Node(OTHER_GPUS), f"warn: its GPUs: 0000:10:00.0, here: 0000:10:00.0, 0000:11 → {RELOAD}"),
        (Node(TWO, replayed=True), f"warn: /run/node.json is of another machine → {A_FOLDER}"),
        ("there is none", "warn: /run/node.json: there is none → let the daemon write to its fol"),
    ],
)
def test_a_node_file_is_of_this_machine(published: Node | str, expected: str) -> None:
    daemon = DaemonFacts("/run/s", listens=True, status=200, published=published)
    judged(published_node(daemon, TWO), expected)


REPLAYED = Node(TWO, replayed=True)
OF_CALLER, OF_NODE = AllowedCpus("0-3", "caller", None), AllowedCpus("0-3", "node", None)
WITHIN = AllowedCpus("0-3", "caller", "0-3")
UNKNOWN = "the daemon cannot identify callers"
NO_CPUSET = "and not its cpuset: it cannot see its cgroup; this process has CPUs 0-1"


@pytest.mark.parametrize(
    ("answer", "cpuset", "published", "expected"),
    [
        (WITHIN, {0, 1}, "", "ok"),
        (OF_CALLER, None, "", "ok"),
        (OF_CALLER, {0, 1}, "", f"warn: {NO_CPUSET} → mount the node's /sys"),
        (OF_NODE, {0, 1}, "", f"warn: {UNKNOWN} → its log says why"),
        (OF_NODE, None, REPLAYED, "ok"),
        ("this node has no GPU", {0, 1}, "", "ok"),
    ],
)
def test_a_daemon_that_does_not_identify_its_callers_is_found(
    tmp_path: Path,
    answer: AllowedCpus | str,
    cpuset: set[int] | None,
    published: Node | str,
    expected: str,
) -> None:
    own = None if cpuset is None else frozenset(cpuset)
    daemon = DaemonFacts("/s", listens=True, pid=7, allowed=answer, own_cpuset=own)
    judged(callers(facts_of(tmp_path), replace(daemon, published=published)), expected)


OBSERVES = enforced(wanted="observe", does="observe")
HINDERED = enforced(does="observe", hindrance="CAP_SYS_NICE is missing")
BROKEN = enforced(policy=PolicyState("/p.toml", error="rule 1: unknown 'mod'"))
BLIND = enforced(notices=("no environment can be read", "NVML says nothing"))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (enforced(drifted()), ["ok"]),
        (OBSERVES, ["ok"]),
        (HINDERED, ["warn: pin, and can only observe: CAP_SYS_NICE is missing → enforce.conf"]),
        (BROKEN, ["warn: /p.toml has an error: rule 1: unknown 'mod' → --check"]),
        (BLIND, [f"warn: {it} → affinityd enforce" for it in BLIND.notices]),
    ],
    ids=[
        "pins",
        "is to observe, and does",
        "is to pin, and may not",
        "policy",
        "blind in two ways",
    ],
)
def test_what_keeps_the_daemon_from_pinning_is_found(found: Enforced, expected: list[str]) -> None:
    report = loads(EnforceDocument, render(found, everything), "enforce")
    daemon = DaemonFacts("/s", listens=True, enforcement=report)
    judged(enforcement(daemon), *expected)
