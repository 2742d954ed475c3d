"""affinityd.pyz is one file with every command, and with the package's data files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import running
from tests.support.paths import REPOSITORY
from tests.support.tiny import tiny_tree

#: A module of a job's folder, which must not stand in for Python's.
STRAY = "raise SystemExit('this is the job\\'s own module')\n"


def make(folder: Path, umask: int) -> Path:
    """Build the file in a copy of the checkout, with the copy's times and modes."""
    folder.mkdir()
    for name in ("affinityd", "bin", "scripts", "slurm"):
        command = ["cp", "-R", "--no-preserve=all", os.fspath(REPOSITORY / name), os.fspath(folder)]
        subprocess.run(command, check=True, umask=umask)
    subprocess.run(
        ["sh", "scripts/pyz", "affinityd.pyz"],
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable, "TZ": f"UTC{umask % 12}"},
    )
    return folder / "affinityd.pyz"


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("pyz") / "copy", 0o022)


def run(pyz: Path, *words: str, **variables: str) -> str:
    command = [sys.executable, os.fspath(pyz), *words]
    environment = {**os.environ, "AFFINITYD_CONFIG": "/nonexistent", **variables}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout


def test_the_same_sources_make_the_same_bytes(pyz: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "another", 0o077).read_bytes() == pyz.read_bytes()


def test_the_file_contains_machines_pictures_and_scripts(pyz: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    plan = run(pyz, "plan", "--machine", "dgx-a100", "--json", "--svg", os.fspath(picture))
    assert len(json.loads(plan)["ranks"]) == 8
    assert "</svg>" in picture.read_text()
    run(pyz, "init", "--to", os.fspath(tmp_path), "--timeout", "0.1")
    assert os.access(tmp_path / "run", os.X_OK)


def test_exec_and_verify_ask_a_daemon(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(STRAY)
    with running(tmp_path, "--root", os.fspath(tiny_tree(tmp_path / "machine"))) as daemon:
        settings = {"AFFINITYD_SOCKET": os.fspath(daemon.socket), "PYTHONPATH": os.fspath(tmp_path)}
        verify = (sys.executable, os.fspath(pyz), "verify", "--json", "--gpus", "0")
        answer = json.loads(run(pyz, "exec", "--gpus", "0", "--", *verify, **settings))
    assert answer["matches"] is True
