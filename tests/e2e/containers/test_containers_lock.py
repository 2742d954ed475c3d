"""What is in the image is what its lock names, and that can be had for every node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.containers import images
from tests.e2e.containers.rig import container
from tests.support.paths import REPOSITORY
from tests.unit.test_image_lock import PYTHONS, locked

LOCK = REPOSITORY / "deploy/image/requirements.txt"
UV = Path(sys.executable).with_name("uv")

INSTALLED = """\
import importlib.metadata, json
print(json.dumps({it.name: it.version for it in importlib.metadata.distributions()}))
"""


def test_the_image_has_what_the_lock_names_and_nothing_else() -> None:
    ended = container(images.affinityd(), "-Ic", INSTALLED, options=["--entrypoint=python"])
    assert ended.status == 0, ended.stderr
    found = {name.lower().replace("_", "-"): it for name, it in json.loads(ended.stdout).items()}
    found.pop("affinityd")
    assert found == locked(LOCK.name)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", PYTHONS)
def test_it_installs_from_wheels_alone(python: str, machine: str, tmp_path: Path) -> None:
    """uv refuses, as pip does, what the lock has no hash of, what it lacks, and a source."""
    wanted = [f"--python-version={python}", f"--python-platform={machine}-manylinux_2_28"]
    strict = ["--require-hashes", "--only-binary=:all:"]
    done = subprocess.run(
        [UV, "pip", "install", "--dry-run", *wanted, *strict, f"--target={tmp_path}", "-r", LOCK],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    would = {line.split()[1] for line in done.stderr.splitlines() if line.startswith(" + ")}
    assert would == {f"{name}=={version}" for name, version in locked(LOCK.name).items()}
