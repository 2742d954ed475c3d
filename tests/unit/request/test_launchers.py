"""Every launcher, by every client: a lone rank, the first and the last of two have their GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

import pytest

from affinityd.cli.target import ProcessPlanner
from affinityd.client.local_plan import plan_on_node
from affinityd.client.process import ProcessContext
from affinityd.linux.processes import stat_of
from affinityd.request.environment import MPS_LIST, OF_NUMBERS, READ, VISIBLE_NAMES
from affinityd.request.resolve import Reply
from affinityd.topology.model import Node
from tests.support.machines.by_hand import made
from tests.support.paths import REPOSITORY
from tests.support.tables import cases, words

NODE = Node(made({0: "0-7", 1: "8-15"}, [0, 1]))
#: Its mask, as where no launcher has bound it.
EVERY = frozenset(range(16))
NO_PROCESS = 2**22 + 1  #: above every PID
SCRIPTS = {
    "run.sh": REPOSITORY / "affinityd/kubernetes/files/run.sh",
    "TaskProlog": REPOSITORY / "slurm/task_prolog.sh",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_sends_every_variable_of_devices(script: str) -> None:
    names = re.findall(r"\b[A-Z][A-Z0-9_]+\b", SCRIPTS[script].read_text())
    assert {*VISIBLE_NAMES, *OF_NUMBERS} - {MPS_LIST} <= set(names)


def by_query(environ: Mapping[str, str]) -> Reply:
    """As `affinityd exec` and `bind()` ask the daemon, and plan without one."""
    process = ProcessContext(0, 0, environ, devices=None)
    return plan_on_node(NODE, process.query({}, EVERY))


def by_variables(environ: Mapping[str, str], names: Iterable[str] = READ) -> Reply:
    """As `/plan?env=` answers a script that sends these variables."""
    sent = [("env", f"{name}={environ[name]}") for name in names if name in environ]
    return plan_on_node(NODE, [("cpuset", "0-15"), *sent])


def by_script(script: str, environ: Mapping[str, str]) -> Reply:
    names = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", SCRIPTS[script].read_text()))
    return by_variables(environ, sorted(names & READ))


def by_verify(environ: Mapping[str, str]) -> Reply:
    """As `affinityd verify PID` and `pin PID` plan for another process."""
    process = ProcessContext(NO_PROCESS, 0, environ, devices=None)
    planner = ProcessPlanner({}, divides=True, node=NODE, context=lambda _stat: process)
    stat = stat_of(os.getpid())
    assert stat is not None
    return planner.plan(stat)


@pytest.mark.parametrize("client", ["exec", "plan", "verify", *SCRIPTS])
@pytest.mark.parametrize(("variables", "lone", "first", "last"), cases("launchers.tsv"))
def test_a_rank_of_each_launcher_has_its_gpus(
    client: str,
    variables: str,
    *,
    lone: str,
    first: str,
    last: str,
) -> None:
    is_slurm_s = variables.startswith("SLURM") and "RANK" not in variables
    if is_slurm_s != (client == "TaskProlog") and client in SCRIPTS:
        return  # TaskProlog pins tasks of srun, and a pod's run none
    for rank, size, gpus in ((0, 1, lone), (0, 2, first), (1, 2, last)):
        tasks = ",".join(map(str, range(size)))
        environ = words(variables.format(rank=rank, size=size, tasks=tasks))
        environ["CUDA_VISIBLE_DEVICES"] = "0,1"
        if client == "exec":
            reply = by_query(environ)
        elif client == "plan":
            reply = by_variables(environ)
        elif client == "verify":
            reply = by_verify(environ)
        else:
            reply = by_script(client, environ)
        assert ",".join(str(place.gpu.index) for place in reply.ranks) == gpus, environ
