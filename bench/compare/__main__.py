"""Asks tools where ranks belong on reported machines; judges the answers for bench/machines.md."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.compare.judge import OUTCOMES, Answer, Outcome, judge
from bench.compare.reported import KINDS, Machine, Question, machines, questions
from bench.compare.tools import TOOLS, Tool
from tests.support.machines.sysfs_tree import put, write_tree
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "bench" / "machines.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->"


@contextmanager
def tree_of(machine: Machine) -> Iterator[Path]:
    """Write the machine's tree, with numactl and the folder that lists threads; yield the tree."""
    with tempfile.TemporaryDirectory() as folder:
        tree = write_tree(machine.topology, Path(folder))
        (tree / "proc/self/task").mkdir(parents=True)
        put(tree / "usr/bin/numactl", "")
        (tree / "usr/bin/numactl").chmod(0o755)
        yield tree


def ask(tool: Tool, question: Question, tree: Path) -> Answer:
    """Ask for each of the question's jobs; the error of a job that cannot start is the answer."""
    answers = [tool.ask(job, tree) for job in question.jobs]
    errors = (answer.error for answer in answers if answer.error is not None)
    return Answer([cpus for answer in answers for cpus in answer.ranks], next(errors, None))


def judged(
    chosen: Iterable[Machine], tools: Iterable[Tool]
) -> Iterator[tuple[Tool, Question, Answer, Outcome]]:
    for machine in chosen:
        able = [tool for tool in tools if machine.vendor in tool.vendors]
        with tree_of(machine) as tree:
            for question in questions(machine):
                for tool in able:
                    answer = ask(tool, question, tree)
                    yield tool, question, answer, judge(question, answer, unique=tool.unique)


#: Tool → how often its answers to each kind of question had each outcome.
Counts = Mapping[str, Counter[tuple[str, Outcome]]]


def tables(counts: Counts, tools: Sequence[Tool]) -> str:
    """Return the table of outcomes and the table of kinds, as Markdown."""
    outcomes: list[Sequence[object]] = [("tool", "version", "setting", "asked", *OUTCOMES)]
    kinds: list[Sequence[object]] = [("right, of asked", *KINDS)]
    for tool in tools:
        found = counts[tool.name]
        sums = [_sum(found, outcome=outcome) for outcome in OUTCOMES]
        outcomes.append((tool.name, tool.version, tool.setting, sum(sums), *sums))
        right = (f"{_sum(found, kind, 'right')} of {_sum(found, kind)}" for kind in KINDS)
        kinds.append((tool.name, *right))
    return "\n\n".join(map(_table, (outcomes, kinds)))


def _sum(
    found: Counter[tuple[str, Outcome]], kind: str | None = None, outcome: str | None = None
) -> int:
    return sum(
        count
        for (its_kind, its_outcome), count in found.items()
        if kind in {None, its_kind} and outcome in {None, its_outcome}
    )


def _table(rows: Sequence[Sequence[object]]) -> str:
    head, *others = rows
    lines = (head, ["---"] * len(head), *others)
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def write_page(chosen: list[Machine], tools: list[Tool], *, is_whole: bool) -> None:
    """Print the tables; if no tool is left out, write them into the page, between the marks."""
    counts: defaultdict[str, Counter[tuple[str, Outcome]]] = defaultdict(Counter)
    for tool, question, _, outcome in judged(chosen, tools):
        counts[tool.name][question.kind, outcome] += 1
    text = tables(counts, tools)
    print(text)
    if not is_whole:
        sys.exit(f"{PAGE.relative_to(REPOSITORY)} stays as it was: a tool is left out")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{rest.partition(END)[2]}")


def available(tools: Iterable[Tool]) -> Iterator[Tool]:
    """Yield the tools whose code is at hand, and print a line for each other tool."""
    for tool in tools:
        fault = tool.missing()
        if fault is None:
            yield tool
        else:
            print(f"{tool.name} is left out: {fault}", file=sys.stderr)


def main() -> None:
    """Ask every available tool about every machine whose report says enough."""
    if os.geteuid():
        sys.exit("tools run with a machine's tree as their root: chroot(2) needs root")
    fit = [machine for machine in machines() if machine.unfit is None]
    tools = list(available(TOOLS))
    write_page(fit, tools, is_whole=len(tools) == len(TOOLS))


if __name__ == "__main__":
    main()
