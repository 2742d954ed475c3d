"""Why NVIDIA's driver is not asked, and what mends that: one node, a cause at a time.

The node's GPU is in sysfs, and its driver says in /proc that it is loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from affinityd.discovery.nvml.session import REMEDIES
from affinityd.errors import NVML_EXTRA
from tests.support.made_nodes import entering
from tests.support.nvml.shared_object import environment
from tests.support.tiny import tiny

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a machine")


def without_the_binding(folder: Path) -> Mapping[str, str]:
    (folder / "pynvml.py").write_text("raise ImportError")
    return {"PYTHONPATH": os.fspath(folder)}


def without_the_library(folder: Path) -> Mapping[str, str]:
    (folder / "libnvidia-ml.so.1").write_text("no library")
    return {"LD_LIBRARY_PATH": os.fspath(folder)}


def without_the_driver(folder: Path) -> Mapping[str, str]:
    return environment("fail nvmlInitWithFlags 9\n", folder)


@pytest.mark.parametrize(
    ("make", "cause", "remedy"),
    [
        (without_the_binding, "NVML needs nvidia-ml-py, which is not installed", NVML_EXTRA),
        (without_the_library, "NVML did not start: NVML Shared Library Not Found", REMEDIES[12]),
        (without_the_driver, "NVML did not start: Driver Not Loaded", REMEDIES[9]),
    ],
)
def test_doctor_and_audit_name_the_remedy_of_the_cause(
    tmp_path: Path, make: Callable[[Path], Mapping[str, str]], cause: str, remedy: str
) -> None:
    (tmp_path / "python").mkdir()
    env = {**os.environ, "AFFINITYD_CONFIG": "/nonexistent", **make(tmp_path / "python")}
    node = tmp_path / "node"
    gpus = ["sh", "-c", 'mount --bind "$0" /sys && exec "$@"', f"{node}/machine/sys"]
    here = [*entering(tiny(), node), *gpus]

    def said(*words: str) -> str:
        command = [*here, sys.executable, "-m", "affinityd", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        return done.stdout + done.stderr

    (found,) = json.loads(said("doctor", "nvml", "--json"))["checks"]
    assert (found["status"], found["remedy"]) == ("warn", remedy)
    assert found["found"] == f"{cause}: plans are made from sysfs, without MIG instances"
    assert f"{cause}; {remedy}" in said("audit")
