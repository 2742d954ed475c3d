"""The tasks of Slurm's steps: each plans from its own facts, and takes no other task's CPUs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd import machines
from affinityd.cpuset import CpuSet, format_list, format_mask, parse_list
from affinityd.errors import BoundError, UnsatisfiableError
from affinityd.request.parameters import parse_query
from affinityd.request.resolve import Caller, Reply, answer
from affinityd.topology.model import Node, Topology
from tests.support.asking import codes
from tests.support.tables import cases, rows, words

UNIQUE = ("unique_contiguous", "unique_interleaved", "exclusive", "single_unique")
VARIABLES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}
VARIABLES["huawei"] = "ASCEND_RT_VISIBLE_DEVICES"

topology_of = cache(machines.load)


@dataclass(frozen=True)
class Step:
    """A step that has all GPUs of its job."""

    topology: Topology
    job: Sequence[int]
    seen: Sequence[Sequence[int]]  #: the GPUs that each task sees
    slices: Sequence[CpuSet]  #: one for each task, or a single one if Slurm bound no task
    mode: str = "node"
    is_noted: bool = True
    variables: str = ""

    def reply(self, task: int) -> Reply:
        tasks, step = len(self.seen), frozenset[int]().union(*self.slices)
        is_bound = len(self.slices) > 1
        environ = {
            "SLURM_JOB_ID": "9",
            "SLURM_STEP_ID": "0",
            "SLURM_LOCALID": f"{task}",
            "SLURM_GTIDS": ",".join(map(str, range(tasks))),
            "SLURM_GPUS_ON_NODE": f"{len(self.job)}",
            "SLURM_JOB_CPUS_PER_NODE": f"{len(step)}",
            VARIABLES[self.topology.gpus[0].vendor]: ",".join(map(str, self.seen[task])),
            "AFFINITYD_MODE": self.mode,
            **words(self.variables),
        }
        if is_bound:
            environ["SLURM_CPU_BIND_LIST"] = ",".join(map(format_mask, self.slices))
        pairs = [("cpuset", format_list(self.slices[task] if is_bound else step))]
        if self.is_noted:
            pairs.append(("job", ",".join(map(str, self.job))))
        pairs += [("env", f"{name}={text}") for name, text in environ.items()]
        return answer(Node(self.topology), parse_query(pairs))

    @property
    def replies(self) -> list[Reply]:
        return [self.reply(task) for task in range(len(self.seen))]


def step(described: str) -> Step:
    """Return a step on a DGX A100, whose GPUs are in pairs on nodes 3, 1, 7 and 5.

    The text is like `job=0-1 seen=0,1/0,1 slices=0-7/8-15 mode=node`; variables may follow.
    """
    facts = words(described)
    seen = [[*map(int, gpus.split(","))] for gpus in facts.pop("seen").split("/")]
    return Step(
        topology_of("dgx-a100"),
        job=sorted(parse_list(facts.pop("job"))),
        seen=seen,
        slices=[parse_list(cpus) for cpus in facts.pop("slices").split("/")],
        mode=facts.pop("mode", "node"),
        is_noted=facts.pop("note", "yes") == "yes",
        variables=" ".join(f"{name}={text}" for name, text in facts.items()),
    )


BOTH = "slices=16-23/48-55"  #: eight cores of node 1 and of node 3


@pytest.mark.parametrize(("described", "expected"), cases("slurm_steps.tsv"))
def test_each_task_of_a_step_gets_these_cpus(described: str, expected: str) -> None:
    replies = step(described).replies
    assert " ".join(format_list(reply.cpus) for reply in replies) == expected
    assert all("not_unique" not in codes(reply) for reply in replies)


@pytest.mark.parametrize(
    ("described", "expected"),
    rows("""
fewer CPUs than requested | job=0-3 seen=0/1 slices=48-55 SLURM_CPUS_PER_TASK=4 mode=exclusive \
| 48-55 48-55
too few cores for its tasks | job=0 seen=0/0/0 slices=48-49 mode=exclusive | 48-49 48-49 48-49
"""),
)
def test_if_a_unique_mode_is_impossible_mode_node_and_a_warning_replace_it(
    described: str, expected: str
) -> None:
    replies = step(described).replies
    assert " ".join(format_list(reply.cpus) for reply in replies) == expected
    assert any("not_unique" in codes(reply) for reply in replies)


@pytest.mark.parametrize(
    ("described", "expected", "part"),
    rows(f"""
