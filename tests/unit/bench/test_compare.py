"""The comparison with other tools: the machines of public issues, the tools' rules, the judge."""

from collections import Counter

import pytest

from affinityd.cpuset import CpuSet, format_list, parse_list
from bench.compare import rules
from bench.compare.judge import Answer, judge
from bench.compare.reported import KINDS, Machine, Question, machines, questions
from bench.compare.rules import (
    cpu_affinity_column,
    local_id,
    nemo_rl,
    numactl_by_rank,
    sglang,
    vllm,
)
from tests.support.asking import ask
from tests.support.paths import REPOSITORY
from tests.support.reports import asked

#: Sentence: machine, allowed CPUs, GPUs, each rank's CPUs (-: left as it was), unique, verdict.
CASES = {
    "near": ("two nodes", "0-15", "0,1", "0-3,8-11 4-7,12-15", True, "right"),
    "a part of what is near": ("two nodes", "0-15", "0,1", "0,8 4,12", True, "right"),
    "one CPU is far": ("two nodes", "0-15", "0,1", "0-4,8-11 5-7,13-15", True, "far"),
    "exchanged": ("two nodes", "0-15", "1,0", "0-3,8-11 4-7,12-15", True, "far"),
    "no CPU at all": ("two nodes", "0-15", "0", "", True, "far"),
    "one core for two": ("two nodes", "0-15", "0,2", "0-1,8-9 1-2,9-10", True, "overlapping"),
    "a core's halves": ("two nodes", "0-15", "0,2", "0 8", True, "overlapping"),
    "shared, and no promise": ("two nodes", "0-15", "0,2", "0-3,8-11 0-3,8-11", False, "right"),
    "half a core": ("two nodes", "0-15", "0,1", "0,8 4", True, "split"),
    "half a core, which is all": ("two nodes", "0-7", "0,1", "0 4", True, "right"),
    "left on two nodes": ("two nodes", "0-15", "0", "-", False, "unpinned"),
    "left on its node": ("two nodes", "0-3", "0", "-", False, "right"),
    "left, and cores promised": ("two nodes", "0-3", "0", "-", True, "unpinned"),
    "left on one node": ("one node", "0-15", "0,1", "- -", False, "right"),
    "no CPU is near": ("two nodes", "0-3", "1", "0-3", False, "right"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_judge_returns_the_worst_verdict_of_an_answer(
    case: tuple[str, str, str, str, bool, str],
) -> None:
    machine, allowed, gpus, ranks, unique, verdict = case
    given = [None if it == "-" else parse_list(it) for it in ranks.split(" ")]
    assert judge(asked(machine, allowed, gpus), Answer(given), unique=unique) == verdict


NODES = "0-3,8-11 4-7,12-15"
FAR_FIRST = "4-7,12-15 0-3,8-11"

#: Allowed CPUs and GPUs on two nodes → each rule's ranks; -: left as it was, !: it does not start.
RULES: dict[rules.Rule, dict[tuple[str, str], str]] = {
    vllm: {("0-15", "0,1"): NODES, ("0-15", "1,0"): FAR_FIRST, ("0-7", "0"): "!"},
    sglang: {("0-15", "1,0"): FAR_FIRST, ("0-5", "0,1"): "0-3 4-5", ("0-3", "0,1"): "0-3 -"},
    nemo_rl: {("0-15", "1,0"): FAR_FIRST, ("0-3", "0,1"): "0-3 -"},
    cpu_affinity_column: {("0-15", "1,0"): FAR_FIRST, ("0-3", "0,1"): "!"},
    local_id: {
        ("0-15", "0,1"): NODES,
        ("0-15", "1,0"): NODES,
        ("0-15", "0,1,2,3"): f"0-3,8-11 {NODES} 4-7,12-15",
        ("0-3", "0,1"): "!",
    },
    numactl_by_rank: {("0-15", "0,1"): NODES, ("0-15", "1,0"): NODES, ("4-7", "0"): "!"},
}


def ranks(rule: rules.Rule, question: Question) -> str:
    answer = rule(question)
    if answer.error is not None:
        return "!"
    return " ".join("-" if cpus is None else format_list(cpus) for cpus in answer.ranks)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_binds_as_its_source_does(rule: rules.Rule) -> None:
    found = {case: ranks(rule, asked("two nodes", *case)) for case in RULES[rule]}
    assert found == RULES[rule]


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
