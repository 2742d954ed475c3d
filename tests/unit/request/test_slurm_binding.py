"""Which tasks of a Slurm step have the same GPUs, and on which CPUs they are planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd import machines
from affinityd.client import local_plan
from affinityd.cpuset import CpuSet, format_list, format_mask, parse_list
from affinityd.errors import AffinityError
from affinityd.request.environment import first_answer, process_questions
from affinityd.request.formats import Reply
from affinityd.request.parameters import Request
from affinityd.request.query import parse_query
from affinityd.request.resolve import answer
from affinityd.request.slurm_binding import Slot, cpus_of_step, gpu_slot
from affinityd.topology.model import Node
from tests.support.asking import ask, cpulists, try_to_ask

DGX = machines.load("dgx-a100")  # GPUs in pairs on nodes 3, 1, 7, 5
NO_CPU: CpuSet = frozenset()


@pytest.mark.parametrize(
    ("bind", "tasks", "gpus", "seats"),
    [
        pytest.param("", 2, 2, [None, None], id="nothing is said: all see all"),
        pytest.param("gpu:none", 2, 2, [None, None], id="not bound: all see all"),
        pytest.param("gpu:closest", 2, 2, [None, None], id="CPUs are not bound: all are close"),
        pytest.param("gpu:per_task:1", 2, 2, [(0, 1)] * 2, id="one of its own each"),
        pytest.param("gpu:per_task:2", 2, 4, [(0, 1)] * 2, id="two of its own each"),
        pytest.param("gpu:per_task:big:1", 2, 2, [(0, 1)] * 2, id="one of a type each"),
        pytest.param("gpu:single:1", 2, 2, [(0, 1)] * 2, id="one each, by turns"),
        pytest.param(
            "gpu:single:1", 4, 2, [(0, 2), (0, 2), (1, 2), (1, 2)], id="by turns, round again"
        ),
        pytest.param("gpu:single:2", 4, 2, [(0, 2), (1, 2), (0, 2), (1, 2)], id="two neighbours"),
        pytest.param(
            "gpu:single:2", 3, 2, [(0, 2), (1, 2), (0, 2)], id="the last has no neighbour"
        ),
        pytest.param("gpu:single:1", 2, 1, [(0, 2), (1, 2)], id="one GPU for all"),
        pytest.param("gpu:single:1", 2, 0, [(0, 2), (1, 2)], id="of unknown many GPUs"),
        pytest.param("gpu:single:0", 2, 2, [(0, 2), (1, 2)], id="what Slurm would not take"),
        pytest.param("gpu:map_gpu:1,0", 2, 2, [(0, 1)] * 2, id="a map the other way round"),
        pytest.param("gpu:map_gpu:0,0", 2, 2, [(0, 2), (1, 2)], id="a map onto one"),
        pytest.param(
            "gpu:map_gpu:0*2,1", 3, 2, [(0, 2), (1, 2), (0, 2)], id="a map with a multiplier"
        ),
        pytest.param(
            "gpu:map_gpu:0,1", 3, 2, [(0, 2), (0, 2), (1, 2)], id="a map that begins again"
        ),
        pytest.param("gpu:map_gpu:", 2, 2, [(0, 2), (1, 2)], id="a map of nothing"),
        pytest.param("gpu:mask_gpu:0x1,2", 2, 2, [(0, 1)] * 2, id="masks that are apart"),
        pytest.param("gpu:mask_gpu:3,3", 2, 2, [(0, 2), (1, 2)], id="masks that are equal"),
        pytest.param("gpu:mask_gpu:3,1", 2, 2, [(0, 2), (1, 2)], id="masks that overlap"),
        pytest.param("gpu:verbose,single:2", 2, 1, [(0, 2), (1, 2)], id="and it tells the user"),
        pytest.param("gpu:v,single:2", 2, 1, [(0, 2), (1, 2)], id="and it tells, in short"),
        pytest.param("gres/gpu:per_task:1", 2, 2, [(0, 1)] * 2, id="as newer releases have it"),
        pytest.param("gres/nic:none+gres/gpu:per_task:1", 2, 2, [(0, 1)] * 2, id="beside others"),
        pytest.param("gpu:of_the_future:1", 2, 2, [(0, 2), (1, 2)], id="a word not known here"),
    ],
)
def test_tasks_on_the_same_gpus_have_a_seat_each(
    bind: str, tasks: int, gpus: int, seats: list[Slot | None]
) -> None:
    seen = 2 if "per_task:2" in bind else 1
    step = Request(gpu_bind=bind, step_gpus=gpus)
    found = [gpu_slot(step, NO_CPU, task=it, tasks=tasks, seen=seen) for it in range(tasks)]
    assert found == seats


@pytest.mark.parametrize(
    "bind", ["gpu:per_task:a:1", "gpu:single:1", "gpu:map_gpu:1,0", "gpu:mask_gpu:1,2"]
)
def test_a_binding_that_is_not_in_force_binds_nobody(bind: str) -> None:
    """Slurm 22.05 says per_task of --gpus-per-task=TYPE:1, and binds nothing."""
    assert gpu_slot(Request(gpu_bind=bind, step_gpus=2), NO_CPU, task=1, tasks=2, seen=2) is None


def cpus(*numbers: int) -> CpuSet:
    return frozenset(numbers)


SLICES = (cpus(0), cpus(1))


@pytest.mark.parametrize(
    ("bind", "masks", "mask", "task", "expected"),
    [
        pytest.param("", SLICES, cpus(1), 1, (cpus(0, 1), None), id="all of the step's"),
        pytest.param("", (), cpus(0, 1), 1, (cpus(0, 1), None), id="CPUs are not bound"),
        pytest.param("", SLICES, cpus(4), 1, (cpus(4), None), id="masks of another step"),
        pytest.param("", SLICES, cpus(1), 0, (cpus(1), None), id="another task's slice"),
        pytest.param("", (cpus(0, 1),), cpus(0, 1), 2, (cpus(0, 1), None), id="one for all tasks"),
        pytest.param(
            "", (cpus(0, 1), cpus(2)), cpus(1), 0, (cpus(0, 1, 2), None), id="less than its slice"
        ),
        pytest.param(
            "gpu:per_task:1", SLICES, cpus(0), 0, (cpus(0, 1), None), id="with its own GPU"
        ),
        pytest.param(
            "gpu:closest", SLICES, cpus(0), 0, (cpus(0), (0, 2)), id="GPUs that are near its slice"
        ),
        pytest.param(
            "gpu:closest", (cpus(0, 1),) * 2, cpus(0, 1), 1, (cpus(0, 1), (1, 3)), id="and a twin"
        ),
        pytest.param(
            "gpu:closest", (cpus(0, 1),), cpus(0, 1), 2, (cpus(0, 1), (2, 3)), id="one for all"
        ),
    ],
)
def test_a_task_may_leave_its_slice_unless_its_gpus_were_chosen_by_it(
    bind: str,
    masks: tuple[CpuSet, ...],
    mask: CpuSet,
    task: int,
    expected: tuple[CpuSet, Slot | None],
) -> None:
    request = Request(gpu_bind=bind, cpu_bind=masks, rank=(task,))
    assert cpus_of_step(request, mask) == expected[0]
    if not bind.startswith("gpu:per_task"):
        assert gpu_slot(request, mask, task=task, tasks=3, seen=1) == expected[1]


# What follows for a plan.


def seen(bind: str, task: int, gpus: list[str], cpus: Container[int] | None = None) -> list[str]:
    """Return the GPUs that srun(1) says a task sees, of those that its step has.

    `cpus` is its slice, where gres.conf names the cores of each GPU's node.
    """
    kind, _, argument = bind.removeprefix("gpu:").partition(":")
    if kind == "per_task":
        return gpus[task * int(argument) : (task + 1) * int(argument)]
    if kind == "single":
        near = [
            gpu
            for gpu in gpus
            if cpus is None
            or any(cpu in cpus for cpu in DGX.cpus_of_node(DGX.gpus[int(gpu)].numa_node))
        ] or gpus[:1]
        return [near[task // int(argument) % len(near)]]
    if kind == "map_gpu":
        return [gpus[int(argument.split(",")[task % len(argument.split(","))])]]
    if kind == "mask_gpu":
        mask = int(argument.split(",")[task % len(argument.split(","))], 16)
        return [gpu for place, gpu in enumerate(gpus) if mask >> place & 1]
    return gpus


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, list[str], int]:
    """Return a binding, the GPUs of a step, and its number of tasks."""
    gpus = sorted(draw(st.sets(st.integers(0, 7), min_size=1)))
    tasks = draw(st.integers(2, 8))
    place = st.integers(0, len(gpus) - 1)
    mask = st.integers(1, 2 ** len(gpus) - 1)
    binds = [
        st.just("gpu:none"),
        st.builds("gpu:single:{}".format, st.integers(1, 3)),
        st.lists(place, min_size=1).map(lambda it: "gpu:map_gpu:" + ",".join(map(str, it))),
        st.lists(mask, min_size=1).map(lambda it: "gpu:mask_gpu:" + ",".join(map(hex, it))),
    ]
    if tasks <= len(gpus):
        most = len(gpus) // tasks
        binds.append(st.builds("gpu:per_task:{}".format, st.integers(1, most)))
    return draw(st.one_of(binds)), [str(gpu) for gpu in gpus], tasks


@given(
    steps(),
    st.sampled_from(["unique_contiguous", "unique_interleaved", "exclusive", "single_unique"]),
    st.sampled_from(["node", "socket"]),
    st.booleans(),
    st.booleans(),
)
def test_tasks_of_a_job_never_overlap_whatever_each_one_sees(
    step: tuple[str, list[str], int], mode: str, scope: str, is_sliced: bool, has_cores: bool
) -> None:
    bind, gpus, tasks = step
    slices = [range(32 * task, 32 * task + 32) for task in range(tasks)]
    facts = {"gpu_bind": bind, "step_gpus": f"{len(gpus)}", "job": ",".join(gpus)}
    facts |= {"ranks": f"{tasks}", "mode": mode, "scope": scope}
    if is_sliced:
        facts["cpu_bind"] = ",".join(map(format_mask, slices))
    places = []
    for task in range(tasks):
        near = slices[task] if is_sliced else range(256)
        sees = seen(bind, task, gpus, near if has_cores else None)
        mine = {"rank": f"{task}", "visible": ",".join(sees)}
        cpuset = f"{slices[task][0]}-{slices[task][-1]}" if is_sliced else "0-255"
        reply = try_to_ask(DGX, cpuset=cpuset, **mine, **facts)
        if not isinstance(reply, AffinityError):  # more tasks than cores near a GPU
            places.append(reply.cpus)
    for one, other in combinations(places, 2):
        assert not one & other


def place(**parameters: str) -> str:
    reply = ask(DGX, mode="unique_contiguous", **parameters)
    return ",".join(cpulists(reply))


def test_tasks_with_a_gpu_each_divide_the_cores_of_the_step_not_their_slices() -> None:
    """Slurm's slices are 0-63 and 64-127 here, and both GPUs are on node 3: 48-63,176-191."""
    masks = ",".join(map(format_mask, (range(64), range(64, 128))))
    facts = {"job": "0,1", "ranks": "2", "gpu_bind": "gpu:per_task:1", "cpu_bind": masks}
    assert place(rank="0", visible="0", cpuset="0-63", **facts) == "48-55"
    assert place(rank="1", visible="1", cpuset="64-127", **facts) == "56-63"


