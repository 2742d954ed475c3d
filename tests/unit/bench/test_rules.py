from __future__ import annotations

import pytest

from affinityd.cpuset import format_list
from bench.compare import rules
from bench.compare.reported import Question
from bench.compare.rules import (
    cpu_affinity_column,
    local_id,
    nemo_rl,
    numactl_by_rank,
    sglang,
    vllm,
)
from tests.support.reports import asked

NODES = "0-3,8-11 4-7,12-15"
FAR_FIRST = "4-7,12-15 0-3,8-11"

#: Allowed CPUs and GPUs on two nodes → each rule's ranks; -: left as it was, !: it does not start.
CASES: dict[rules.Rule, dict[tuple[str, str], str]] = {
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
#: On a machine of one node: where nvidia-smi gives the GPU no node, and where it says 0.
ON_ONE_NODE: dict[rules.Rule, tuple[str, str]] = {
    vllm: ("!", "!"),
    sglang: ("-", "-"),
    nemo_rl: ("-", "0-15"),
    cpu_affinity_column: ("0-15", "0-15"),
    local_id: ("0-15", "0-15"),
    numactl_by_rank: ("-", "0-15"),
}


def ranks(rule: rules.Rule, question: Question) -> str:
    answer = rule(question)
    if answer.error is not None:
        return "!"
    return " ".join("-" if cpus is None else format_list(cpus) for cpus in answer.ranks)


@pytest.mark.parametrize("rule", CASES, ids=lambda rule: rule.__name__)
def test_a_rule_binds_as_its_source_does(rule: rules.Rule) -> None:
    found = {case: ranks(rule, asked("two nodes", *case)) for case in CASES[rule]}
    assert found == CASES[rule]


def test_rules_on_a_machine_of_one_node() -> None:
    unknown, known = (asked(machine, "0-15", "0") for machine in ("one node", "node 0"))
    found = {rule: (ranks(rule, unknown), ranks(rule, known)) for rule in ON_ONE_NODE}
    assert found == ON_ONE_NODE
