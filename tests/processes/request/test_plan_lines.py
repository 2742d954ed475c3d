"""The lines of a plan, through the programs that its formats are for, on this machine's CPUs."""

from __future__ import annotations

import os
import subprocess

import pytest

from affinityd.cpuset import format_list, parse_list
from affinityd.request.formats import render
from affinityd.topology.model import Core, Gpu, NumaNode, Topology
from tests.support.asking import ask

ALL = sorted(os.sched_getaffinity(0))
HERE = Topology(
    name="here",
    cores=tuple(Core((cpu,), 0, 0, None, 0) for cpu in ALL),
    nodes=(NumaNode(0),),
    gpus=(Gpu(0, "nvidia", "0000:01:00.0", 0),),
)


@pytest.mark.parametrize("cpus", [ALL, ALL[-1:]], ids=["all", "last"])
@pytest.mark.parametrize(
    ("command", "format_name"),
    [("taskset -c", "cpulist"), ("taskset", "mask"), ("numactl", "numactl")],
)
def test_a_program_takes_a_plan(command: str, format_name: str, cpus: list[int]) -> None:
    plan = render(ask(HERE, mode="node", cpuset=format_list(cpus)), format_name)
    run = f"{command} {plan.strip()} grep Cpus_allowed_list /proc/self/status".split()
    out = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert parse_list(out.split(":")[1]) == {*cpus}