def test_what_is_huge_is_read_in_no_time() -> None:
    """Nobody but a daemon's enemy sends it."""
    facts = {"ranks": "256", "rank": "255", "visible": "0"}
    start = time.process_time()
    for bind, masks in [
        ("gpu:map_gpu:" + ",".join(["0*4096"] * 4000), "0x1"),
        ("gpu:mask_gpu:" + "f" * 32000, "0x1"),
        ("gpu:single:" + "9" * 5000, "0x1"),
        ("gpu:single:1", ",".join(format_mask([cpu]) for cpu in range(256))),
        ("gpu:closest", "0x" + "f" * 16384),
        ("gpu:closest", ",".join(["0xff"] * 256)),
    ]:
        job = {"job": ",".join(f"{gpu % 8}" for gpu in range(256)), "step_gpus": "256"}
        for more in ({}, job):
            try_to_ask(DGX, **facts, **more, gpu_bind=bind, cpu_bind=masks, cpuset="255")
    assert time.process_time() - start < 2


def test_modes_that_share_take_any_number_of_seats() -> None:
    """96 tasks on 8 GPUs: 768 seats, of which nobody needs one."""
    facts = {"ranks": "96", "rank": "95", "job": "0,1,2,3,4,5,6,7"}
    bind = {"gpu_bind": "gpu:mask_gpu:0xff,0x7f", "visible": "0,1,2,3,4,5,6"}
    reply = ask(DGX, mode="node", **facts, **bind)
    assert len(reply.ranks) == 7
    refused = try_to_ask(DGX, mode="exclusive", **facts, **bind)
    assert "are too many; the most is 256" in str(refused)


