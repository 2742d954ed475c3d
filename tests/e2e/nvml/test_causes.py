"""Why NVIDIA's driver is not asked, and what mends that, in what people are told.

The node's GPU is in sysfs, and its driver says in /proc that it is loaded.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from affinityd.discovery.nvml.query import REMEDIES
from tests.support.children import sleeping
from tests.support.made_nodes import entering
from tests.support.shared_objects import environment
from tests.support.tiny import FAR, NEAR, ran, tiny

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a machine")

FROM_SYSFS = "plans are made from sysfs, without MIG instances"


def node(folder: Path, nvml: str) -> Callable[..., str]:
    env = {**os.environ, "AFFINITYD_CONFIG": "/nonexistent", **environment(nvml, folder)}
    mount = ["sh", "-c", 'mount --bind "$0" /sys && exec "$@"', f"{folder}/node/machine/sys"]
    command = [*entering(tiny(), folder / "node"), *mount, sys.executable, "-m", "affinityd"]

    def run(*words: str) -> str:
        ended = ran(*command, *words, env=env)
        return ended.stdout + ended.stderr

    return run


def test_doctor_and_audit_name_the_remedy_of_the_cause(tmp_path: Path) -> None:
    run = node(tmp_path, "fail nvmlInitWithFlags 9\n")
    cause, remedy = "NVML did not start: Driver Not Loaded", REMEDIES[9]
    (check,) = json.loads(run("doctor", "nvml", "--json"))["checks"]
    assert (check["status"], check["found"]) == ("warn", f"{cause}: {FROM_SYSFS}")
    assert check["remedy"] == remedy
    assert f"{cause}; {remedy}" in run("audit")


def test_audit_and_verify_agree_on_the_gpu_of_a_process(tmp_path: Path) -> None:
    with sleeping(env={}) as child:
        pid = f"{child.pid}"
        used = f"uuid GPU-0\n pci 00000000:10:00.0\n process compute {pid} 1048576"
        run = node(tmp_path, f"gpu\n {used}\ngpu\n uuid GPU-1\n pci 00000000:11:00.0\n")
        for cpu, placement in ((NEAR, "local"), (FAR, "remote")):
            os.sched_setaffinity(child.pid, {int(cpu)})
            for words in (["audit"], ["verify", pid]):
                (row,) = (it for it in run(*words).splitlines() if f"{pid}  python" in it)
                assert placement in row.split()