CPUs that are near no GPU of the job | job=0-1 seen=0/1 slices=16-23,48-55 | idle_cpus | 16-23
no warning, as all CPUs are near a GPU | job=0,2 seen=0/2 slices=16-23,48-55 | |
the GPU of a task is assumed | job=0,2 seen=0,2/0,2 {BOTH} | assumed_gpu | the same 2 GPUs; task 1
a slice without near CPUs | job=0-1 seen=0/1 slices=16-19/20-23 | remote_home | CPUs 20-23 is near
"""),
)
def test_a_task_gets_these_reasons_and_warnings(described: str, expected: str, part: str) -> None:
    for reply in step(described).replies:
        assert codes(reply) == expected.split()
    assert part in " ".join(warning.message for warning in reply.warnings)


def test_cores_of_the_step_that_no_task_has_are_idle() -> None:
    caller = Caller(parse_list("48-51"), parse_list("48-63"))
    pairs = [("cpuset", "48-51"), ("env", "SLURM_CPU_BIND_LIST=0xf000000000000,0xf0000000000000")]
    pairs += [("env", f"{name}={text}") for name, text in TASK_OF_TWO.items()]
    reply = answer(Node(topology_of("dgx-a100"), parse_list("63")), parse_query(pairs), caller)
    (idle,) = (warning for warning in reply.warnings if warning.code == "idle_cpus")
    assert "7 CPUs of this step (56-62)" in idle.message


@pytest.mark.parametrize(
    ("mask", "variables", "why"),
    rows("""
a narrowed mask | 48-49 | SLURM_CPU_BIND_LIST=0xf000000000000,0xf0000000000000 | narrowed to 48-49
a narrowed pin | 48 | AFFINITYD_CPULIST=48-49 SLURM_CPU_BIND_LIST=0x3,0xc | narrowed to 48
few masks | 48-51 | SLURM_CPU_BIND_LIST=0xf000000000000,0xf SLURM_GTIDS=0,1,2 | 2 masks for 3 tasks
a listed mask outside the cpuset | 48-51 | SLURM_CPU_BIND_LIST=0xf000000000000,0xf | has CPUs 0-3,
the tasks are unknown | 48-51 | SLURM_CPU_BIND_LIST=0x3,0xc SLURM_GTIDS= | neither SLURM_GTIDS
the user bound the task | 48-51 | SLURM_CPU_BIND_TYPE=map_cpu: | --cpu-bind=map_cpu,
the user bound its memory | 48-51 | SLURM_MEM_BIND_TYPE=quiet,local | --mem-bind=quiet,local
"""),
)
def test_a_mask_that_slurm_did_not_choose_stays(mask: str, variables: str, why: str) -> None:
    environ = {**TASK_OF_TWO, **words(variables)}
    pairs = [("cpuset", mask), *(("env", f"{name}={text}") for name, text in environ.items())]
    caller = Caller(parse_list(mask), parse_list("48-63"))
    with pytest.raises(BoundError, match=why):
        answer(Node(topology_of("dgx-a100")), parse_query(pairs), caller)


def test_a_wider_allotment_of_an_outer_step_widens_no_slice() -> None:
    variables = "AFFINITYD_CPULIST=48-51 AFFINITYD_ALLOWED=48-63"
    environ = {
        **TASK_OF_TWO,
        **words(f"{variables} SLURM_CPU_BIND_LIST=0xf000000000000,0xf0000000000000"),
    }
    pairs = [("cpuset", "48-51"), *(("env", f"{name}={text}") for name, text in environ.items())]
    reply = answer(Node(topology_of("dgx-a100")), parse_query(pairs))
    assert format_list(reply.cpus) == "48-51"


def test_a_task_that_sees_more_gpus_than_its_step_has_stays() -> None:
    """It is not known which of the GPUs that the task sees are the step's."""
    described = f"job=0,2 note=no seen=0,1,2,3/0,1,2,3 {BOTH}"
    for task in (0, 1):
        with pytest.raises(UnsatisfiableError, match=r"which 2 of the 4 visible GPUs"):
            step(described).reply(task)


