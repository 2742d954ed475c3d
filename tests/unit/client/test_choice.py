"""A process's request that GPUs be chosen for it, and the choice."""

import os
import re

import pytest

from affinityd.client.local_plan import plan_on_node
from affinityd.client.process import ProcessContext
from affinityd.cpuset import format_list, parse_list
from affinityd.errors import AffinityError
from affinityd.request.environment import PINNED_FOR, task_of
from affinityd.topology.model import Node
from tests.support.machines.facts import machine
from tests.support.tables import cases, words

MPI = "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4"
SITE = "AFFINITYD_CHOOSE_GPU=yes"
STEP = "SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_LOCALID=1 SLURM_GTIDS=0,1,2,3"
NAMES = {"MPI": MPI, "SITE": SITE, "STEP": STEP}


@pytest.mark.parametrize(
    ("environ", "chosen", "mask", "above", "expected"), cases("choices.tsv", **NAMES)
)
def test_a_request_contains_what_the_launcher_gave_the_process(
    monkeypatch: pytest.MonkeyPatch,
    environ: str,
    chosen: str,
    *,
    mask: str,
    above: str,
    expected: str,
) -> None:
    """`above`: the launcher's environment if it can be read, its MASK and the process's DEVICES."""
    launcher, variables = words(above), words(environ)
    if variables.get(PINNED_FOR) == "this":
        del variables[PINNED_FOR]
        variables[PINNED_FOR] = task_of(variables)
    of_launcher = parse_list(launcher["MASK"]) if "MASK" in launcher else None
    monkeypatch.setattr(ProcessContext, "launcher", (of_launcher, launcher if above else None))
    monkeypatch.setattr(ProcessContext, "cpuset", parse_list("0-127"))

    devices = launcher.get("DEVICES")
    process = ProcessContext(os.getpid(), 0, variables, devices)

    def ask() -> str:
        query = process.query(words(chosen), parse_list(mask))
        reply = plan_on_node(Node(machine("mi250x")), query)
        told = reply.visible.get(reply.ranks[0].rank, {})
        gpus = ",".join(str(rank.gpu.index) for rank in reply.ranks)
        return " ".join([gpus, format_list(reply.cpus), *map("=".join, told.items())])

    if expected[0].isdigit():
        assert ask() == expected
    else:
        with pytest.raises(AffinityError, match=f"^{re.escape(expected)}"):
            ask()
