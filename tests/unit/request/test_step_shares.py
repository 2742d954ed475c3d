"""The shares of tasks beside each other, on random steps, as each release of Slurm deals GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from affinityd import machines
from affinityd.cpuset import CpuSet, format_list, format_mask, parse_list
from affinityd.request.ranks import cores_in_gres_conf
from affinityd.request.reply import Reply
from affinityd.request.step.deals import deals, parse_binding
from affinityd.request.step.shares import Dealt, StepShares
from affinityd.topology.model import Topology
from affinityd.topology.nearness import vicinity
from tests.support.asking import ask
from tests.support.machines.by_hand import made

MODES = ("exclusive", "unique-contiguous", "unique-interleaved")
MACHINES = (
    made({0: "0-3", 1: "4-7"}, gpus=[0, 0, 1, 1]),
    made({0: "0-7", 1: "8-15"}, gpus=[0, 1]),
    machines.load("dgx-a100"),
    machines.load("dgx-h100"),
)


@dataclass(frozen=True)
class Step:
    """A step, and what Slurm gave each of its tasks."""

    topology: Topology
    bind: str
    mode: str
    slices: list[CpuSet]
    gpus: list[list[int]]  #: of each task, by their indices

    def ask(self, task: int) -> Reply:
        """Return the plan of a task, which knows its own GPUs only."""
        every = range(len(self.topology.gpus))
        facts = {} if self.bind == "gpu:none" else {"gpu_bind": self.bind}
        return ask(
            self.topology,
            mode=self.mode,
            job=",".join(map(str, every)),
            step_gpus=f"{len(every)}",
            ranks=f"{len(self.slices)}",
            rank=f"{task}",
            cpu_bind=",".join(map(format_mask, self.slices)),
            cpuset=format_list(self.slices[task]),
            visible=",".join(map(str, self.gpus[task])),
            **facts,
        )

    def is_near(self, task: int) -> bool:
        """Return whether a task's slice is near each GPU that the task uses."""
        shared = self.gpus[task] if self.bind != "gpu:none" else [task % len(self.topology.gpus)]
        near = [vicinity(self.topology, [self.topology.gpus[it]]).cpus for it in shared]
        own = self.slices[task]
        is_own = self.slices.count(own) == 1
        return is_own and own <= frozenset().union(*near) and not any(map(own.isdisjoint, near))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Return a step whose tasks have slices of their own, or share some."""
    topology = draw(st.sampled_from(MACHINES))
    cores = [core.cpus for core in topology.cores]
    tasks = draw(st.integers(2, min(16, len(cores))))
    width = draw(st.integers(1, len(cores) // tasks))
    each = len(cores) // tasks
    in_order = range(0, tasks * each, each)
    by_turns = [*in_order[::2], *in_order[1::2]]
    starts = draw(st.sampled_from([in_order, by_turns]) | st.permutations(in_order))
    slices = [frozenset(chain(*cores[start : start + width])) for start in starts]
    if width > 1 and draw(st.booleans()):
        slices[0] = slices[1]
    bind, gpus = draw(bindings(topology, slices))
    return Step(topology, bind, draw(st.sampled_from(MODES)), slices, gpus)


@st.composite
def bindings(
    draw: st.DrawFn, topology: Topology, slices: list[CpuSet]
) -> tuple[str, list[list[int]]]:
    """Return a binding, and the GPUs that a release of Slurm gives by it."""
    count, tasks = len(topology.gpus), len(slices)
    place = st.integers(0, count - 1)
    most = -(-tasks // count)
    kinds = [
        st.just("gpu:none"),
        st.integers(most, most + 1).map("single:{}".format),
        st.lists(place, min_size=1).map(lambda it: "map_gpu:" + ",".join(map(str, it))),
        st.lists(st.integers(1, 2**count - 1), min_size=1).map(
            lambda it: "mask_gpu:" + ",".join(map(hex, it))
        ),
    ]
    if tasks <= count:
        kinds.append(st.integers(1, count // tasks).map("per_task:{}".format))
    kind = draw(st.one_of(kinds))
    if kind == "gpu:none":
        return kind, [list(range(count))] * tasks
    bind = draw(st.sampled_from(["gpu:", "gres/gpu:"])) + kind
    ways = cores_in_gres_conf(topology, topology.gpus)
    deal = draw(st.sampled_from(deals(parse_binding(bind), slices, ways, range(count))))
    return bind, [sorted(its) for its in deal]


@given(steps())
@settings(max_examples=max(300, settings().max_examples))  # few have tasks that disagree
def test_a_near_slice_is_kept_no_plan_is_lost_and_none_overlap(step: Step) -> None:
    replies = [step.ask(task) for task in range(len(step.slices))]  # none raises
    for task, (slice_, reply) in enumerate(zip(step.slices, replies, strict=True)):
        if step.is_near(task):
            assert (reply.cpus, reply.locality) == (slice_, "local")
    assert not any(one.cpus & other.cpus for one, other in combinations(replies, 2))


def test_where_it_is_known_which_slices_are_kept_the_rest_is_divided_anew() -> None:
    """The third task keeps CPU 2; it leaves its part of CPUs 0-5 to the others."""
    node = made({0: "0-5", 1: "6-11"}, gpus=[0, 0, 0])
    slices, gpus = [*map(parse_list, ("1,3-7", "0,8", "2"))], [[0], [1], [2]]
    step = Step(node, "gpu:per_task:1", "exclusive", slices, gpus)
    assert [format_list(step.ask(task).cpus) for task in range(3)] == ["0-1,3", "4-5", "2"]


def test_what_is_in_no_part_goes_to_the_task_on_whose_slice_it_is() -> None:
    """Of CPUs 0-5, near all GPUs, two are each task's part; the third task keeps CPU 2."""
    slices, near = [*map(parse_list, ("1,3-7", "0,8", "2"))], parse_list("0-5")
    deal = [Dealt(frozenset({task}), frozenset({task})) for task in range(3)]
    step = StepShares(
        own=slices,
        last=slices,
        deals=[deal],
        near=lambda _: [near],
        part=lambda its: frozenset(2 * it + more for it in its.ranks for more in (0, 1)),
        suffices=bool,
    )
    shares = [format_list(step.share(task, deal[task])) for task in range(3)]
    assert shares == ["0-1,4-5", "3", "2"]


def test_a_task_whose_gpus_are_the_closest_has_all_near_cpus_of_its_slice() -> None:
    """Of two slices that straddle nodes: the other GPUs of the job have no part in them."""
    dgx = machines.load("dgx-a100")
    slices = [*map(parse_list, ("40-55", "56-71"))]
    step = Step(dgx, "gpu:closest", "exclusive", slices, [[0, 1], [0, 1]])
    assert [format_list(step.ask(task).cpus) for task in range(2)] == ["48-55", "56-63"]


def test_a_gpu_that_no_gres_conf_known_here_gives_leaves_a_task_its_slice() -> None:
    """It finds itself on GPU 1, on which the other one is by the map: that keeps CPUs 0-3."""
    node = made({0: "0-3", 1: "4-7"}, gpus=[0, 0])
    slices = [*map(parse_list, ("4-7", "0-3"))]
    step = Step(node, "gpu:map_gpu:0,1", "exclusive", slices, [[1], [1]])
    replies = [step.ask(task) for task in range(2)]
    assert [(format_list(it.cpus), it.locality) for it in replies] == [
        ("4-7", "remote"),
        ("0-3", "local"),
    ]
