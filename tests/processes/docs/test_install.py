"""A node through install, upgrade and removal, with the commands of the pages.

The node's folders are below a folder of the test. A stand-in for systemctl records its arguments,
and a stand-in for venv installs this checkout.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.check.blocks import BLOCKS
from tests.support.paths import REPOSITORY

FOLDERS = re.compile(r"(?<![\w.])/(?=opt|usr/bin|etc|run)")
SYSTEMCTL = 'echo systemctl "$@" >>"$ROOT/asked"'
PYTHON = f"""
[ "$1" = -m ] || exec {sys.executable} "$@"
mkdir -p "$3/bin"
printf '#!/bin/sh\\ntrue\\n' >"$3/bin/pip"
printf '#!/bin/sh\\nexec {sys.executable} -m affinityd "$@"\\n' >"$3/bin/affinityd"
chmod +x "$3"/bin/*
"""


def block(page: str, start: str) -> str:
    (found,) = (it.text for it in BLOCKS if it.page == page and it.text.startswith(start))
    return found


class Site:
    """A node whose folders are below a test's folder; `asked` has systemctl's arguments."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bin", "opt", "usr/bin", "etc/systemd/system", "run"):
            (root / folder).mkdir(parents=True)
        for name, text in (("systemctl", SYSTEMCTL), ("python3", PYTHON)):
            self.stand_in(name, text)

    def stand_in(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, script: str) -> list[str]:
        asked = self.root / "asked"
        asked.write_text("")
        path = f"{self.root}/bin:{self.root}/usr/bin:{os.environ['PATH']}"
        subprocess.run(
            ["/bin/sh", "-ec", FOLDERS.sub(f"{self.root}/", script)],
            env={"PATH": path, "ROOT": str(self.root)},
            cwd=REPOSITORY,
            check=True,
        )
        return asked.read_text().splitlines()

    def read(self, path: str) -> str:
        return (self.root / path).read_text()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_pages_commands_install_upgrade_and_remove(site: Site) -> None:
    before = {*site.root.rglob("*")}
    page = "docs/install.md"
    asked = site.run(block(page, "python3 -m venv"))
    assert asked[-1] == "systemctl enable --now affinityd"
    unit = "etc/systemd/system/affinityd.service"
    assert site.read(unit) == (REPOSITORY / "deploy/systemd/affinityd.service").read_text()
    old = (site.root / "usr/bin/affinityd").resolve()
    assert subprocess.run([old, "version"], check=True)

    upgraded = site.run(block(page, "venv="))
    assert upgraded == ["systemctl daemon-reload", "systemctl restart affinityd"]
    assert old.exists()
    assert old != (site.root / "usr/bin/affinityd").resolve()

    site.run(block("docs/slurm-site.md", "install -D"))
    site.run(block("slurm/README.md", "install -D"))
    assert len([*(site.root / "etc/slurm/affinityd").iterdir()]) == 4
    site.run(block("slurm/README.md", "rm -rf /etc/slurm"))
    removed = site.run(block(page, "systemctl disable"))
    assert removed == ["systemctl disable --now affinityd", "systemctl daemon-reload"]
    left = {*site.root.rglob("*")} - before - {site.root / "asked"}
    assert {str(it.relative_to(site.root)) for it in left} == {
        *("etc/slurm", "etc/enroot", "etc/enroot/mounts.d")
    }
