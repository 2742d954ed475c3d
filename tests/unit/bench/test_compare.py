"""The comparison with other tools on machines of public issues, and its judge of answers."""

from collections import Counter
from dataclasses import replace

import pytest

from affinityd.cpuset import CpuSet, format_list, parse_list
from bench.compare.judge import Answer, judge
from bench.compare.reported import KINDS, Machine, Question, ReportedGpu, machines, questions
from tests.support.asking import ask
from tests.support.paths import REPOSITORY
from tests.support.tables import cases

#: Four cores of two CPUs on each of two nodes; node 0 has the CPUs 0-3 and 8-11, GPUs 0 and 2.
TWO_NODES = Machine(
    source="made",
    name="made",
    vendor="nvidia",
    cores=8,
    threads=2,
    sockets=2,
    online=parse_list("0-15"),
    cpuset=None,
    nodes={0: parse_list("0-3,8-11"), 1: parse_list("4-7,12-15")},
    gpus=tuple(ReportedGpu(f"0000:{bus}0:00.0", bus % 2, None) for bus in range(4)),
)
#: The same CPUs in one node; the report does not say on which node the GPUs are.
ONE_NODE = replace(
    TWO_NODES,
    sockets=1,
    nodes={0: TWO_NODES.online},
    gpus=tuple(replace(gpu, node=None) for gpu in TWO_NODES.gpus),
)
MACHINES = {"two nodes": TWO_NODES, "one node": ONE_NODE}


@pytest.mark.parametrize(
    ("name", "allowed", "gpus", "ranks", "unique", "outcome"), cases("outcomes.tsv")
)
def test_the_judge_returns_the_worst_outcome_of_an_answer(
    *, name: str, allowed: str, gpus: str, ranks: str, unique: str, outcome: str
) -> None:
    given = [None if it == "-" else parse_list(it) for it in ranks.split(" ")]
    order = tuple(int(gpu) for gpu in gpus.split(","))
    question = Question(MACHINES[name], "whole", parse_list(allowed), order)
    assert judge(question, Answer(given), unique=bool(unique)) == outcome


FIT = [machine for machine in machines() if machine.unfit is None]
ASKED = [question for machine in FIT for question in questions(machine)]


def planned(question: Question, mode: str) -> list[CpuSet]:
    cpuset = format_list(question.allowed)
    replies = (
        ask(job.machine.topology, cpuset=cpuset, visible=job.visible, mode=mode)
        for job in question.jobs
    )
    return [frozenset(rank.cpus) for reply in replies for rank in reply.ranks]


@pytest.mark.parametrize("mode", ["unique_contiguous", "unique_interleaved", "exclusive", "node"])
def test_affinityd_is_right_on_every_reported_machine(mode: str) -> None:
    wrong = [
        (question.machine.source, question.kind, outcome)
        for question in ASKED
        for outcome in [judge(question, Answer(planned(question, mode)), unique=mode != "node")]
        if outcome != "right"
    ]
    assert wrong == []


def test_the_pages_quote_the_comparison_s_counts() -> None:
    page = (REPOSITORY / "bench/machines.md").read_text()
    kinds = Counter(question.kind for question in ASKED)
    right = " | ".join(f"{kinds[kind]} of {kinds[kind]}" for kind in KINDS)
    assert f"| affinityd | {right} |" in page
    asked = f"on {len(FIT)} machines from public issues, affinityd was right in {len(ASKED)} of"
    assert asked in (REPOSITORY / "README.md").read_text()
    unfit = Counter(machine.unfit for machine in machines())
    assert f"{unfit.pop(None)} of the {len(machines())} machines" in page
    assert all(f"- {count}: {reason}" in page for reason, count in unfit.items())
