"""Launches of a real Slurm with task/affinity: each task gets the right CPUs.

tests/data/slurm_launches has the facts of each task as a real Slurm set them, one step a line:
`env` as TaskProlog has it, `mask` and `cpuset` as Slurm set them, `devices` the GPUs that it may
open, `job_gpus` the note of prolog.sh, and `cpus`, the right answer.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.errors import BoundError
from affinityd.planner import WARNINGS
from affinityd.request.parameters import parse_query
from affinityd.request.resolve import Caller, Reply, answer
from affinityd.topology.model import Node
from tests.support.machines.facts import machine
from tests.support.paths import DATA, REPOSITORY

NODE = Node(machine("slurm-vm"))
LAUNCHES = [
    json.loads(line)
    for file in sorted((DATA / "slurm_launches").glob("*.jsonl"))
    for line in file.read_text().splitlines()
]
#: The variables that task_prolog.sh passes on.
PASSED = re.findall(
    r"\b(?:SLURM|CUDA)_[A-Z_]+",
    " ".join(re.findall(r'passed="([^"]*)"', (REPOSITORY / "slurm/task_prolog.sh").read_text())),
)


def plan_of_task(facts: Mapping[str, Any], mask: CpuSet, **variables: str) -> Reply | None:
    """Return the answer to task_prolog.sh's query, or None if the mask stays."""
    environ = {**facts["env"], **variables}
    pairs = [("format", "shell"), ("cpuset", format_list(mask))]
    pairs.append(("granted", ",".join(f"minor:{minor}" for minor in facts["devices"])))
    if "rank" not in variables:
        pairs.append(("job", facts["job_gpus"]))
    pairs += [(name, text) for name, text in variables.items() if not name.isupper()]
    names = [*PASSED, *(name for name in variables if name.isupper())]
    pairs += [
        ("env", f"{name}={environ[name]}") for name in dict.fromkeys(names) if name in environ
    ]
    caller = Caller(mask, parse_list(facts["cpuset"]))
    try:
        return answer(NODE, parse_query(pairs), caller)
    except BoundError:
        return None


@pytest.mark.parametrize("launch", LAUNCHES, ids=[launch["launch"] for launch in LAUNCHES])
def test_each_task_of_a_launch_has_the_right_cpus(launch: Mapping[str, Any]) -> None:
    for task in launch["tasks"]:
        reply = plan_of_task(task, parse_list(task["mask"]))
        cpus = task["mask"] if reply is None else format_list(reply.cpus)
        assert cpus == task["cpus"], task["why"]
        codes = {warning.code for warning in reply.warnings} if reply else set()
        assert codes <= {*WARNINGS}


@pytest.mark.parametrize("launch", LAUNCHES, ids=[launch["launch"] for launch in LAUNCHES])
def test_a_pinned_task_gets_the_same_answer_again(launch: Mapping[str, Any]) -> None:
    """`affinityd exec`, `bind` and `verify` ask again in a task that TaskProlog has pinned."""
    for task in launch["tasks"]:
        first = plan_of_task(task, parse_list(task["mask"]))
        if first is not None:
            pin = {
                "AFFINITYD_CPULIST": format_list(first.cpus),
                "AFFINITYD_ALLOWED": format_list(first.allowed),
            }
            again = plan_of_task(task, first.cpus, **pin)
            assert again is not None
            assert (again.cpus, again.locality) == (first.cpus, first.locality)


EIGHT = next(
    launch for launch in LAUNCHES if launch["launch"].endswith("-n8 --gres=gpu:8 -c4 PROGRAM")
)


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"CUDA_VISIBLE_DEVICES": "{task}"}, id="a script chooses a GPU after the pin"),
        pytest.param({"LOCAL_RANK": "{task}"}, id="a script exports its rank"),
        pytest.param({"LOCAL_RANK": "{task}", "LOCAL_WORLD_SIZE": "8"}, id="rank and size are set"),
        pytest.param({"gpus": "{task}"}, id="the caller names a GPU"),
        pytest.param({"rank": "{task}"}, id="the caller names a rank"),
    ],
)
@pytest.mark.parametrize("mode", ["node", "exclusive"])
def test_a_pinned_task_keeps_its_slice_whatever_its_variables_say(
    variables: Mapping[str, str], mode: str
) -> None:
    for task in EIGHT["tasks"]:
        first = plan_of_task(task, parse_list(task["mask"]))
        assert first is not None
        cpus = format_list(first.cpus)
        said = {
            name: text.format(task=task["env"]["SLURM_LOCALID"]) for name, text in variables.items()
        }
        said |= {"AFFINITYD_CPULIST": cpus, "AFFINITYD_ALLOWED": cpus, "AFFINITYD_MODE": mode}
        again = plan_of_task(task, first.cpus, **said)
        assert again is not None
        assert format_list(again.cpus) == cpus


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}, id="the user orders the GPUs"),
        pytest.param({"SLURM_TRES_BIND": "gres/gpu:mask_gpu:0xff,0x2"}, id="Slurm binds GPUs"),
        pytest.param({"SLURM_GPUS_ON_NODE": "7"}, id="more GPUs than the step's"),
    ],
)
def test_a_slice_stays_if_the_gpus_of_other_tasks_are_unknown(
    variables: Mapping[str, str],
) -> None:
    for task in EIGHT["tasks"]:
        reply = plan_of_task(task, parse_list(task["mask"]), **variables)
        assert reply is not None
        assert format_list(reply.cpus) == task["mask"]


@pytest.mark.parametrize("mode", ["unique_contiguous", "socket", "core_complex"])
@pytest.mark.parametrize("launch", LAUNCHES, ids=[launch["launch"] for launch in LAUNCHES])
def test_tasks_share_no_cpus_that_slurm_had_separated_whatever_the_mode(
    launch: Mapping[str, Any], mode: str
) -> None:
    tasks = launch["tasks"]
    masks = [parse_list(task["mask"]) for task in tasks]
    if sum(map(len, masks)) > len(frozenset().union(*masks)):
        return
    cpus: list[int] = []
    for task, mask in zip(tasks, masks, strict=True):
        reply = plan_of_task(task, mask, AFFINITYD_MODE=mode)
        cpus += mask if reply is None else reply.cpus
    assert len(cpus) == len(set(cpus))