def test_tasks_may_share_a_gpu_that_a_slice_near_to_none_leads_to() -> None:
    """Slurm's slices are on nodes 0 and 1 here, GPUs 0 and 2 on 3 and 1: it may give all GPU 0."""
    masks = ",".join(format_mask(range(8 * task, 8 * task + 8)) for task in range(2))
    facts = {"job": "0,2", "ranks": "2", "step_gpus": "2", "gpu_bind": "gpu:single:1"}
    lists = [
        place(
            rank=f"{rank}",
            visible="0",
            cpuset=f"{8 * rank}-{8 * rank + 7}",
            cpu_bind=masks,
            **facts,
        )
        for rank in range(2)
    ]
    assert lists == ["0-3", "4-7"]


def of_exec(environ: Mapping[str, str], mask: CpuSet) -> Reply:
    questions = process_questions({"mode": "exclusive"}, environ, mask)
    return local_plan.plan_on_node(Node(DGX), questions)


def of_task_prolog(environ: Mapping[str, str], mask: CpuSet) -> Reply:
    variables = {**environ, "AFFINITYD_MODE": "exclusive"}
    passed = [("env", f"{name}={text}") for name, text in variables.items()]
    requests = parse_query([("cpuset", format_list(mask)), *passed])
    return first_answer(requests, lambda request: answer(Node(DGX), request))


