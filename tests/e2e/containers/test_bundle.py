"""scripts/bundle: what it makes installs, and runs, where there is no network at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd import __version__
from tests.support.daemons import COMPLAINTS, Daemon, eventually, is_ready
from tests.support.paths import REPOSITORY

BUNDLE = REPOSITORY / "scripts/bundle"
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
#: What INSTALL calls it: on a node python3 may be an older one.
COMMAND = f"python{sys.version_info.major}.{sys.version_info.minor}"

NO_NETWORK = ("unshare", "--net")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    done = subprocess.run(
        [BUNDLE, folder],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.rstrip("\n"))


@pytest.fixture(scope="module")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return folder / archive.stem


@pytest.fixture(scope="module")
def installed(unpacked: Path) -> Path:
    """Follow INSTALL up to where systemd is needed, into another folder than /opt/affinityd."""
    into = unpacked / "opt"
    commands = [
        line for line in (unpacked / "INSTALL").read_text().splitlines() if line[:4] == "    "
    ]
    assert commands[1].split()[0] == COMMAND
    first = "\n".join(commands[:3]).replace("/opt/affinityd", str(into))
    subprocess.run(
        [
            *NO_NETWORK,
            "sh",
            "-ec",
            first.replace(f"{COMMAND} -m venv", f"{sys.executable} -m venv"),
        ],
        cwd=unpacked,
        env={"PATH": os.environ["PATH"]},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return into / "bin/affinityd"


@contextmanager
def serving(program: Path, folder: Path) -> Iterator[Daemon]:
    """Run it as a node's daemon, on a machine without a network."""
    path, log = folder / "affinityd.sock", folder / "log"
    command = [*NO_NETWORK, f"{program}", "serve", "--machine=mi250x", "--listen=none"]
    with log.open("w") as out, log.with_name(COMPLAINTS).open("w") as err:
        process = subprocess.Popen(
            [*command, f"--socket={path}"], stdout=out, stderr=err, text=True
        )
    daemon = Daemon(process, path, log)
    try:
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        yield daemon
    finally:
        process.kill()
        process.wait()


def test_its_name_says_which_release_and_which_python_it_is_for(archive: Path) -> None:
    assert archive.name == f"affinityd-{__version__}-{PYTHON}-{os.uname().machine}.tar"
    with tarfile.open(archive) as tar:
        assert {name.split("/")[0] for name in tar.getnames()} == {archive.stem}


def test_every_file_has_its_checksum(unpacked: Path) -> None:
    lines = (unpacked / "SHA256SUMS").read_text().splitlines()
    listed = {Path(line.split()[1]) for line in lines}
    with_sums = {path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()}
    assert listed == {path for path in with_sums if path.parts[0] not in {"opt", "SHA256SUMS"}}


def test_a_file_that_was_changed_on_its_way_is_named(unpacked: Path, tmp_path: Path) -> None:
    node = tmp_path / "node"
    shutil.copytree(unpacked, node, ignore=shutil.ignore_patterns("opt"))
    with (node / "slurm/slurm.conf").open("a") as changed:
        changed.write("#")
    done = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"],
        cwd=node,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == "./slurm/slurm.conf: FAILED\n"


def test_what_it_installs_without_a_network_runs(installed: Path) -> None:
    said = subprocess.check_output([*NO_NETWORK, installed, "version"], text=True)
    assert said == f"affinityd {__version__}\n"


def test_the_daemon_that_it_installs_answers(installed: Path, tmp_path: Path) -> None:
    with serving(installed, tmp_path) as daemon:
        assert daemon.plan("gpus=0")["node"] == "mi250x"
        daemon.signal(signal.SIGTERM)
        assert daemon.process.wait(10) == 0


def test_the_files_for_slurm_and_systemd_are_those_of_the_checkout(unpacked: Path) -> None:
    for folder in ("slurm", "deploy/systemd"):
        here = BUNDLE.parents[1] / folder
        for path in here.rglob("*"):
            if path.is_file():
                assert (
                    unpacked / folder / path.relative_to(here)
                ).read_bytes() == path.read_bytes()


def test_a_folder_that_is_not_there_is_named() -> None:
    done = subprocess.run([BUNDLE, "/nonexistent"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "/nonexistent is no folder; make it first.\n")
