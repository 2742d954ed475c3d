"""Modes: how the ranks of one domain divide it. A mode is a row of `MODES`, never a branch.

A domain is a sequence of bundles. A bundle is dealt as a whole: a near core, then the
core's partners (cores of the same package that are near to no planned rank).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from affinityd.topology.model import Core

Bundle = tuple[Core, ...]
Domain = tuple[Bundle, ...]


class Position(NamedTuple):
    """Which part of a domain is requested."""

    rank: int  #: the rank's number among those that divide the domain, from 0
    ranks: int  #: how many ranks divide the domain
    quota: int  #: how many bundles a rank may have
    balanced: bool


Split = Callable[[Domain, Position], Domain]


def all_cores(domain: Domain, _position: Position) -> Domain:
    """Every rank has all of the domain."""
    return domain


def first_core(domain: Domain, _position: Position) -> Domain:
    """Every rank has the first core."""
    return domain[:1]


def one_each(domain: Domain, position: Position) -> Domain:
    """Each rank has the first core that no earlier rank has."""
    return domain[position.rank : position.rank + 1]


def contiguous(domain: Domain, position: Position) -> Domain:
    """Each rank has the next `quota` bundles."""
    return domain[position.rank * position.quota : (position.rank + 1) * position.quota]


def interleaved(domain: Domain, position: Position) -> Domain:
    """Each rank has every n-th bundle; `balanced` deals only as many as divide equally."""
    dealt = domain[: position.quota * position.ranks] if position.balanced else domain
    return dealt[position.rank :: position.ranks]


def blocks(domain: Domain, position: Position) -> Domain:
    """Each rank has a block; the first ranks get one core more where cores remain."""
    size, remainder = divmod(len(domain), position.ranks)
    start = position.rank * size + min(position.rank, remainder)
    return domain[start : start + size + (position.rank < remainder)]


def one_cache(domain: Domain, position: Position) -> Domain:
    """Each rank has the next LLC group; after the last group comes the first again."""
    caches = largest_caches_first(domain)
    return caches[position.rank % len(caches)]


def every_nth_cache(domain: Domain, position: Position) -> Domain:
    """Each GPU has every n-th LLC group, at least one group; other GPUs may have the same group."""
    caches = largest_caches_first(domain)
    its_caches = caches[position.rank :: position.ranks] or [one_cache(domain, position)]
    return tuple(chain.from_iterable(its_caches))


def largest_caches_first(domain: Domain) -> list[Domain]:
    """Return the LLC groups of a domain: those with most CPUs first, then by lowest CPU."""
    groups: dict[int, list[Bundle]] = {}
    for bundle in domain:
        groups.setdefault(bundle[0].llc, []).append(bundle)

    def order(llc: int) -> tuple[int, int]:
        return -sum(len(bundle[0].cpus) for bundle in groups[llc]), llc

    return [tuple(groups[llc]) for llc in sorted(groups, key=order)]


class PlanMode(NamedTuple):
    """A row of the table: all that distinguishes a mode."""

    split: Split
    scope: str | None = None  #: the mode's own scope, instead of the request's; None: the request's
    everywhere: bool = False  #: the domain is every allowed core, not the home node's
    unique: bool = False  #: ranks never overlap
    shares: bool = False  #: ranks have all cores of their home nodes, however many ranks there are
    shares_node: bool = False  #: with share=node each GPU has a block of its own
    cut: Split = blocks  #: how the GPUs of a home node divide its cores into these blocks
    by_rank: bool = False  #: ranks that see the same GPUs divide the domain by number
    balances: bool = False  #: uses `balanced`
    counts: bool = True  #: uses `min_physical_cores` and `max_physical_cores`
    widens: bool = True  #: uses `cpus`


MODES = {
    "all": PlanMode(all_cores, shares=True),
    "single": PlanMode(first_core, scope="node", counts=False),
    "single_unique": PlanMode(
        one_each, scope="node", unique=True, shares_node=True, cut=interleaved, counts=False
    ),
    "unique_contiguous": PlanMode(contiguous, unique=True, shares_node=True, balances=True),
    "unique_interleaved": PlanMode(
        interleaved, unique=True, shares_node=True, cut=interleaved, balances=True
    ),
    "node": PlanMode(all_cores, scope="node", shares=True),
    "socket": PlanMode(all_cores, scope="socket", shares=True),
    "exclusive": PlanMode(blocks, unique=True, shares_node=True),
    # Ranks on the caches of another node would have only far CPUs.
    "core_complex": PlanMode(
        one_cache,
        scope="node",
        shares_node=True,
        cut=every_nth_cache,
        by_rank=True,
        widens=False,
    ),
    "even": PlanMode(
        blocks, scope="node", everywhere=True, unique=True, by_rank=True, widens=False
    ),
}