@pytest.mark.parametrize("plan", [of_exec, of_task_prolog])
@pytest.mark.parametrize(
    ("slices", "sees"),
    [
        pytest.param(["3", "1", "3", "1"], ["0,1", "2,3", "0,1", "2,3"], id="two to a slice"),
        pytest.param(["3", "3", "3", "1"], ["0,1", "0,1", "0,1", "2,3"], id="three to a slice"),
        pytest.param(["0-7"] * 4, ["0,1,2,3"] * 4, id="all on all"),
        pytest.param([], ["0,1"] * 4, id="CPUs are not bound, and near some of the GPUs alone"),
    ],
)
def test_tasks_never_overlap_whose_gpus_were_chosen_by_their_slices(
    plan: Callable[[Mapping[str, str], CpuSet], Reply], slices: Sequence[str], sees: Sequence[str]
) -> None:
    """--gpu-bind=closest: tasks of one slice see the same GPUs, and are planned by themselves."""
    nodes = [frozenset().union(*map(DGX.cpus_of_node, parse_list(it))) for it in slices]
    masks = ",".join(map(format_mask, nodes))
    step = {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "SLURM_GTIDS": "0,1,2,3"}
    step |= {"SLURM_GPUS_ON_NODE": "4", "SLURMD_TRES_BIND": "gpu:closest"}
    if masks:
        step["SLURM_CPU_BIND_LIST"] = masks
    replies = [
        plan(
            {**step, "SLURM_LOCALID": f"{task}", "CUDA_VISIBLE_DEVICES": sees[task]},
            nodes[task] if nodes else DGX.online,
        )
        for task in range(4)
    ]
    assert not any(one.cpus & other.cpus for one, other in combinations(replies, 2))
    assert {reply.locality for reply in replies} == {"local"}


