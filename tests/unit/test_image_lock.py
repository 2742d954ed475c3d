"""What is in the image, by deploy/image/*.txt, is what pyproject.toml asks for."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.paths import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
DAEMON = PROJECT["project"]["optional-dependencies"]["daemon"]

LOCKS = {"requirements.txt": DAEMON, "build.txt": PROJECT["build-system"]["requires"]}
PYTHONS = ("3.11", "3.12", "3.13")


def test_the_extra_of_nvml_alone_is_a_part_of_the_daemon_s() -> None:
    (needed,) = PROJECT["project"]["optional-dependencies"]["nvml"]
    assert Requirement(needed).name == "nvidia-ml-py"
    assert needed in DAEMON


def locked(name: str) -> dict[str, str]:
    """Return the versions that a lock has, by the packages' names."""
    text = (REPOSITORY / "deploy/image" / name).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_has_what_is_asked_for(name: str, python: str) -> None:
    there = {"python_version": python}
    asked = [Requirement(line) for line in LOCKS[name]]
    meant = [it for it in asked if it.marker is None or it.marker.evaluate(there)]
    versions = locked(name)
    assert meant
    assert [it for it in meant if not it.specifier.contains(versions.get(it.name, "0"))] == []


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_hashes_and_no_index_is_named(name: str) -> None:
    text = (REPOSITORY / "deploy/image" / name).read_text()
    packages = re.split(r"\n(?=[a-z0-9])", text)[1:]
    assert len(packages) == len(locked(name))
    assert [it for it in packages if "--hash=sha256:" not in it] == []
    assert re.findall(r"(?i)https?:|index|find-links|trusted-host", text) == []
