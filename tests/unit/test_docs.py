"""The documentation's examples print what it says they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from affinityd.config.file import PLAN_PARAMETERS
from affinityd.config.settings import NAMES
from affinityd.planner import WARNINGS
from affinityd.planner.modes import MODES
from affinityd.request.parameters import PARAMETERS
from tests.support.daemons import Daemon, running
from tests.support.paths import REPOSITORY

PAGES = [
    *(REPOSITORY / name for name in ("README.md", "SECURITY.md")),
    *(it for it in sorted(REPOSITORY.glob("*/README.md")) if it.parent.name != "mutants"),
    *sorted(REPOSITORY.glob("deploy/*/*/README.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
SOCKET = "/run/affinityd/affinityd.sock"


def examples() -> Iterator[tuple[str, str]]:
    """Yield every command of a console block, and what it says is printed."""
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, printed = example.partition("\n")
                yield command, printed


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("docs"), "--machine", "dgx-a100") as daemon:
        yield daemon


@pytest.mark.parametrize(("command", "printed"), list(examples()))
def test_an_example_prints_what_the_page_says(daemon: Daemon, command: str, printed: str) -> None:
    words = shlex.split(command.replace(SOCKET, str(daemon.socket)))
    program = [sys.executable, "-m", "affinityd"] if words[0] == "affinityd" else words[:1]
    assert words[0] in {"affinityd", "curl"}
    done = subprocess.run([*program, *words[1:]], capture_output=True, text=True, check=False)
    assert done.stdout == printed


def test_there_are_examples() -> None:
    assert len(list(examples())) >= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/planning.md", MODES),
        ("docs/api.md", PARAMETERS),
        ("docs/api.md", WARNINGS),
        ("docs/settings.md", [f"AFFINITYD_{name.upper()}" for name in NAMES]),
        ("docs/settings.md", [f"AFFINITYD_{name.upper()}" for name in PLAN_PARAMETERS]),
    ],
    ids=["every mode", "every parameter", "every warning", "every setting", "every choice"],
)
def test_is_explained(page: str, words: Iterable[str]) -> None:
    text = (REPOSITORY / page).read_text()
    assert [word for word in words if f"`{word}`" not in text] == []
