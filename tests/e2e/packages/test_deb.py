"""Debian's packages in fresh roots of its releases: installed, used, upgraded, purged."""

import os
from pathlib import Path

import pytest

from affinityd import __version__
from docs.check.blocks import BLOCKS
from tests.e2e.packages.roots import NOBODY, OLDER, SUITES, built, debian, older_checkout
from tests.support.tiny import printed

#: The commands of the page install.md.
(INSTALL,) = (it.text for it in BLOCKS if it.page == "docs/install.md" and "apt " in it.text)
CONF = "etc/affinityd.conf"
PROLOG = "etc/slurm/affinityd/prolog.sh"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return built("deb", tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("older")
    return built("deb", folder, older_checkout(folder / "checkout"))


def test_lintian_finds_no_error(packages: dict[str, Path]) -> None:
    printed("lintian", "--allow-root", "--fail-on=error", *packages.values())


@pytest.mark.parametrize("suite", SUITES)
def test_packages_are_installed_upgraded_and_purged(
    suite: str, packages: dict[str, Path], older: dict[str, Path], tmp_path: Path
) -> None:
    root = debian(suite, tmp_path)
    before = root.files()

    root.holds(older)
    root.run("sh", "-ec", INSTALL)
    assert root.asked() == ["enable --now affinityd"]
    assert root.run("affinityd", "version", user=NOBODY) == f"affinityd {OLDER}\n"

    settings = root.path / CONF
    settings.write_text(settings.read_text() + "AFFINITYD=observe\n")
    with (root.path / PROLOG).open() as prolog:  # a job may start during the upgrade
        root.run("dpkg", "--install", "--force-confdef", "--force-confold", *root.holds(packages))
        assert os.fstat(prolog.fileno()).st_nlink == 0
        assert OLDER in prolog.read()
    assert not [*root.path.glob("usr/lib/affinityd/**/gone*")]
    assert OLDER not in (root.path / PROLOG).read_text()
    assert settings.read_text().endswith("AFFINITYD=observe\n")
    assert root.asked() == ["daemon-reload", "try-restart affinityd.service"]

    assert root.run("affinityd", "version", user=NOBODY) == f"affinityd {__version__}\n"
    plan = ("plan", "--machine", "dgx-a100", "--gpus", "0", "--format", "cpulist")
    assert root.run("affinityd", *plan, user=NOBODY) == "48-63,176-191\n"
    module = "import affinityd; print(affinityd.plan.__module__)"
    assert root.run("python3", "-c", module, user=NOBODY) == "affinityd.client.bind\n"
    caches = root.path.glob("usr/lib/affinityd/*/**/__pycache__/*")
    assert {it.name.split(".")[1] for it in caches} == {f"cpython-3{SUITES[suite]}"}
    with root.daemon(tmp_path, "--machine=mi250x") as daemon:
        assert daemon.plan("gpus=0")["node"] == "mi250x"

    root.run("dpkg", "--remove", *packages)
    assert "stop affinityd.service" in root.asked()
    assert (root.path / PROLOG).exists(), "slurm.conf may still name it"
    root.run("dpkg", "--purge", *packages)
    assert root.files() == before
