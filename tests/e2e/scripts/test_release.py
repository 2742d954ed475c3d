"""What scripts/release refuses before it builds, and what scripts/audit-dependencies cannot ask."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.tiny import ran

VERSION = "9.8.7"
AUTHOR = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgSign=false")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", folder, *AUTHOR, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "scripts")
    (tmp_path / "CHANGELOG.md").write_text(f"## [{VERSION}] - 2030-01-31\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def refusal(checkout: Path, *words: str) -> str:
    done = ran(checkout / "scripts/release", *words)
    assert (done.status, done.stdout) == (1, "")
    return done.stderr


@pytest.mark.parametrize("words", [(), ("--check",), ("v1.2.3",), ("1.2",), ("1.2.3rc1",)])
def test_a_version_is_three_numbers(checkout: Path, words: tuple[str, ...]) -> None:
    assert refusal(checkout, *words) == "usage: scripts/release [--check] X.Y.Z\n"


def test_the_changelog_has_the_version_with_a_date(checkout: Path) -> None:
    assert "'## [9.8.8] - DATE'" in refusal(checkout, "--check", "9.8.8")


def test_nothing_is_left_uncommitted(checkout: Path) -> None:
    (checkout / "scripts/run").write_text("")
    assert "not committed" in refusal(checkout, "--check", VERSION)


def test_a_version_is_released_once(checkout: Path) -> None:
    git(checkout, "tag", f"v{VERSION}")
    assert f"v{VERSION} is there" in refusal(checkout, VERSION)


def test_what_could_not_be_asked_is_not_called_clean() -> None:
    env = {**os.environ, "OSV_URL": "http://127.0.0.1:1/v1/query", "NO_PROXY": "127.0.0.1"}
    done = ran(REPOSITORY / "scripts/audit-dependencies", env=env)
    assert (done.status, done.stdout) == (3, "")
    assert done.lines[-1].startswith("deploy/image/*.txt was NOT AUDITED: ")