def test_no_task_exchanges_cpus_if_the_gpus_of_some_tasks_are_uncertain() -> None:
    """CUDA may number the GPUs after the lost GPU differently: tasks keep their own CPUs."""
    lost = replace(topology_of("dgx-a100").gpus[2], minor=None)
    gpus = [lost if gpu.index == 2 else gpu for gpu in topology_of("dgx-a100").gpus]
    slices = "slices=16-19/48-51/20-23/52-55"  #: GPUs 0 and 1 are near 48-63, 2 and 3 near 16-31
    whole = step(f"job=0-3 seen=0,1,2,3/0,1,2,3/0,1,2,3/0,1,2,3 {slices}")
    assert [format_list(reply.cpus) for reply in whole.replies] == [
        "52-55",
        "48-51",
        "20-23",
        "16-19",
    ]
    part = replace(whole, topology=replace(whole.topology, gpus=tuple(gpus)))
    assert format_list(part.reply(0).cpus) == "16-19"
    with pytest.raises(UnsatisfiableError, match="does not list GPU 2"):
        part.reply(3)


def test_masks_are_compared_without_offline_cpus() -> None:
    dgx = topology_of("dgx-a100")
    topology = replace(dgx, cores=tuple(core for core in dgx.cores if core.cpus[0] != 51))
    variables = "SLURM_CPU_BIND_LIST=0xf000000000000,0xf0000000000000"
    environ = {**TASK_OF_TWO, **words(variables)}
    pairs = [("cpuset", "48-51"), *(("env", f"{name}={text}") for name, text in environ.items())]
    reply = answer(Node(topology), parse_query(pairs))
    assert format_list(reply.cpus) == "48-50"
    assert "Slurm bound the task to CPUs 48-50" in reply.ranks[0].reasons


TASK_OF_TWO = words("SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_GTIDS=0,1")


@st.composite
def steps(draw: st.DrawFn, modes: Sequence[str]) -> Step:
    """Draw a step: either all tasks see all GPUs, or each sees as many of its own."""
    topology = topology_of(draw(st.sampled_from(machines.NAMES)))
    gpus = st.sampled_from(range(len(topology.gpus)))
    job = sorted(draw(st.sets(gpus, min_size=1)))
    tasks, has_own = draw(st.integers(1, 8)), draw(st.booleans())
    if has_own:
        tasks = draw(st.sampled_from([number for number in (1, 2, 4, 8) if len(job) % number == 0]))
        each = len(job) // tasks
        seen = [job[task * each : (task + 1) * each] for task in range(tasks)]
    else:
        seen = [job] * tasks
    cores = draw(st.permutations(topology.cores))[: tasks * draw(st.integers(1, 6))]
    if draw(st.booleans()):
        cores.sort(key=lambda core: core.cpus)
    each = len(cores) // tasks
    dealt = [cores[task * each : (task + 1) * each] for task in range(tasks)] if each else [cores]
    slices = [frozenset(cpu for core in its for cpu in core.cpus) for its in dealt]
    if draw(st.booleans()):
        slices = [frozenset[int]().union(*slices)]
    return Step(topology, job, seen, slices, draw(st.sampled_from(modes)), draw(st.booleans()))


@given(steps(UNIQUE))
def test_in_a_unique_mode_no_two_tasks_with_gpus_of_their_own_share_a_core(drawn: Step) -> None:
    """Tasks with a warning may share cores."""
    if len(drawn.seen) == 1:
        return
    first = {cpu: core.cpus[0] for core in drawn.topology.cores for cpu in core.cpus}
    apart = [
        {first[cpu] for cpu in reply.cpus}
        for reply in drawn.replies
        if "not_unique" not in codes(reply)
    ]
    assert all(one.isdisjoint(other) for one, other in combinations(apart, 2))


@given(steps([*UNIQUE, "node", "all", "socket", "even"]))
def test_tasks_with_slices_keep_their_number_of_cpus_and_share_no_cpu(
    drawn: Step,
) -> None:
    """Only single_unique gives fewer: one core of the slice."""
    replies = drawn.replies
    if len(drawn.slices) == 1 or len(drawn.seen) == 1:
        return
    for reply, own in zip(replies, drawn.slices, strict=True):
        assert len(reply.cpus) == len(own) or drawn.mode == "single_unique"
    assert sum(len(reply.cpus) for reply in replies) == len(frozenset().union(*_cpus(replies)))


@given(steps(["node"]))
def test_tasks_of_one_home_get_as_many_cpus_as_there_are_tasks(drawn: Step) -> None:
    """Without -c Slurm gives each task one CPU."""
    replies = drawn.replies
    homes = [{rank.home_node for rank in reply.ranks} for reply in replies]
    for task, reply in enumerate(replies):
        step_cpus = frozenset[int]().union(*drawn.slices)
        assert len(reply.cpus) >= min(homes.count(homes[task]), len(step_cpus) // len(drawn.seen))


def _cpus(replies: Sequence[Reply]) -> list[CpuSet]:
    return [reply.cpus for reply in replies]
