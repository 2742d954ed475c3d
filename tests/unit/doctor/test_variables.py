"""What of variables and settings is mistyped, and that every name is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cli.commands.doctor import gather
from affinityd.config import file as conffile
from affinityd.config.settings import Settings
from affinityd.doctor.checks.variables import NAMES, RANKS
from affinityd.doctor.facts import ENVIRONMENT, DaemonFacts, NamedVariable, NodeFacts
from tests.support.doctor_facts import Expected, check, facts_of, n_a, well
from tests.support.paths import REPOSITORY

FILE = "/etc/affinityd.conf"


def facts(tmp_path: Path, *said: NamedVariable) -> NodeFacts:
    return replace(facts_of(tmp_path), variables=said, daemon=DaemonFacts("/none"))


@pytest.mark.parametrize(
    ("name", "where", "meant"),
    [
        ("AFFINITYD_MDOE", ENVIRONMENT, "did you mean AFFINITYD_MODE?"),
        ("AFFINITYD_RESERVED_CPU", FILE, "did you mean AFFINITYD_RESERVED_CPUS?"),
        ("affinityd_mode", FILE, "did you mean AFFINITYD_MODE?"),
        ("AFINITYD_MODE", ENVIRONMENT, "did you mean AFFINITYD_MODE?"),
        ("AFFINITY_SOCKET", FILE, "did you mean AFFINITYD_SOCKET?"),
        ("AFFINITYDD", ENVIRONMENT, "did you mean AFFINITYD?"),
        ("AFFINITYD_PORT", FILE, "leave it out"),
        ("RESERVED_CPUS", FILE, "did you mean AFFINITYD_RESERVED_CPUS?"),
        ("AFFINITYD_XYZZY_QUUX_PLUGH", FILE, "leave it out"),
    ],
)
def test_a_name_that_counts_for_nothing_is_found(
    tmp_path: Path, name: str, where: str, meant: str
) -> None:
    expected = Expected("warn", f"{name} in {where} is no setting of affinityd", meant)
    check("variables", facts(tmp_path, NamedVariable(name, where)), expected)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *((name, ENVIRONMENT) for name in ("PATH", "MODE", "RESERVED_CPUS", "GOMP_CPU_AFFINITY")),
        *((name, ENVIRONMENT) for name in ("AFFINITYD", "AFFINITYD_MODE", f"{RANKS}7_CPULIST")),
        ("AFFINITYD_SERVICE_HOST", ENVIRONMENT),
        ("AFFINITYD_PLAN_PORT_9466_TCP_ADDR", ENVIRONMENT),
        *((name, FILE) for name in ("LANG", "HTTPS_PROXY", "AFFINITYD_MODE", "AFFINITYD_DRAIN")),
    ],
)
def test_others_names_and_right_ones_are_no_finding(tmp_path: Path, name: str, where: str) -> None:
    check(
        "variables", facts(tmp_path, NamedVariable(name, where)), well("every AFFINITYD_* variable")
    )


def test_they_are_those_of_this_process_and_of_its_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "affinityd.conf"
    file.write_text("AFFINITYD_MOODE=node\n")
    monkeypatch.setenv("AFFINITYD_CONFIG", str(file))
    monkeypatch.setenv("AFFINITYD_SHAER", "node")
    check(
        "variables",
        gather(Settings(), ["variables"]),
        Expected("warn", "AFFINITYD_SHAER in the environment", "AFFINITYD_SHARE"),
        Expected("warn", f"AFFINITYD_MOODE in {file}", "AFFINITYD_MODE"),
    )


def test_of_a_replayed_machine_they_say_nothing(tmp_path: Path) -> None:
    check("variables", facts_of(tmp_path), n_a("the machine is replayed"))


def test_every_name_that_anything_here_reads_or_writes_is_known() -> None:
    places = ("affinityd", "bin", "deploy", "docs", "examples", "scripts", "slurm")
    files = (path for place in places for path in (REPOSITORY / place).rglob("*") if path.is_file())
    pages = [*files, *REPOSITORY.glob("*.md"), REPOSITORY / "Dockerfile"]
    texts = [path.read_text() for path in pages if path.suffix not in {".pyc", ".xz"}]
    named = set(re.findall(r"\bAFFINITYD_[A-Z_]*[A-Z]\b", "".join(texts)))
    assert len(named) > 30
    assert named - {*NAMES, "AFFINITYD_NAME", RANKS.rstrip("_")} == set()


def test_what_a_user_sets_is_explained() -> None:
    pages = "".join(
        path.read_text()
        for path in (*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "slurm/README.md")
    )
    assert conffile.DEFAULT_PATH in pages
    unexplained = {name for name in NAMES if name not in pages}
    assert unexplained <= {"AFFINITYD_CPUS"}
