"""Random machines and random requests, for property tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, zip_longest

from hypothesis import reject
from hypothesis import strategies as st

from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import AffinityError, UnsatisfiableError
from affinityd.planner.modes import MODES
from affinityd.request.resolve import Reply
from affinityd.topology.model import Core, Gpu, MigInstance, NumaNode, Topology
from tests.support.asking import is_one_short_line, try_to_ask

Place = tuple[int | None, int | None]  #: NUMA node, package

UNIQUE = tuple(name for name, mode in MODES.items() if mode.unique)
#: The modes in which share=node has an effect.
SHARING = tuple(name for name in UNIQUE if MODES[name].shares_node)


@st.composite
def machines(draw: st.DrawFn, *, gpus: int = 6) -> Topology:
    """Return a machine of any SMT; its nodes may be sparse, lack CPUs or memory, or span packages.

    CPUs may be offline or in no node; siblings and nodes may alternate; a GPU's node may be None.
    """
    numbers = sorted(draw(st.sets(st.integers(0, 12), min_size=1, max_size=5)))
    places = draw(
        st.lists(
            st.tuples(st.sampled_from([*numbers, None]), st.sampled_from([0, 1, 2, None])),
            min_size=1,
            max_size=5,
            unique=True,
        )
    )
    cores = _online(draw, tuple(draw(_cores(places))))
    nodes = [draw(_node(number, numbers)) for number in numbers]
    if any(core.node is None for core in cores):
        nodes.append(NumaNode(None))
    return Topology(
        name="random",
        cores=cores,
        nodes=tuple(nodes),
        gpus=tuple(draw(_gpu(index, numbers)) for index in range(draw(st.integers(1, gpus)))),
    )


@st.composite
def _cores(draw: st.DrawFn, places: list[Place]) -> list[Core]:
    """Return every core of a machine with all its CPUs, as if every CPU were online."""
    sizes = [draw(st.integers(1, 6)) for _ in places]
    runs = [[place] * size for place, size in zip(places, sizes, strict=True)]
    order = chain(*zip_longest(*runs)) if draw(st.booleans()) else chain(*runs)
    owners = [place for place in order if place is not None]
    threads, split = draw(st.integers(1, 8)), draw(st.booleans())
    step, stride = (len(owners), 1) if split else (1, threads)
    cache = draw(st.integers(1, 4))
    seen: dict[Place, list[int]] = {}
    cores = []
    for number, (node, package) in enumerate(owners):
        cpus = tuple(number * stride + thread * step for thread in range(threads))
        mates = seen.setdefault((node, package), [])
        mates.append(cpus[0])
        llc = mates[(len(mates) - 1) // cache * cache]
        cores.append(Core(cpus, node, package, None, llc))
    return cores


def _online(draw: st.DrawFn, cores: tuple[Core, ...]) -> tuple[Core, ...]:
    """Take some CPUs offline, and name LLC groups by their remaining CPUs."""
    every = [cpu for core in cores for cpu in core.cpus]
    offline = draw(st.just(frozenset()) | st.frozensets(st.sampled_from(every)))
    offline -= {draw(st.sampled_from(every))}  # at least one CPU stays online
    left = [
        (tuple(cpu for cpu in core.cpus if cpu not in offline), core)
        for core in cores
        if not offline.issuperset(core.cpus)
    ]
    names: dict[int, int] = {}
    for cpus, core in left:
        names[core.llc] = min(cpus[0], names.get(core.llc, cpus[0]))
    renamed = (
        Core(cpus, core.node, core.package, core.die, names[core.llc]) for cpus, core in left
    )
    return tuple(sorted(renamed, key=lambda core: core.cpus))


@st.composite
def _node(draw: st.DrawFn, number: int, numbers: list[int]) -> NumaNode:
    known = draw(st.lists(st.sampled_from(numbers), unique=True) | st.just(numbers))
    distances = {end: draw(st.sampled_from([11, 12, 20, 20, 40])) for end in known}
    memory = draw(st.sampled_from([None, 0, 2**30]))
    return NumaNode(number, memory, {**distances, number: 10})


@st.composite
def _gpu(draw: st.DrawFn, index: int, numbers: list[int]) -> Gpu:
    instances = draw(st.integers(0, 8)) // 7  # seldom one, else none
    return Gpu(
        index=index,
        vendor="nvidia",
        pci_bus_id=f"0000:{index:02x}:00.0",
        numa_node=draw(st.sampled_from([*numbers, *numbers, None])),
        uuid=f"GPU-{index:08d}",
        minor=index,
        mig=tuple(MigInstance(f"MIG-{index}-{place}") for place in range(instances)),
    )


@dataclass(frozen=True)
class Question:
    """A request on a machine with reserved CPUs."""

    topology: Topology
    reserved: CpuSet
    parameters: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> CpuSet:
        return self.topology.online - self.reserved

    def but(self, **parameters: str) -> Question:
        return Question(self.topology, self.reserved, {**self.parameters, **parameters})

    def ask(self, **parameters: str) -> Reply:
        reply = self.try_to_ask(**parameters)
        if isinstance(reply, AffinityError):
            raise reply
        return reply

    def try_to_ask(self, **parameters: str) -> Reply | AffinityError:
        """Send the request with more parameters; return the reply, or the error."""
        asked = {**self.parameters, **parameters}
        return try_to_ask(self.topology, reserved=format_list(self.reserved), **asked)

    def answered(self, **parameters: str) -> Reply:
        """Send the request with more parameters; drop the example if it is refused, in one line."""
        reply = self.try_to_ask(**parameters)
        if isinstance(reply, AffinityError):
            assert isinstance(reply, UnsatisfiableError)
            assert is_one_short_line(reply)
            reject()
        return reply


def subsets(cpus: CpuSet) -> st.SearchStrategy[CpuSet]:
    return st.just(cpus) | st.frozensets(st.sampled_from(sorted(cpus)), min_size=1)


def options(modes: tuple[str, ...] = tuple(MODES)) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries(
        {"mode": st.sampled_from(modes)},
        optional={
            "scope": st.sampled_from(["node", "socket"]),
            "balanced": st.sampled_from(["true", "false"]),
            "multithreading": st.sampled_from(["all_logical", "single_logical"]),
            "share": st.sampled_from(["auto", "requested", "node"]),
            "max_physical_cores": st.integers(2, 6).map(str),
            "min_physical_cores": st.integers(1, 2).map(str),
        },
    )


@st.composite
def questions(draw: st.DrawFn, modes: tuple[str, ...] = tuple(MODES)) -> Question:
    """Return a request on a random machine: for any GPUs, which may repeat, cpuset and options."""
    topology = draw(machines())
    online = sorted(topology.online)
    reserved = draw(st.just(frozenset()) | st.frozensets(st.sampled_from(online), max_size=3))
    parameters = draw(options(modes))
    if draw(st.booleans()):
        indices = st.integers(0, len(topology.gpus) - 1)
        gpus = draw(st.lists(indices, min_size=1, max_size=6))
        parameters["gpus"] = ",".join(map(str, gpus))
    if draw(st.booleans()):
        parameters["cpuset"] = format_list(draw(subsets(topology.online)))
    return Question(topology, reserved, parameters)
