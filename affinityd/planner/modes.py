"""Modes: how the ranks of one domain divide it. A mode is a row of `MODES`, never a branch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from affinityd.planner.domains import Bundle, Domain


@dataclass(frozen=True)
class Turn:
    """Whose share is asked for: rank `k` of `n` on a domain of which each may have `q` bundles."""

    k: int
    n: int
    q: int
    balanced: bool


Split = Callable[[Domain, Turn], Domain]


def whole(domain: Domain, _turn: Turn) -> Domain:
    """Every rank has all of it."""
    return domain


def first(domain: Domain, _turn: Turn) -> Domain:
    """Every rank has the first core."""
    return domain[:1]


def one_each(domain: Domain, turn: Turn) -> Domain:
    """Each rank has the first core that no earlier rank has."""
    return domain[turn.k : turn.k + 1]


def contiguous(domain: Domain, turn: Turn) -> Domain:
    """Each rank has the next `q`."""
    return domain[turn.k * turn.q : (turn.k + 1) * turn.q]


def interleaved(domain: Domain, turn: Turn) -> Domain:
    """Each rank has every n-th; balanced deals only as many as make the hands equal."""
    dealt = domain[: turn.q * turn.n] if turn.balanced else domain
    return dealt[turn.k :: turn.n]


def blocks(domain: Domain, turn: Turn) -> Domain:
    """Each rank has a block; the remainder goes one core each to the first ranks."""
    size, remainder = divmod(len(domain), turn.n)
    start = turn.k * size + min(turn.k, remainder)
    return domain[start : start + size + (turn.k < remainder)]


def complexes(domain: Domain, turn: Turn) -> Domain:
    """Each rank has one LLC group: those with most CPUs first, then by their lowest CPU."""
    groups: dict[int, list[Bundle]] = {}
    for bundle in domain:
        groups.setdefault(bundle[0].llc, []).append(bundle)
    ranked = sorted(
        groups, key=lambda llc: (-sum(len(bundle[0].cpus) for bundle in groups[llc]), llc)
    )
    return tuple(groups[ranked[turn.k % len(ranked)]])


@dataclass(frozen=True)
class Mode:
    """A row of the table."""

    split: Split
    scope: str | None = None  #: the scope that it has whatever the request says
    everywhere: bool = False  #: its domain is every allowed core, not the home node's
    unique: bool = False  #: ranks never overlap
    balances: bool = False  #: heeds `balanced`
    counts: bool = True  #: heeds `min_physical_cores` and `max_physical_cores`
    widens: bool = True  #: heeds `cpus`

    @property
    def shares_node(self) -> bool:
        """Whether `share=node` means something to it."""
        return self.unique and not self.everywhere

    @property
    def shares(self) -> bool:
        """Whether ranks share what is near: how many there are then changes nothing."""
        return self.split in {whole, first}


MODES = {
    "all": Mode(whole),
    "single": Mode(first, scope="node", counts=False),
    "single_unique": Mode(one_each, scope="node", unique=True, counts=False),
    "unique_contiguous": Mode(contiguous, unique=True, balances=True),
    "unique_interleaved": Mode(interleaved, unique=True, balances=True),
    "node": Mode(whole, scope="node"),
    "socket": Mode(whole, scope="socket"),
    "exclusive": Mode(blocks, unique=True),
    # Ranks that went on to the caches of another node would be far alone.
    "core_complex": Mode(complexes, scope="node", widens=False),
    "even": Mode(blocks, scope="node", everywhere=True, unique=True),
}
