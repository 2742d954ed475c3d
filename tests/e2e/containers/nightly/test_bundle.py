"""scripts/bundle: its output installs and runs without any network."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from affinityd import __version__
from tests.support.daemons import running
from tests.support.paths import REPOSITORY

BUNDLE = REPOSITORY / "scripts/bundle"
MINOR = sys.version_info.minor
#: Python's name in INSTALL, since python3 of a node may be older.
COMMAND = f"python3.{MINOR}"
NO_NETWORK = ("unshare", "--net")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = subprocess.check_output(
        [BUNDLE, tmp_path_factory.mktemp("bundle")],
        env={**os.environ, "PYTHON": sys.executable},
        text=True,
    )
    return Path(made.rstrip("\n"))


@pytest.fixture(scope="module")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return folder / archive.stem


def test_a_bundle_s_name_has_its_release_and_python_version(archive: Path) -> None:
    assert archive.name == f"affinityd-{__version__}-cp3{MINOR}-{os.uname().machine}.tar"
    with tarfile.open(archive) as tar:
        assert {name.split("/")[0] for name in tar.getnames()} == {archive.stem}


def test_every_file_has_a_checksum_and_our_scripts_equal_the_checkout_s(unpacked: Path) -> None:
    sums = (unpacked / "SHA256SUMS").read_text().splitlines()
    files = {path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()}
    assert {Path(line.split()[1]) for line in sums} == files - {Path("SHA256SUMS")}
    check = ("sha256sum", "--check", "--quiet", "SHA256SUMS")
    assert subprocess.run(check, cwd=unpacked, check=False).returncode == 0
    for folder in ("slurm", "deploy/systemd"):
        for path in (it for it in (REPOSITORY / folder).rglob("*") if it.is_file()):
            copy = unpacked / path.relative_to(REPOSITORY)
            assert copy.read_bytes() == path.read_bytes()


def test_a_bundle_is_installed_without_a_network(unpacked: Path, tmp_path: Path) -> None:
    """Follow INSTALL up to systemd's steps, with another folder than /opt/affinityd."""
    lines = [it for it in (unpacked / "INSTALL").read_text().splitlines() if it[:4] == "    "]
    assert lines[1].split()[0] == COMMAND
    script = "\n".join(lines[:3]).replace("/opt/affinityd", f"{tmp_path}/opt")
    script = script.replace(f"{COMMAND} -m venv", f"{sys.executable} -m venv")
    subprocess.run(
        [*NO_NETWORK, "sh", "-ec", script],
        cwd=unpacked,
        env={"PATH": os.environ["PATH"]},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    program = tmp_path / "opt/bin/affinityd"
    printed = subprocess.check_output([*NO_NETWORK, program, "version"], text=True)
    assert printed == f"affinityd {__version__}\n"
    instead = ["sh", "-c", f'shift 3; exec {program} "$@"', "sh"]  # replaces python -m affinityd
    with running(tmp_path, "--machine=mi250x", before=[*NO_NETWORK, *instead]) as daemon:
        assert daemon.plan("gpus=0")["node"] == "mi250x"
