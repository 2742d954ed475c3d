"""Other binders of the command of `affinityd exec`: which of them wins, and how they agree."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from affinityd.request.binders import Acting, earlier, later, own_variables


def remarks(command: Sequence[str], *, owns: bool) -> Iterator[str]:
    """Yield a line for each binder that will undo the pin; `owns`: set what stops it first."""
    for acting in _later(command, owns=owns):
        if acting.binder.fights:
            yield f"{acting} {acting.binder.effect} afterwards; {acting.binder.ends_it}"


def order(
    command: Sequence[str], pin: str, *, is_pinned: bool, owns: bool
) -> tuple[list[str], bool]:
    """Return a line for each binder of a command, in their order, and whether the pin stays.

    `pin`: what affinityd does itself.
    """
    others = _later(command, owns=owns)
    winner = next((it for it in reversed(others) if it.binder.fights), None)
    before = (
        f"{it} has set the mask that is planned on; {it.binder.ends_it}"
        for it in earlier(os.environ)
    )
    lines = [*before, f"affinityd: {pin}"]
    lines += [f"{it} {it.binder.effect}: {it.binder.does}" for it in others]
    lines = [f"{number}. {line}" for number, line in enumerate(lines, 1)]
    if winner is not None:
        return [*lines, f"{winner} wins; {winner.binder.ends_it}"], False
    return [*lines, "affinityd wins" if is_pinned else "none wins: nothing pins it"], is_pinned


def _later(command: Sequence[str], *, owns: bool) -> list[Acting]:
    """Return the binders that act later; `owns`: the environment first stops those it can."""
    others = later(os.environ, command)
    if owns:
        os.environ.update(own_variables(others))
        others = later(os.environ, command)
    return others
