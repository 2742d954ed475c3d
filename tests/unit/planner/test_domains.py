"""Domains: near cores, each with its partners."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from affinityd.planner.domains import best_first, deal, domains_of, restrict
from affinityd.topology.model import Topology
from tests.support.machines.strategies import machines


@given(machines(), st.data())
def test_a_part_of_a_domain_that_is_wholly_allowed_stays_as_it_is(
    topology: Topology, data: st.DataObject
) -> None:
    """To deal its partners again would change nothing: only a cut part needs that."""
    homes = topology.nodes_with_cpus[:1]
    domain = domains_of(topology, homes, topology.online, scope="socket", unique=True)[homes[0]]
    start, end = sorted(data.draw(st.integers(0, len(domain))) for _ in range(2))
    part = domain[start:end]
    dealt = deal([near for near, *_ in part], best_first(tuple(its[1:]) for its in part))
    assert dealt == restrict(part, topology.online) == part
