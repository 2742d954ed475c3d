"""What of variables and settings is mistyped, and that every name is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd import config
from affinityd.cli.commands.doctor import gather
from affinityd.config.settings import Settings
from affinityd.doctor.checks.daemon import NAMES, RANKS, variables
from affinityd.doctor.facts import ENVIRONMENT, NamedVariable
from tests.support.doctor_facts import facts_of, judged
from tests.support.paths import REPOSITORY

FILE = "/etc/affinityd.conf"

#: Names that count for nothing, and which were meant; - where none is near.
MISTYPED = """
AFFINITYD_MDOE              environment  AFFINITYD_MODE
affinityd_mode              file         AFFINITYD_MODE
AFINITYD_MODE               environment  AFFINITYD_MODE
AFFINITY_SOCKET             file         AFFINITYD_SOCKET
AFFINITYDD                  environment  AFFINITYD
RESERVED_CPUS               file         AFFINITYD_RESERVED_CPUS
AFFINITYD_PORT              file         -
"""
#: Others' names, those that Kubernetes gives a pod, and right ones.
FINE = f"""
PATH MODE RESERVED_CPUS GOMP_CPU_AFFINITY AFFINITYD AFFINITYD_MODE {RANKS}7_CPULIST
AFFINITYD_SERVICE_HOST AFFINITYD_PLAN_PORT_9466_TCP_ADDR
"""
FINE_IN_FILE = "LANG HTTPS_PROXY AFFINITYD_MODE AFFINITYD_DRAIN"


@pytest.mark.parametrize(
    ("name", "where", "meant"),
    [
        *(line.split() for line in MISTYPED.strip().splitlines()),
        *((name, "environment", None) for name in FINE.split()),
        *((name, "file", None) for name in FINE_IN_FILE.split()),
    ],
)
def test_a_name_that_counts_for_nothing_is_found(
    tmp_path: Path, name: str, where: str, meant: str | None
) -> None:
    place = FILE if where == "file" else ENVIRONMENT
    facts = replace(facts_of(tmp_path), variables=(NamedVariable(name, place),))
    remedy = "leave it out" if meant == "-" else f"did you mean {meant}?"
    found = f"warn: {name} in {place} is not a setting of affinityd → {remedy}"
    judged(variables(facts), found if meant else "ok")


def test_they_are_those_of_this_process_and_of_its_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "affinityd.conf"
    file.write_text("AFFINITYD_MOODE=node\n")
    monkeypatch.setenv("AFFINITYD_CONFIG", str(file))
    monkeypatch.setenv("AFFINITYD_SHAER", "node")
    found = f"warn: AFFINITYD_MOODE in {file} → AFFINITYD_MODE"
    inherited = "warn: AFFINITYD_SHAER in the environment → AFFINITYD_SHARE"
    judged(variables(gather(Settings(), ["daemon"])), inherited, found)


def test_every_name_that_anything_here_reads_or_writes_is_known() -> None:
    places = ("affinityd", "bin", "deploy", "docs", "examples", "scripts", "slurm")
    files = (path for place in places for path in (REPOSITORY / place).rglob("*") if path.is_file())
    pages = [*files, *REPOSITORY.glob("*.md"), REPOSITORY / "Dockerfile"]
    pages.remove(REPOSITORY / "CHANGELOG.md")  # which names what is no more
    texts = [path.read_text() for path in pages if path.suffix not in {".pyc", ".xz"}]
    named = set(re.findall(r"\bAFFINITYD_[A-Z_]*[A-Z]\b", "".join(texts)))
    assert len(named) > 30
    assert named - {*NAMES, "AFFINITYD_NAME", RANKS.rstrip("_")} == set()


def test_what_a_user_sets_is_explained() -> None:
    explaining = (*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "slurm/README.md")
    pages = "".join(path.read_text() for path in explaining)
    assert config.DEFAULT_PATH in pages
    assert {name for name in NAMES if name not in pages} <= {"AFFINITYD_CPUS"}
