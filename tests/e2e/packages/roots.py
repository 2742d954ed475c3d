"""Packages of this checkout, and roots of Debian that are made for a test and removed after it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.daemons import Daemon, running
from tests.support.paths import REPOSITORY
from tests.support.tiny import printed

SUITES = {"bookworm": 11, "trixie": 13, "forky": 14}  #: release → the minor version of its Python 3
OLDER = "0.0.9"
NOBODY = "65534:65534"
#: Records that dpkg, apt and rpm write of their work; they belong to no package.
RECORDS = (
    *("var/lib/dpkg", "var/lib/apt", "var/lib/rpm", "var/log", "var/cache"),
    *("proc", "root", "asked", "affinityd"),
)


def built(kind: str, folder: Path, checkout: Path = REPOSITORY) -> dict[str, Path]:
    """Return a checkout's packages by name, `deb` or `rpm`, built into a folder."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    build = [checkout / f"packaging/{kind}/build", folder]
    printed = subprocess.check_output(build, env=environment, text=True)
    return {
        "affinityd-daemon" if "-daemon" in Path(it).name else "affinityd": Path(it)
        for it in printed.splitlines()
    }


def older_checkout(folder: Path) -> Path:
    """Copy this checkout, as an older version with other scripts and settings."""
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=REPOSITORY, text=True)
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name, follow_symlinks=False)
    version = folder / "affinityd/__init__.py"
    text = re.sub('__version__ = ".*"', f'__version__ = "{OLDER}"', version.read_text())
    version.write_text(text)
    for name in ("slurm/prolog.sh", "deploy/systemd/affinityd.conf"):
        with (folder / name).open("a") as file:
            file.write(f"# of {OLDER}\n")
    (folder / "affinityd/gone.py").touch()
    return folder


@dataclass(frozen=True)
class Root:
    path: Path

    def run(self, *command: str, user: str = "0:0") -> str:
        environment = {"PATH": "/usr/sbin:/usr/bin", "DEBIAN_FRONTEND": "noninteractive"}
        inside = ["chroot", f"--userspec={user}", os.fspath(self.path), *command]
        return printed(*inside, env=environment, timeout=600)

    def asked(self) -> list[str]:
        """Return the arguments that systemctl got since the last call of this function."""
        notes = self.path / "asked"
        lines = notes.read_text().splitlines() if notes.exists() else []
        notes.unlink(missing_ok=True)
        return lines

    @contextmanager
    def daemon(self, folder: Path, *arguments: str) -> Iterator[Daemon]:
        """Run the package's daemon in the root, with its log in a folder."""
        shell = 'shift 3; mount --rbind /proc "$0/proc"; exec chroot "$0" affinityd "$@"'
        before = ["unshare", "--mount", "sh", "-ec", shell, os.fspath(self.path)]
        env = {"AFFINITYD_SOCKET": f"{self.path}/run/affinityd/s"}  # a socket path must be short
        (self.path / "run/affinityd").mkdir()  # systemd makes this folder, too
        with running(
            folder, "--socket=/run/affinityd/s", *arguments, before=before, env=env
        ) as daemon:
            yield daemon

    def holds(self, packages: Mapping[str, Path]) -> list[str]:
        """Copy packages into the root; return their paths in it."""
        for package in packages.values():
            shutil.copy(package, self.path)
        return [f"/{package.name}" for package in packages.values()]

    def files(self) -> set[str]:
        names = (os.fspath(it.relative_to(self.path)) for it in self.path.rglob("*"))
        return {it for it in names if not it.startswith(RECORDS)}


def debian(suite: str, folder: Path, *packages: str) -> Root:
    asks = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Label: Debian"]
    mirrors = subprocess.check_output(asks, text=True).split()[:1]
    options = ["--quiet", "--variant=apt", "--aptopt=Acquire::Check-Valid-Until false"]
    include = f"--include={','.join(('python3', 'curl', *packages))}"
    command = ["mmdebstrap", *options, include, suite, f"{folder / suite}", *mirrors]
    subprocess.run(command, check=True, timeout=600)
    root = Root(folder / suite)
    if "systemd" not in packages:  # a systemctl that only records its arguments
        (root.path / "run/systemd/system").mkdir(parents=True, exist_ok=True)
        (root.path / "usr/bin/systemctl").write_text('#!/bin/sh\necho "$@" >>/asked\n')
        (root.path / "usr/bin/systemctl").chmod(0o755)
    return root
