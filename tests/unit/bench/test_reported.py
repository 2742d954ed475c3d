from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from affinityd.cpuset import CpuSet, format_list, parse_list
from bench.compare.judge import Answer, judge
from bench.compare.reported import KINDS, Machine, Question, machines, questions
from tests.support.asking import ask
from tests.support.paths import REPOSITORY
from tests.support.reports import ONE_NODE, TWO_NODES

FIT = [machine for machine in machines() if machine.unfit is None]
ASKED = [question for machine in FIT for question in questions(machine)]


def planned(question: Question, mode: str) -> list[CpuSet]:
    """Return affinityd's plan for each rank of each job."""
    cpuset = format_list(question.allowed)
    replies = (
        ask(job.machine.topology, cpuset=cpuset, visible=job.visible, mode=mode)
        for job in question.jobs
    )
    return [frozenset(rank.cpus) for reply in replies for rank in reply.ranks]


@pytest.mark.parametrize("mode", ["unique_contiguous", "unique_interleaved", "exclusive", "node"])
def test_affinityd_is_right_on_every_reported_machine(mode: str) -> None:
    wrong = [
        (question.machine.source, question.kind, verdict)
        for question in ASKED
        for verdict in [judge(question, Answer(planned(question, mode)), unique=mode != "node")]
        if verdict != "right"
    ]
    assert wrong == []


def test_the_pages_have_these_counts() -> None:
    page = (REPOSITORY / "bench/machines.md").read_text()
    kinds = Counter(question.kind for question in ASKED)
    right = " | ".join(f"{kinds[kind]} of {kinds[kind]}" for kind in KINDS)
    assert f"| affinityd | {right} |" in page
    asked = f"on {len(FIT)} machines from public issues, affinityd was right in {len(ASKED)} of"
    assert asked in (REPOSITORY / "README.md").read_text()
    unfit = Counter(machine.unfit for machine in machines())
    assert f"{unfit.pop(None)} of the {len(machines())} machines" in page
    assert all(f"- {count}: {reason}" in page for reason, count in unfit.items())


def of(source: str) -> Machine:
    return next(machine for machine in machines() if machine.source == source)


def test_a_machine_is_asked_what_differs_on_it() -> None:
    found = [
        (question.kind, format_list(question.allowed), [job.visible for job in question.jobs])
        for question in questions(replace(TWO_NODES, cpuset=parse_list("2-5")))
    ]
    assert found == [
        ("whole", "0-15", ["0,1,2,3"]),
        ("reversed", "0-15", ["3,2,1,0"]),
        ("apart", "0-15", ["0", "1", "2", "3"]),
        ("reporter's", "2-5", ["0,1,2,3"]),
        ("one node's", "0-3,8-11", ["0,1,2,3"]),
    ]
    third = replace(TWO_NODES, nodes={**TWO_NODES.nodes, 2: parse_list("16-17")}, cores=9)
    third = replace(third, online=parse_list("0-17"))
    asked = {question.kind: format_list(question.allowed) for question in questions(third)}
    assert asked["other nodes'"] == "4-7,12-17"
    alone = replace(ONE_NODE, gpus=ONE_NODE.gpus[:1])
    assert [question.kind for question in questions(alone)] == ["whole"]
