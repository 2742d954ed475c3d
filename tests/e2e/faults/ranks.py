"""Ranks on a machine of two CPUs: commands that `affinityd exec` starts where they belong."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.tiny import FAR, LOOK, NEAR, affinityd

PLACES = (NEAR, FAR)  #: GPU → the only CPU that is right for it


def start_ranks(
    number: int, socket: Path, *checkouts: Path | None, root: Path | None = None
) -> set[str]:
    """Start so many, a few at a time, in turn by the programs of these checkouts.

    Each must run where it belongs; return what they say on stderr. `root`: the machine that they
    read themselves.
    """
    env = {"AFFINITYD_SOCKET": os.fspath(socket)}
    env |= {"AFFINITYD_ROOT": os.fspath(root)} if root else {}
    by = checkouts or (None,)

    def rank(place: int) -> Sequence[str]:
        gpu, checkout = place % 2, by[place // 2 % len(by)]
        done = affinityd("exec", f"--gpus={gpu}", "--", *LOOK, env=env, checkout=checkout)
        assert done.cpus == PLACES[gpu], done
        return done.lines

    with ThreadPoolExecutor(4) as pool:
        return {line for lines in pool.map(rank, range(number)) for line in lines}


def start_ranks_during(
    work: Callable[[], object], socket: Path, *checkouts: Path | None, root: Path | None = None
) -> set[str]:
    """Start ranks, likewise, again and again until something else is done."""
    said: set[str] = set()
    with ThreadPoolExecutor(1) as other:
        done = other.submit(work)
        while not done.done():
            said |= start_ranks(4, socket, *checkouts, root=root)
        done.result()
    return said
