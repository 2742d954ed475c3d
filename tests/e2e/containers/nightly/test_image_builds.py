"""Images built anew: of another checkout, and without a name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from affinityd import __version__
from tests.e2e.containers import images
from tests.e2e.containers.podman import podman
from tests.e2e.containers.test_containers_image import LABEL, inspected
from tests.support.paths import REPOSITORY

MIB = 2**20


@pytest.fixture(scope="module")
def image() -> str:
    return images.affinityd()


@pytest.fixture(scope="module")
def changed(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the image of a checkout in which one line of ours is another."""
    checkout = tmp_path_factory.mktemp("changed") / "checkout"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "tests")
    shutil.copytree(REPOSITORY, checkout, ignore=ignored)
    shutil.copy(REPOSITORY / ".dockerignore", checkout)
    with (checkout / "affinityd/__init__.py").open("a") as package:
        package.write("# changed\n")
    built = images.build(f"{image}-changed", checkout=checkout)
    assert built.returncode == 0, built.stderr
    yield f"{image}-changed"
    podman("rmi", "--force", f"{image}-changed")


def test_it_is_small_and_an_upgrade_brings_one_small_layer(image: str, changed: str) -> None:
    facts = inspected(image)
    base = inspected(facts["Config"]["Labels"][f"{LABEL}base.name"])
    assert facts["Size"] - base["Size"] < 48 * MIB
    old, new = (it["RootFS"]["Layers"] for it in (facts, inspected(changed)))
    assert len(new) == len(old)
    assert [layer for layer in new if layer not in old] == new[-1:]


def test_without_a_name_the_image_is_that_of_the_release(image: str) -> None:
    built = images.build()
    assert built.stdout == f"localhost/affinityd:{__version__}\n"
    podman("rmi", "--force", built.stdout.strip())
    assert podman("image", "exists", image) == ""
