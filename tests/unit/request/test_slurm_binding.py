"""Which tasks of a Slurm step have the same GPUs, and on which CPUs they are planned."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd import machines
from affinityd.cpuset import CpuSet, format_list, format_mask, parse_list
from affinityd.request.environment import first_answer
from affinityd.request.parameters import Request
from affinityd.request.query import parse_query
from affinityd.request.reply import Reply
from affinityd.request.resolve import answer
from affinityd.request.slurm_binding import cpus_of_step, deals_of
from affinityd.request.step.slots import slots
from affinityd.topology.model import Node, Topology
from tests.support.asking import ask, codes, cpulists, lists, try_to_ask
from tests.support.machines.by_hand import made
from tests.support.tables import rows, words

DGX = machines.load("dgx-a100")  # GPUs in pairs on nodes 3, 1, 7, 5
NO_CPU: CpuSet = frozenset()
Slot = tuple[int, int]  #: a task's number on its GPUs, and of how many


def overlap(replies: Iterable[Reply]) -> bool:
    """Return whether a CPU is in several plans."""
    return any(one.cpus & other.cpus for one, other in combinations(replies, 2))


def slot_of(request: Request, seen: int, mask: CpuSet = NO_CPU) -> Slot | None:
    dealt = deals_of(request, mask, seen=seen)
    return None if dealt is None else slots(dealt, request.ranks or 1)[(request.rank or (0,))[0]]


@pytest.mark.parametrize(
    ("bind", "tasks", "gpus", "expected"),
    rows("""