def test_two_tasks_on_one_gpu_divide_its_share_of_the_job_s_cores() -> None:
    facts = {"job": "0,1", "ranks": "2", "gpu_bind": "gpu:map_gpu:1,1", "visible": "1"}
    lists = [place(rank=f"{rank}", **facts) for rank in range(2)]
    assert lists == ["56-59,184-187", "60-63,188-191"]


def test_tasks_that_all_see_all_gpus_take_one_each() -> None:
    facts = {"job": "0,1,2,3", "ranks": "4"}
    expected = ["48-55,176-183", "56-63,184-191", "16-23,144-151", "24-31,152-159"]
    assert [place(rank=f"{rank}", **facts, visible="0,1,2,3") for rank in range(4)] == expected


def test_a_task_with_several_gpus_has_the_union() -> None:
    facts = {"job": "0,1,2,3", "ranks": "2", "gpu_bind": "gpu:per_task:2"}
    assert place(rank="1", **facts, visible="2,3") == "16-23,144-151,24-31,152-159"


def test_steps_on_different_gpus_of_a_job_are_apart() -> None:
    lists = [ask(DGX, job="0,1", visible=gpu, mode="exclusive").cpus for gpu in "01"]
    assert not any(one & other for one, other in pairwise(lists))


def test_a_step_with_cpus_of_its_own_divides_them_without_the_job_s_other_gpus() -> None:
    """srun --exact gives it 16 of the job's 64 CPUs, and one of its two GPUs on that node."""
    facts = {"job": "0,1", "visible": "0", "cpuset": "48-63", "step_gpus": "1"}
    assert place(**facts) == "48-55"
    assert place(**facts, job_cpus="64") == "48-63"
    assert place(**facts, job_cpus="16") == "48-55"  # it is all of the job's: another may overlap
    both = {**facts, "visible": "0,1", "step_gpus": "2", "ranks": "2", "rank": "1"}
    assert place(**both, job_cpus="64") == "56-63"
    bound = {**facts, "step_gpus": "2", "ranks": "2", "rank": "0", "gpu_bind": "gpu:per_task:1"}
    assert place(**bound, job_cpus="64") == "48-55"  # which others the step has is not known


def test_what_slurm_says_of_a_step_leads_no_caller_out_of_its_cpuset() -> None:
    masks = ",".join(map(format_mask, (range(64), range(64, 128))))
    facts = {"ranks": "2", "rank": "0", "cpu_bind": masks}
    reply = ask(DGX, mask="0-63", may_use="0-63", **facts)
    assert reply.allowed == frozenset(range(64))


def test_a_mode_that_goes_by_ranks_deals_out_the_cores_to_all_of_them() -> None:
    facts = {"job": "0,1", "ranks": "4", "gpu_bind": "gpu:single:2", "step_gpus": "2"}
    replies = [
        ask(DGX, mode="even", rank=f"{rank}", visible=f"{rank // 2}", **facts) for rank in range(4)
    ]
    assert [len(reply.cpus) for reply in replies] == [64] * 4
    assert not any(one.cpus & other.cpus for one, other in combinations(replies, 2))
