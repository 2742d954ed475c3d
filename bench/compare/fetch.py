"""Fetches the code of tools, one version of each, into a folder that git ignores."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.support.paths import REPOSITORY

PEERS = REPOSITORY / "build" / "peers"

GPU_AFFINITY_COMMIT = "5d5e28b47967d87209a46edbd92af60f4d6b214b"
GPU_AFFINITY = PEERS / f"gpu_affinity-{GPU_AFFINITY_COMMIT[:7]}"
GPU_AFFINITY_URL = "https://github.com/NVIDIA/gpu_affinity"

TORCH_VERSION = "2.15.0"
TORCH = PEERS / f"torch-{TORCH_VERSION}-binding.py"
#: PyTorch's smallest wheel: the one file that is read is the same in all wheels.
TORCH_PLATFORM = "macosx_14_0_arm64"


def gpu_affinity() -> str | None:
    """Fetch NVIDIA's gpu_affinity, or return why that failed."""
    if GPU_AFFINITY.exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", folder]
        fault = _run(
            [*git, "init", "-q"],
            [*git, "fetch", "-q", "--depth", "1", GPU_AFFINITY_URL, GPU_AFFINITY_COMMIT],
            [*git, "checkout", "-q", GPU_AFFINITY_COMMIT],
        )
        if fault is None:
            _copy(Path(folder, "gpu_affinity"), GPU_AFFINITY / "gpu_affinity")
    return fault


def torch_numa() -> str | None:
    """Fetch PyTorch's torch/numa/binding.py, or return why that failed."""
    if TORCH.exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
        which = ["--platform", TORCH_PLATFORM, "--python-version", "3.12", "--only-binary=:all:"]
        wheel = ["--no-deps", "--dest", folder, f"torch=={TORCH_VERSION}"]
        fault = _run([*pip, *which, *wheel])
        for path in Path(folder).glob("*.whl"):
            PEERS.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(path) as archive:
                TORCH.write_bytes(archive.read("torch/numa/binding.py"))
    return fault


def _run(*commands: list[str]) -> str | None:
    """Run commands until one fails; return its last line."""
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
    return None


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in source.glob("*.py"):
        (target / path.name).write_bytes(path.read_bytes())
