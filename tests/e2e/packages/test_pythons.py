"""The unit suite with the Python of each release of Debian, in fresh roots."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.packages.roots import SUITES, debian
from tests.support.paths import REPOSITORY

TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist", "pyyaml")
#: Runs `python3 ARGUMENTS` in a root, with this repository at the same path, and with packages.
INSIDE = """
root=$1 packages=$2 repository=$3
shift 3
mount --bind "$root" "$root"
cd "$root"
mkdir -p packages old ".$repository"
mount --bind "$packages" packages
mount --bind "$repository" ".$repository"
for folder in proc sys dev; do mount --rbind "/$folder" "$folder"; done
pivot_root . old
cd "$repository"
export PATH=/usr/sbin:/usr/bin PYTHONPATH=/packages PYTHONDONTWRITEBYTECODE=yes
exec python3 "$@"
"""
HERE = sys.version_info.minor


@pytest.mark.parametrize("suite", [it for it in SUITES if SUITES[it] != HERE])
def test_the_unit_suite_passes_with_each_debian_python(suite: str, tmp_path: Path) -> None:
    root = debian(suite, tmp_path, "mount", "xz-utils")  # Debian 13 makes both optional
    packages = tmp_path / "packages"
    install = [f"{Path(sys.executable).with_name('uv')}", "pip", "install", f"--target={packages}"]
    wanted = ["--requirements=pyproject.toml", "--extra=daemon", *TOOLS]
    version = f"--python-version=3.{SUITES[suite]}"
    subprocess.run([*install, "--quiet", version, *wanted], check=True, cwd=REPOSITORY)
    inside = ["unshare", "--mount", "sh", "-ec", INSIDE, "sh"]
    places = [f"{it}" for it in (root.path, packages, REPOSITORY)]
    module = ["-m", "pytest", "-q", "-n2", "-pno:cacheprovider"]
    suites = ["tests/unit", "tests/processes/daemon"]
    done = subprocess.run(
        [*inside, *places, *module, *suites], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
