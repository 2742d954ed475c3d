"""The check of the daemon: its answers, node.json, and the names of settings."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.doctor.checks.daemon import (
    OUR_VARIABLES,
    RANKS,
    published_node,
    variables,
)
from affinityd.doctor.facts import ENVIRONMENT, DaemonFacts
from affinityd.topology.model import Node
from tests.support.doctor_facts import TWO, check, compare, facts_of
from tests.support.machines.by_hand import made
from tests.support.paths import REPOSITORY

NODES = {0: "0-3", 1: "4-7"}


def test_a_replayed_machine_has_no_daemon_to_check(tmp_path: Path) -> None:
    check("daemon", facts_of(tmp_path), "n/a: the machine is replayed")


def test_misspelled_settings_are_found_without_a_daemon(tmp_path: Path) -> None:
    facts = replace(facts_of(tmp_path), daemon=DaemonFacts("/s", absent=("/s", "/t")))
    check("daemon", facts, "n/a: no daemon listens at /s or /t, and none is needed")
    misspelled = replace(facts, variables=(("AFFINITYD_MDOE", "x.conf"),))
    check("daemon", misspelled, "warn: AFFINITYD_MDOE in x.conf → AFFINITYD_MODE")


RENAMED = Node(replace(TWO, name="gpu08"))
OTHER_CPUS = Node(made({**NODES, 1: "4-6"}, gpus=[0, 1]))
OTHER_GPUS = made(NODES, gpus=[0])
RELOAD = "then systemctl reload affinityd"


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        (Node(TWO), None),
        (RENAMED, f"warn: its name: gpu08, here: made → {RELOAD}"),
        (OTHER_CPUS, f"warn: its online CPUs: 0-6, here: 0-7 → {RELOAD}"),
        (Node(OTHER_GPUS), f"warn: its GPUs: 0000:10:00.0, here: 0000:10:00.0, 0000:11 → {RELOAD}"),
        (Node(TWO, replayed=True), "warn: it describes a replayed machine → another folder"),
        ("there is none", "warn: /run/node.json without the daemon: there is none → let the daem"),
    ],
)
def test_node_json_of_another_machine_is_found(published: Node | str, expected: str | None) -> None:
    daemon = DaemonFacts("/run/s", listens=True, status=200, published=published)
    compare([*published_node(daemon, TWO)], [expected] if expected else [])


CONNECTED = "affinityd_nri_connected"
MISSED = 'affinityd_nri_containers{locality="unknown",state="missed"}'


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (None, "n/a: no listening daemon adjusts containers"),
        ({CONNECTED: 1.0, MISSED: 0.0}, "ok: a container runtime asks the daemon"),
        ({CONNECTED: 0.0}, "fail: no container runtime knows the NRI plugin → turn NRI on"),
        ({MISSED: 2.0}, "warn: 2 containers with GPUs were to be placed → repair"),
    ],
)
def test_a_runtime_that_does_not_ask_the_daemon_is_found(
    samples: dict[str, float] | None, expected: str, tmp_path: Path
) -> None:
    daemon = DaemonFacts("/run/s", listens=True, status=200, published=Node(TWO), nri=samples)
    check("nri", replace(facts_of(tmp_path), daemon=daemon), expected)


FILE = "/etc/affinityd.conf"

#: Names without effect, and the names that were meant; -: no name is similar.
MISTYPED = """
AFFINITYD_MDOE              environment  AFFINITYD_MODE
affinityd_mode              file         AFFINITYD_MODE
AFINITYD_MODE               environment  AFFINITYD_MODE
AFFINITY_SOCKET             file         AFFINITYD_SOCKET
AFFINITYDD                  environment  AFFINITYD
AFFINITYD_PORT              file         -
"""
#: Names of other programs, names that Kubernetes gives a pod, and right names.
FINE = f"""
PATH MODE RESERVED_CPUS GOMP_CPU_AFFINITY AFFINITYD AFFINITYD_MODE {RANKS}7_CPULIST
AFFINITYD_SERVICE_HOST AFFINITYD_PLAN_PORT_9466_TCP_ADDR
"""
FINE_IN_FILE = "LANG RESERVED_CPUS HTTPS_PROXY AFFINITYD_MODE AFFINITYD_DRAIN"


@pytest.mark.parametrize(
    ("name", "where", "meant"),
    [
        *(line.split() for line in MISTYPED.strip().splitlines()),
        *((name, "environment", None) for name in FINE.split()),
        *((name, "file", None) for name in FINE_IN_FILE.split()),
    ],
)
def test_an_unknown_setting_is_found_with_its_likely_name(
    tmp_path: Path, name: str, where: str, meant: str | None
) -> None:
    place = FILE if where == "file" else ENVIRONMENT
    facts = replace(facts_of(tmp_path), variables=((name, place),))
    remedy = "leave it out" if meant == "-" else f"did you mean {meant}?"
    found = f"warn: {name} in {place} is not a setting of affinityd → {remedy}"
    compare([*variables(facts)], [found] if meant else [])


def test_a_removed_setting_is_found_with_what_to_do(tmp_path: Path) -> None:
    facts = replace(facts_of(tmp_path), variables=(("AFFINITYD_MEASURED", FILE),))
    found = f"warn: AFFINITYD_MEASURED in {FILE} is removed, and ignored → leave it out"
    compare([*variables(facts)], [found])


def test_every_variable_in_this_project_s_files_is_known() -> None:
    places = ("affinityd", "bin", "deploy", "docs", "examples", "scripts", "slurm")
    files = (path for place in places for path in (REPOSITORY / place).rglob("*") if path.is_file())
    pages = [*files, *REPOSITORY.glob("*.md"), REPOSITORY / "Dockerfile"]
    for path in ("CHANGELOG.md", "affinityd/config/removed.py"):  # these two name removed variables
        pages.remove(REPOSITORY / path)
    texts = [path.read_text() for path in pages if path.suffix not in {".pyc", ".xz", ".png"}]
    named = set(re.findall(r"\bAFFINITYD_[A-Z_]*[A-Z]\b", "".join(texts)))
    assert len(named) > 30
    assert named - {*OUR_VARIABLES, "AFFINITYD_NAME", RANKS.rstrip("_")} == set()