nothing is said: all see all     |                      | 2 | 2 | - -
CPUs are not bound               | gpu:closest          | 2 | 2 | - -
one of its own each              | gpu:per_task:1       | 2 | 2 | 0/1 0/1
two of its own each              | gpu:per_task:2       | 2 | 4 | 0/1 0/1
by turns, round again            | gpu:single:1         | 4 | 2 | 0/2 0/2 1/2 1/2
two neighbors                    | gpu:single:2         | 4 | 2 | 0/2 1/2 0/2 1/2
the last has no neighbor         | gpu:single:2         | 3 | 2 | 0/2 1/2 0/2
of unknown many GPUs             | gpu:single:1         | 2 | 0 | 0/2 1/2
what Slurm would not take        | gpu:single:0         | 2 | 2 | 0/2 1/2
a map the other way round        | gpu:map_gpu:1,0      | 2 | 2 | 0/1 0/1
a map with a multiplier          | gpu:map_gpu:0*2,1    | 3 | 2 | 0/2 1/2 0/2
a map that begins again          | gpu:map_gpu:0,1      | 3 | 2 | 0/2 0/2 1/2
masks that are apart             | gpu:mask_gpu:0x1,2   | 2 | 2 | 0/1 0/1
masks that overlap               | gpu:mask_gpu:3,1     | 2 | 2 | 0/2 1/2
and it tells the user            | gpu:verbose,per_task:1 | 2 | 2 | 0/1 0/1
and it tells, in short           | gpu:v,per_task:1     | 2 | 2 | 0/1 0/1
beside others                    | gres/nic:none+gres/gpu:per_task:1 | 2 | 2 | 0/1 0/1
a word not known here            | gpu:of_the_future:1  | 2 | 2 | 0/2 1/2
"""),
)
def test_tasks_on_the_same_gpus_have_a_slot_each(
    bind: str, tasks: str, gpus: str, expected: str
) -> None:
    seen = 2 if "per_task:2" in bind else 1
    found = [
        slot_of(Request(gpu_bind=bind, step_gpus=int(gpus), rank=(it,), ranks=int(tasks)), seen)
        for it in range(int(tasks))
    ]
    assert " ".join("-" if it is None else f"{it[0]}/{it[1]}" for it in found) == expected


def test_a_binding_that_is_not_in_force_binds_no_task() -> None:
    """Slurm 22.05 says per_task of --gpus-per-task=TYPE:1, and binds nothing."""
    for bind in ("gpu:per_task:a:1", "gpu:single:1", "gpu:map_gpu:1,0", "gpu:mask_gpu:1,2"):
        assert slot_of(Request(gpu_bind=bind, step_gpus=2, rank=(1,), ranks=2), 2) is None


@pytest.mark.parametrize(
    ("bind", "masks", "mask", "task", "expected"),
    [
        ("", "0 1", "1", 1, ("0-1", None)),  # all of the step's
        ("", "0 1", "4", 1, ("4", None)),  # masks of another step
        ("", "0 1", "1", 0, ("1", None)),  # another task's slice
        ("", "0-1 2", "1", 0, ("0-2", None)),  # less than its slice
        ("gpu:per_task:1", "0 1", "0", 0, ("0-1", (0, 1))),  # with its own GPU
        ("gpu:closest", "0 1", "0", 0, ("0", (0, 2))),  # GPUs that are near its slice
        ("gpu:closest", "0-1 0-1", "0-1", 1, ("0-1", (1, 3))),  # and a twin
    ],
)
def test_a_task_may_leave_its_slice_unless_its_gpus_were_chosen_by_it(
    bind: str, masks: str, mask: str, task: int, expected: tuple[str, Slot | None]
) -> None:
    slices = tuple(map(parse_list, masks.split()))
    request = Request(gpu_bind=bind, cpu_bind=slices, rank=(task,), ranks=3)
    slot = slot_of(request, 1, parse_list(mask))
    assert (format_list(cpus_of_step(request, parse_list(mask))), slot) == expected


# What follows for a plan.


def seen(bind: str, task: int, gpus: list[str], cpus: Container[int] | None = None) -> list[str]:
    """Return the GPUs that srun(1) says a task sees, of those that its step has.

    `cpus` is its slice, where gres.conf names the cores of each GPU's node.
    """
    kind, _, argument = bind.removeprefix("gpu:").partition(":")
    entries = argument.split(",")
    if kind == "per_task":
        return gpus[task * int(argument) : (task + 1) * int(argument)]
    if kind == "single":
        nodes = {gpu: DGX.cpus_of_node(DGX.gpus[int(gpu)].numa_node) for gpu in gpus}
        near = [it for it in gpus if cpus is None or any(cpu in cpus for cpu in nodes[it])]
        near = near or gpus[:1]
        return [near[task // int(argument) % len(near)]]
    if kind == "map_gpu":
        return [gpus[int(entries[task % len(entries)])]]
    if kind == "mask_gpu":
        mask = int(entries[task % len(entries)], 16)
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
    st.none() | st.permutations(range(16)),
    st.booleans(),
)
def test_tasks_of_a_job_never_overlap_whatever_each_one_sees(
    step: tuple[str, list[str], int],
    mode: str,
    scope: str,
    places: list[int] | None,
    has_cores: bool,
) -> None:
    """Its slices are 8 or 32 CPUs of any place: near to the task's GPU, or partly, or not."""
    bind, gpus, tasks = step
    is_sliced, width = places is not None, 8 if places and places[0] % 2 else 32
    starts = [width * (place % (256 // width)) for place in places or range(16)]
    starts = list(dict.fromkeys(starts))[:tasks]
    slices = [range(start, start + width) for start in starts]
    facts = {"gpu_bind": bind, "step_gpus": f"{len(gpus)}", "job": ",".join(gpus)}
    facts |= {"ranks": f"{tasks}", "mode": mode, "scope": scope}
    if is_sliced:
        facts["cpu_bind"] = ",".join(map(format_mask, slices))
    replies = []
    for task in range(tasks):
        near = slices[task] if is_sliced else range(256)
        sees = seen(bind, task, gpus, near if has_cores else None)
        mine = {"rank": f"{task}", "visible": ",".join(sees), "cpuset": format_list(near)}
        replies.append(try_to_ask(DGX, **mine, **facts))
    # The others are more tasks than there are cores near a GPU.
    assert not overlap(reply for reply in replies if isinstance(reply, Reply))


@pytest.mark.parametrize(
    ("bind", "masks"),
    [
        ("map_gpu:" + ",".join(["0*4096"] * 4000), "0x1"),
        ("mask_gpu:" + "f" * 32000, "0x1"),
        ("single:1", ",".join(format_mask([cpu]) for cpu in range(256))),
        ("closest", ",".join(["0xff"] * 256)),
        (f"single:{10**7}", ""),
        (f"per_task:{10**7}", ""),
    ],
    ids=["map", "mask", "many masks", "equal masks", "single", "per task"],
)
@pytest.mark.parametrize("new", ["", "gres/"])
def test_what_is_huge_is_read_in_no_time(bind: str, masks: str, new: str) -> None:
    """In CPU time; only an enemy of the daemon sends it."""
    facts = {"ranks": "256", "rank": "255", "visible": "0", "cpuset": "255"}
    job = ",".join(f"{gpu % 8}" for gpu in range(256))
    start = time.process_time()
    for gpus in ("256", f"{10**7}"):
        of_step = {"step_gpus": gpus, "gpu_bind": f"{new}gpu:{bind}"}
        try_to_ask(DGX, **facts, **of_step, job=job, **({"cpu_bind": masks} if masks else {}))
        try_to_ask(DGX, gpus="0", rank="0", ranks="1", **of_step)
    assert time.process_time() - start < 2


def test_modes_that_share_take_any_number_of_slots() -> None:
    """96 tasks on 8 GPUs: 768 slots, of which none is needed."""
    facts = words(
        "ranks=96 rank=95 job=0,1,2,3,4,5,6,7 gpu_bind=gpu:mask_gpu:0xff,0x7f visible=0,1,2,3,4,5,6"
    )
    assert len(ask(DGX, mode="node", **facts).ranks) == 7
    refused = try_to_ask(DGX, mode="exclusive", **facts)
    assert "are too many; the most is 256" in str(refused)


def masks(*slices: str) -> str:
    return "cpu_bind=" + ",".join(format_mask(parse_list(it)) for it in slices)


#: Halves of a package, and slices that are near to neither GPU 0 nor GPU 2.
HALVES, FAR = masks("0-63", "64-127"), masks("0-7", "8-15")
OF_TWO, OF_FOUR, ONE_OF_TWO = "job=0,1 ranks=2", "job=0,1,2,3 ranks=4", "job=0,1 visible=0"


@pytest.mark.parametrize(
    ("asked", "expected"),
    rows(f"""
the step's cores, not a slice's | {OF_TWO} gpu_bind=gpu:per_task:1 {HALVES} rank=0 visible=0 \
cpuset=0-63 | 48-55
Slurm may give both GPU 0 | job=0,2 ranks=2 step_gpus=2 gpu_bind=gpu:single:1 visible=0 {FAR} \
rank=0 cpuset=0-7 | 0-3
two on one GPU divide its share | {OF_TWO} gpu_bind=gpu:map_gpu:1,1 visible=1 rank=0 | 56-59,184-187
who sees all takes one  | {OF_FOUR} visible=0,1,2,3 rank=0             | 48-55,176-183
several GPUs     | job=0,1,2,3 ranks=2 gpu_bind=gpu:per_task:2 rank=1 visible=2,3 | \
16-23,144-151 24-31,152-159
a step           | {ONE_OF_TWO}                                        | 48-55,176-183
of one GPU       | {ONE_OF_TWO} cpuset=48-63 step_gpus=1               | 48-55
srun --exact, 16 of 64 CPUs | {ONE_OF_TWO} cpuset=48-63 step_gpus=1 job_cpus=64 | 48-63
all of the job's CPUs | {ONE_OF_TWO} cpuset=48-63 step_gpus=1 job_cpus=16 | 48-55
--exact, two tasks | {OF_TWO} visible=0,1 cpuset=48-63 step_gpus=2 rank=1 job_cpus=64 | 56-63
its other GPUs are not known | {OF_TWO} visible=0 cpuset=48-63 step_gpus=2 rank=0 job_cpus=64 \
gpu_bind=gpu:per_task:1 | 48-55
"""),
)
def test_tasks_of_a_job_divide_its_cores(asked: str, expected: str) -> None:
    """GPUs 0 and 1 are on node 3, whose CPUs are 48-63 and 176-191."""
    assert lists(DGX, f"mode=unique_contiguous {asked}") == expected


def of_task_prolog(environ: Mapping[str, str], mask: CpuSet) -> Reply:
    variables = {**environ, "AFFINITYD_MODE": "exclusive"}
    passed = [("env", f"{name}={text}") for name, text in variables.items()]
    requests = parse_query([("cpuset", format_list(mask)), *passed])
    return first_answer(requests, lambda request: answer(Node(DGX), request))


@pytest.mark.parametrize(
    ("slices", "sees"),
    rows("""
two to a slice     | 3 1 3 1         | 0,1 2,3 0,1 2,3
three to a slice   | 3 3 3 1         | 0,1 0,1 0,1 2,3
all on all         | 0-7 0-7 0-7 0-7 | 0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3
CPUs are not bound |                 | 0,1 0,1 0,1 0,1
"""),
)
def test_tasks_never_overlap_whose_gpus_were_chosen_by_their_slices(slices: str, sees: str) -> None:
    """--gpu-bind=closest: tasks of one slice, of these nodes, see the same GPUs.

    Each is planned by itself.
    """
    nodes = [frozenset().union(*map(DGX.cpus_of_node, parse_list(it))) for it in slices.split()]
    step = words(
        "SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_GTIDS=0,1,2,3 SLURM_GPUS_ON_NODE=4 "
        f"SLURMD_TRES_BIND=gpu:closest SLURM_CPU_BIND_LIST={','.join(map(format_mask, nodes))}"
    )
    replies = [
        of_task_prolog({**step, "SLURM_LOCALID": f"{task}", "CUDA_VISIBLE_DEVICES": gpus}, mask)
        for task, gpus, mask in zip(range(4), sees.split(), nodes or [DGX.online] * 4, strict=True)
    ]
    assert not overlap(replies)
    assert {reply.locality for reply in replies} == {"local"}


SMALL = made({0: "0-3", 1: "4-7"}, gpus=[0, 0, 1, 1])
H100 = machines.load("dgx-h100")  # 56 cores a package, and four GPUs on each


def slices_of(topology: Topology, tasks: int) -> list[CpuSet]:
    """Return the cores of each task, by turns from each package, as Slurm binds tasks."""
    nodes = [[it.cpus for it in topology.cores if it.node == node] for node in (0, 1)]
    each = len(topology.cores) // tasks
    parts = [cores[start : start + each] for cores in nodes for start in range(0, len(cores), each)]
    halves = zip(parts[: tasks // 2], parts[tasks // 2 :], strict=True)
    turns = [part for pair in halves for part in pair]
    return [frozenset().union(*cores) for cores in turns]


@pytest.mark.parametrize("mode", ["exclusive", "unique-contiguous", "unique-interleaved"])
@pytest.mark.parametrize("bind", ["gpu:single:2", "gpu:closest"])
@pytest.mark.parametrize(("topology", "tasks", "cpus"), [(SMALL, 8, 1), (H100, 16, 14)])
def test_a_task_keeps_the_slice_by_which_slurm_chose_its_gpu(
    topology: Topology, tasks: int, cpus: int, bind: str, mode: str
) -> None:
    slices, gpus = slices_of(topology, tasks), len(topology.gpus)
    for task, slice_ in enumerate(slices):
        first = task % 2 * gpus // 2  # of the GPUs near the slice
        near = [first + it for it in range(gpus // 2)]
        sees = near if "closest" in bind else near[task // 2 % len(near) :][:1]
        step = f"job={','.join(map(str, range(gpus)))} step_gpus={gpus} ranks={tasks} rank={task}"
        facts = words(f"{step} cpuset={format_list(slice_)} mode={mode} gpu_bind={bind}")
        facts |= {"cpu_bind": ",".join(map(format_mask, slices))}
        reply = ask(topology, **facts, visible=",".join(map(str, sees)))
        assert (reply.cpus, reply.locality, len(slice_)) == (slice_, "local", cpus)


def test_where_cores_are_too_few_to_be_divided_each_task_keeps_its_slice() -> None:
    """Three tasks that all see two GPUs of one node: two more than each has cores for."""
    node = made({0: "0-2", 1: "3-5"}, gpus=[0, 0])
    step = words("job=0,1 step_gpus=2 ranks=3 visible=0,1 mode=exclusive cpu_bind=0x1,0x2,0x8")
    near = ask(node, **step, rank="1", cpuset="1")
    assert (cpulists(near), near.locality) == (["1"], "local")
    far = ask(node, **step, rank="2", cpuset="3")
    assert (cpulists(far), far.locality, codes(far)) == (["3"], "remote", ["remote_home"])


@pytest.mark.parametrize(
    ("sees", "cores"), [("0", "48,176"), ("0,1", "48-49,176-177"), ("0,1,2", "48,176")]
)
def test_a_task_with_several_gpus_in_its_slice_has_a_core_for_each(sees: str, cores: str) -> None:
    """With fewer cores than GPUs, one for all of them."""
    slices = [parse_list(it) for it in ("48-49,176-177", "50-51,178-179")]
    facts = words(f"ranks=2 rank=0 gpu_bind=gpu:closest job={sees} mode=single_unique")
    facts |= {"cpu_bind": ",".join(map(format_mask, slices)), "visible": sees}
    reply = ask(DGX, **facts, cpuset=format_list(slices[0]))
    assert format_list(reply.cpus) == cores


def test_what_slurm_says_of_a_step_leads_no_caller_out_of_its_cpuset() -> None:
    facts = words(f"ranks=2 rank=0 {masks('0-63', '64-127')}")
    assert ask(DGX, mask="0-63", may_use="0-63", **facts).allowed == frozenset(range(64))


def test_a_mode_that_goes_by_ranks_deals_out_the_cores_to_all_of_them() -> None:
    facts = words("mode=even job=0,1 ranks=4 gpu_bind=gpu:single:2 step_gpus=2")
    replies = [ask(DGX, rank=f"{it}", visible=f"{it // 2}", **facts) for it in range(4)]
    assert [len(reply.cpus) for reply in replies] == [64] * 4
    assert not overlap(replies)
