"""The lines of a plan, through the programs that its formats are for, on this machine's CPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from affinityd.cpuset import format_list, parse_list
from affinityd.request.formats import render
from affinityd.topology.model import Core, Gpu, NumaNode, Topology
from tests.support.asking import ask
from tests.support.machines.by_hand import made

ALL = sorted(os.sched_getaffinity(0))

NEEDS_NUMACTL = pytest.mark.skipif(
    shutil.which("numactl") is None, reason="needs numactl (Debian: numactl)"
)


@pytest.mark.parametrize("cpus", [ALL, ALL[-1:], ALL[::2]], ids=["all", "last", "every second"])
@pytest.mark.parametrize(
    ("command", "format_name"),
    [
        (["taskset", "-c"], "cpulist"),
        (["taskset"], "mask"),
        pytest.param(["numactl"], "numactl", marks=NEEDS_NUMACTL),
    ],
)
def test_a_program_takes_a_plan(command: list[str], format_name: str, cpus: list[int]) -> None:
    topology = Topology(
        name="here",
        cores=tuple(Core((cpu,), 0, 0, None, 0) for cpu in ALL),
        nodes=(NumaNode(0),),
        gpus=(Gpu(0, "nvidia", "0000:01:00.0", 0),),
    )
    plan = render(ask(topology, mode="node", cpuset=format_list(cpus)), format_name).split()
    run = [*command, *plan, "grep", "Cpus_allowed_list", "/proc/self/status"]
    out = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert parse_list(out.split(":")[1]) == {*cpus}


@pytest.mark.parametrize("export", ["", "export "], ids=["plain", "as a TaskProlog exports them"])
def test_a_posix_shell_takes_the_lines_literally(tmp_path: Path, export: str) -> None:
    reply = ask(made({0: "0-3", 1: "4-7", 2: ""}, gpus=[0, None, 2]), mode="node")
    lines = render(reply, "shell").splitlines()
    assert len(lines) == 8 + 2 * len(reply.ranks)
    script = tmp_path / "lines.sh"
    script.write_text("".join(f"{export}{line}\n" for line in lines))
    run = ["sh", "-euc", 'set -a; . "$1"; env', "sh", str(script)]
    out = subprocess.run(run, check=True, capture_output=True, text=True, env={}).stdout
    assert {*lines} <= {*out.splitlines()}
