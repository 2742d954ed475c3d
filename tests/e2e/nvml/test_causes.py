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

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a machine")


class Node:
    """A node on which commands are run, and what its NVML says."""

    def __init__(self, folder: Path, nvml: str) -> None:
        asked = environment(nvml, folder)
        self._env = {**os.environ, "AFFINITYD_CONFIG": "/nonexistent", **asked}
        mount = ["sh", "-c", 'mount --bind "$0" /sys && exec "$@"', f"{folder}/node/machine/sys"]
        self._here = [*entering(tiny(), folder / "node"), *mount]

    def said(self, *words: str) -> str:
        command = [*self._here, sys.executable, "-m", "affinityd", *words]
        env = self._env
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        return done.stdout + done.stderr

    def check(self, name: str) -> dict[str, str]:
        """Return what the doctor finds."""
        (found,) = json.loads(self.said("doctor", name, "--json"))["checks"]
        return {"status": found["status"], "found": found["found"], "remedy": found["remedy"]}


FROM_SYSFS = "plans are made from sysfs, without MIG instances"


def test_doctor_and_audit_name_the_remedy_of_the_cause(tmp_path: Path) -> None:
    node = Node(tmp_path, "fail nvmlInitWithFlags 9\n")
    cause, remedy = "NVML did not start: Driver Not Loaded", REMEDIES[9]
    found = {"status": "warn", "found": f"{cause}: {FROM_SYSFS}", "remedy": remedy}
    assert node.check("nvml") == found
    assert f"{cause}; {remedy}" in node.said("audit")


def test_the_doctor_waits_for_nvml_5_s_and_asks_it_for_the_checks_alone_that_want_it(
    tmp_path: Path,
) -> None:
    asked = tmp_path / "asked"
    node = Node(tmp_path, f"fail nvmlInitWithFlags note {asked}\nfail nvmlInitWithFlags hang\n")
    node.check("isolcpus")
    assert not asked.exists()
    assert node.check("nvml")["found"] == f"NVML did not answer within 5 s: {FROM_SYSFS}"
    assert asked.read_text() == "+"
