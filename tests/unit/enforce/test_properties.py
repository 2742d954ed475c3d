"""What holds for every decision, on random machines with random jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from random import Random

from hypothesis import assume, event, given
from hypothesis import strategies as st

from affinityd.audit.model import GpuKey, Job, Membership, ProcessFacts
from affinityd.cpuset import CpuSet, format_list
from affinityd.enforce.model import ALLOCATION, DRIFTED, FITS, NO_JOB, ON_PURPOSE, Decision
from affinityd.planner.modes import MODES
from affinityd.topology.model import Topology
from tests.support.enforced_node import Site, rank
from tests.support.machines.strategies import UNIQUE, machines, subsets

SEVEN, EIGHT = (Membership(Job("slurm", number)) for number in "78")
JOBS = (SEVEN, SEVEN, SEVEN, EIGHT, Membership())


@dataclass(frozen=True)
class Scene:
    """A machine, a policy, and what runs there."""

    topology: Topology
    policy: str
    reserved: CpuSet
    processes: tuple[ProcessFacts, ...]

    def site(self) -> Site:
        return Site(self.topology, self.policy, reserved=format_list(self.reserved))

    @property
    def whole(self) -> CpuSet:
        return self.topology.online - self.reserved

    def gpus(self, facts: ProcessFacts) -> frozenset[GpuKey]:
        pids = {facts.pid}
        for _ in self.processes:
            pids |= {it.pid for it in self.processes if it.parent in pids}
        return frozenset(gpu for it in self.processes if it.pid in pids for gpu in it.gpus)


def policies(modes: tuple[str, ...]) -> st.SearchStrategy[str]:
    optional: dict[str, st.SearchStrategy[object]] = {
        "scope": st.sampled_from(["node", "socket"]),
        "share": st.sampled_from(["auto", "requested", "node"]),
        "min_physical_cores": st.integers(1, 2),
    }
    settings = st.fixed_dictionaries({"mode": st.sampled_from(modes)}, optional=optional)
    return settings.map(lambda said: "\n".join(f"{name} = {it!r}" for name, it in said.items()))


@st.composite
def scenes(draw: st.DrawFn, modes: tuple[str, ...] = tuple(MODES)) -> Scene:
    """Return any machine with processes in jobs and in none, with any cpusets and masks."""
    topology = draw(machines(gpus=4))
    online = topology.online
    reserved = draw(st.just(frozenset()) | st.frozensets(st.sampled_from(sorted(online))))
    cpusets = draw(st.lists(subsets(online), min_size=1, max_size=3))
    keys = st.sampled_from([gpu.key for gpu in topology.gpus])
    found: list[ProcessFacts] = []
    for pid in range(100, 100 + draw(st.integers(1, 6))):
        cpuset = draw(st.sampled_from(cpusets))
        gpu, *others = draw(st.lists(keys, min_size=1, max_size=2, unique=True))
        facts = rank(
            *draw(st.lists(subsets(cpuset).map(format_list), min_size=1, max_size=3)),
            gpu=gpu,
            pid=pid,
            cpuset=draw(st.sampled_from([*[format_list(cpuset)] * 8, None])),
            membership=draw(st.sampled_from(JOBS)),
            parent=draw(st.sampled_from([50, *(it.pid for it in found)])),
            state=draw(st.sampled_from("SSSZ")),
            beside=tuple(others),
        )
        holders = [it for it in found if it.holding is not None]
        if draw(st.booleans()) and holders:  # it works for another, and may be in another job
            of = draw(st.sampled_from(holders))
            facts = replace(facts, holding=None, holder=of.pid, parent=of.pid)
            facts = replace(facts, gpu=of.gpu, beside=of.beside)
        found.append(facts)
    return Scene(topology, draw(policies(modes)), reserved, tuple(found))


def decided(scene: Scene) -> list[Decision]:
    decisions = scene.site().look(*scene.processes)
    for decision in decisions:
        event(" ".join((decision.verdict, decision.reason or decision.cause or "")))
    return decisions


@given(scenes())
def test_target_cpus_are_online_unreserved_and_in_the_cpuset(scene: Scene) -> None:
    near = scene.site().near
    for decision in decided(scene):
        facts, target = decision.process.facts, decision.target
        assert (decision.job is None) == (decision.reason == NO_JOB)
        if target is not None:
            assert decision.job is not None
            assert target.cpus
            assert target.cpus <= (facts.cpuset or set()) & scene.whole
        if decision.reason == ALLOCATION or target is not None:
            its = [near[gpu] or scene.topology.online for gpu in scene.gpus(facts)]
            is_far = all(cpus.isdisjoint(facts.cpuset or ()) for cpus in its)
            # One that has a place may be left for the same reason: it has what it asked for.
            assert is_far == (target is None)


@given(scenes(UNIQUE))
def test_ranks_of_a_job_on_different_gpus_have_no_cpu_in_common(scene: Scene) -> None:
    for one, other in combinations(decided(scene), 2):
        if one.target and other.target and one.job == other.job:
            gpus, others = (scene.gpus(it.process.facts) for it in (one, other))
            share = gpus & others
            assert share or one.target.cpus.isdisjoint(other.target.cpus)


@given(scenes())
def test_a_pinned_process_fits_and_others_keep_their_masks(scene: Scene) -> None:
    """What a worker inherited is told by its holder's mask, if they have one cpuset."""
    cpusets = {facts.pid: facts.cpuset for facts in scene.processes}
    assume(all(cpusets[it.holder or it.pid] == it.cpuset for it in scene.processes))
    site = scene.site()
    before = site.look(*scene.processes)
    after = site.look(*site.pin(*scene.processes))
    for was, now in zip(before, after, strict=True):
        if was.verdict == DRIFTED:
            assert now.verdict == FITS or now.reason in {ON_PURPOSE, ALLOCATION}
        else:
            assert (now.verdict, now.reason) == (was.verdict, was.reason)
            assert now.process.facts == was.process.facts
        assert _cpus(now) == _cpus(was)


@given(scenes(), st.randoms(use_true_random=False))
def test_the_order_of_processes_does_not_matter(scene: Scene, chance: Random) -> None:
    shuffled = list(scene.processes)
    chance.shuffle(shuffled)
    other = replace(scene, processes=tuple(shuffled))
    by_pid = {it.process.facts.pid: it for it in decided(other)}
    assert [by_pid[it.process.facts.pid] for it in decided(scene)] == decided(scene)


def _cpus(decision: Decision) -> CpuSet | None:
    return None if decision.target is None else decision.target.cpus
