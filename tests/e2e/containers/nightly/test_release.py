"""scripts/release builds a whole release, with an image, in a checkout that the test makes."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.chart.tools import helm
from tests.e2e.containers import images
from tests.e2e.containers.podman import environment, podman
from tests.support.paths import REPOSITORY
from tests.support.tiny import printed

VERSION = "9.8.7"
COMMIT = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-q", "-a")


def run(folder: Path, *command: str, **variables: str) -> str:
    return printed(*command, cwd=folder, env={**environment(), **variables})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commit the working tree in a new repository, and build a release there."""
    checkout = tmp_path_factory.mktemp("release")
    listed = run(REPOSITORY, "git", "ls-files", "--cached", "--others", "--exclude-standard")
    for name in listed.splitlines():
        if (REPOSITORY / name).exists():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, checkout / name)
    changes = checkout / "CHANGELOG.md"
    changes.write_text(f"## [{VERSION}] - 2030-01-31\n\n{changes.read_text()}")
    run(checkout, "git", "init", "-q")
    run(checkout, "git", "add", "-A")
    run(checkout, *COMMIT, "-m", "all")
    options = " ".join(["--pull=never", *images.network()])
    settings = {"BASE_IMAGE": images.base(), "IMAGE_OPTIONS": options, "HELM": os.fspath(helm())}
    run(checkout, "scripts/release", "--check", VERSION, **settings)
    assert run(checkout, "git", "tag") == run(checkout, "git", "status", "--porcelain") == ""
    return checkout / "build/release" / VERSION


def test_every_file_is_listed_with_its_checksum(built: Path) -> None:
    names = {line.split()[1] for line in (built / "SHA256SUMS").read_text().splitlines()}
    assert names == {path.name for path in built.iterdir()} - {"SHA256SUMS"}
    run(built, "sha256sum", "--check", "--quiet", "SHA256SUMS")


def test_files_are_named_after_the_version(built: Path) -> None:
    assert f"affinityd-{VERSION}-py3-none-any.whl" in {it.name for it in built.iterdir()}
    assert run(built, "python3", "affinityd.pyz", "version") == f"affinityd {VERSION}\n"
    chart = run(built, os.fspath(helm()), "show", "chart", f"affinityd-chart-{VERSION}.tgz")
    assert f"\nversion: {VERSION}\n" in chart


def test_the_bill_of_materials_has_the_locked_packages(built: Path) -> None:
    parts = json.loads((built / f"affinityd-{VERSION}.cdx.json").read_text())
    lock = (REPOSITORY / "deploy/image/requirements.txt").read_text().splitlines()
    locked = {line.partition("==")[0] for line in lock if "==" in line}
    assert {it["name"] for it in parts["components"]} == locked
    assert parts["metadata"]["component"]["version"] == VERSION


def test_the_image_runs(built: Path) -> None:
    (archive,) = built.glob("*-image-*.tar")
    tag = podman("load", "--quiet", "--input", archive).strip().rpartition(" ")[2]
    try:
        assert podman("run", "--rm", tag, "version") == f"affinityd {VERSION}\n"
    finally:
        podman("rmi", tag)
