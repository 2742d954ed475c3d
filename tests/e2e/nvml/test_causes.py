"""Why NVIDIA's driver is not asked, and what mends that, in what people are told.

The node's GPU is in sysfs, and its driver says in /proc that it is loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from affinityd.discovery.nvml.session import REMEDIES
from tests.support.made_nodes import entering
from tests.support.nvml.shared_object import environment
from tests.support.tiny import tiny


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a machine")
def test_doctor_and_audit_name_the_remedy_of_the_cause(tmp_path: Path) -> None:
    asked = environment("fail nvmlInitWithFlags 9\n", tmp_path)
    env = {**os.environ, "AFFINITYD_CONFIG": "/nonexistent", **asked}
    node = tmp_path / "node"
    gpus = ["sh", "-c", 'mount --bind "$0" /sys && exec "$@"', f"{node}/machine/sys"]
    here = [*entering(tiny(), node), *gpus, sys.executable, "-m", "affinityd"]

    def said(*words: str) -> str:
        done = subprocess.run([*here, *words], capture_output=True, text=True, env=env, check=False)
        return done.stdout + done.stderr

    cause = "NVML did not start: Driver Not Loaded"
    (found,) = json.loads(said("doctor", "nvml", "--json"))["checks"]
    assert (found["status"], found["remedy"]) == ("warn", REMEDIES[9])
    assert found["found"] == f"{cause}: plans are made from sysfs, without MIG instances"
    assert f"{cause}; {REMEDIES[9]}" in said("audit")
