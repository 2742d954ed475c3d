"""The tables of bench/machines.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from bench.compare.judge import VERDICTS, Verdict
from bench.compare.reported import KINDS
from bench.compare.tools import Tool

#: How often a tool's answers to a kind of question were judged so.
Counts = Mapping[str, Counter[tuple[str, Verdict]]]


def tables(counts: Counts, tools: Sequence[Tool]) -> str:
    """Return the table of verdicts and the table of kinds, as Markdown."""
    return "\n".join([*_verdicts(counts, tools), "", *_kinds(counts, tools)])


def _verdicts(counts: Counts, tools: Sequence[Tool]) -> Iterator[str]:
    yield from _head("tool", "version", "setting", "asked", *VERDICTS)
    for tool in tools:
        found = counts[tool.name]
        sums = [_sum(found, verdict=verdict) for verdict in VERDICTS]
        yield _row(tool.name, tool.version, tool.setting, sum(sums), *sums)


def _kinds(counts: Counts, tools: Sequence[Tool]) -> Iterator[str]:
    yield from _head("right, of asked", *KINDS)
    for tool in tools:
        found = counts[tool.name]
        shares = (f"{_sum(found, kind, 'right')} of {_sum(found, kind)}" for kind in KINDS)
        yield _row(tool.name, *shares)


def _sum(
    found: Counter[tuple[str, Verdict]], kind: str | None = None, verdict: str | None = None
) -> int:
    return sum(
        count
        for (its_kind, its_verdict), count in found.items()
        if kind in {None, its_kind} and verdict in {None, its_verdict}
    )


def _head(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield _row(*("---" for _ in names))


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
