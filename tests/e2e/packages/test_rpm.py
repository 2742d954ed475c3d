"""The packages for RPM, in a root of Debian with a database of rpm."""

import os
from pathlib import Path

from affinityd import __version__
from tests.e2e.packages.roots import NOBODY, OLDER, Root, built, debian, older_checkout
from tests.support.paths import REPOSITORY
from tests.support.tiny import printed


def rpm(root: Root, *words: str | Path) -> str:
    """Run this machine's rpm on a root, which has Python's files but no package of Python."""
    return printed("rpm", f"--root={root.path}", *words)


def test_packages_are_installed_upgraded_and_erased(tmp_path: Path) -> None:
    packages = built("rpm", tmp_path)
    root = debian("bookworm", tmp_path)
    before = root.files()

    older = built("rpm", tmp_path / "older", older_checkout(tmp_path / "checkout"))
    rpm(root, "--install", "--nodeps", *older.values())
    assert root.run("affinityd", "version", user=NOBODY) == f"affinityd {OLDER}\n"
    assert root.asked() == []

    settings, prolog = root.path / "etc/affinityd.conf", root.path / "etc/slurm/affinityd/prolog.sh"
    settings.write_text(settings.read_text() + "AFFINITYD=observe\n")
    with prolog.open() as of_a_job:
        rpm(root, "--upgrade", "--nodeps", *packages.values())
        assert os.fstat(of_a_job.fileno()).st_nlink == 0
    assert OLDER not in prolog.read_text()
    assert settings.read_text().endswith("AFFINITYD=observe\n")
    assert "try-restart affinityd.service" in root.asked()
    assert root.run("affinityd", "version", user=NOBODY) == f"affinityd {__version__}\n"
    with root.daemon(tmp_path, "--machine=mi250x") as daemon:
        assert daemon.plan("gpus=0")["node"] == "mi250x"

    listed = rpm(root, "--query", "--list", *packages).splitlines()
    ours = {f"/{it}" for it in root.files() - before if not it.startswith("run/")}
    assert ours - {*listed} == {"/etc/affinityd.conf.rpmnew"}
    rpm(root, "--verify", "--nodeps", "affinityd-daemon")

    rpm(root, "--erase", *packages)
    assert "--no-reload disable --now affinityd.service" in root.asked()
    left = root.files() - before
    assert left == {"etc/affinityd.conf.rpmnew", "etc/affinityd.conf.rpmsave"}


def test_rpmlint_finds_no_error(tmp_path: Path) -> None:
    settings = REPOSITORY / "packaging/rpm/rpmlint.toml"
    printed("rpmlint", f"--config={settings}", *built("rpm", tmp_path).values())
