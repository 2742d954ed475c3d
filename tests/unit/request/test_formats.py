"""The formats of a plan: the document, and lines for shells and tools."""

import json
import re
from typing import Any

import pytest
from hypothesis import given

from affinityd.cpuset import parse_list, parse_mask
from affinityd.errors import UnsatisfiableError
from affinityd.request.formats import render
from affinityd.request.parameters import FORMATS
from affinityd.request.resolve import Reply
from tests.support.asking import ask
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.strategies import Question, questions
from tests.support.paths import DATA
from tests.support.tables import rows, words


def document(reply: Reply) -> Any:  # noqa: ANN401 - as a client reads it
    return json.loads(render(reply, "json"))


def test_the_document_has_the_contract_s_fields_in_order() -> None:
    reply = ask(machine("dgx-a100"), gpus="0,1", rank="0", share="requested")
    contract = (DATA / "golden/plan.json").read_text()  # in the order of its keys
    assert render(reply, "json") == contract.replace("\n", " ").rstrip() + "\n"


@pytest.mark.parametrize(
    ("asked", "name", "understood"),
    [
        ("", "gpus", ["0", "1", "2", "3"]),
        ("visible=3,1", "gpus", ["0", "1"]),  # indices in the visible list
        ("gpus=0000:00:06.0,0", "gpus", ["0000:00:06.0", "0"]),
        ("mode=unique-contiguous", "mode", "unique_contiguous"),
        ("", "share", "node"),
        ("cpuset=0-7", "share", "requested"),
        ("granted=2,1", "granted", "2,1"),
        ("balanced=no", "balanced", False),
    ],
)
def test_the_document_has_the_request_as_it_was_parsed(
    asked: str, name: str, understood: object
) -> None:
    assert document(ask(machine("flat"), **words(asked)))["request"][name] == understood


@pytest.mark.parametrize(
    ("asked", "allowed"),
    rows("""
the node's CPUs           | | 0-7 node None
without reserved CPUs     | reserved=0,7           | 1-6 node None
the caller's mask         | mask=0-3,9             | 0-3 caller 0-3,9
the request's cpuset      | cpuset=2-99 mask=0-3   | 2-3 request 0-3
the node's by whose=node  | whose=node mask=0-3    | 0-7 node None
"""),
)
def test_the_document_tells_the_source_of_the_allowed_cpus(asked: str, allowed: str) -> None:
    reply = document(ask(made({0: "0-7"}), **words(asked)))
    assert " ".join(map(str, reply["allowed"].values())) == allowed


def test_warnings_are_about_the_requested_ranks_or_the_whole_plan() -> None:
    parameters = {"gpus": "0,1,1", "mode": "node", "scope": "socket"}
    whole = document(ask(machine("dgx-a100"), **parameters))["warnings"]
    own = document(ask(machine("dgx-a100"), rank="0", **parameters))["warnings"]
    assert [warning["code"] for warning in whole] == ["parameter_ignored", *["shared_gpu"] * 2]
    assert own == [{"code": "parameter_ignored", "message": whole[0]["message"]}]


def test_the_shell_format_has_the_codes_of_warnings_in_alphabetical_order() -> None:
    asked = "gpus=0,0,7 cpuset=0-79 mode=socket share=node balanced=false"
    text = render(ask(machine("dgx-a100"), **words(asked)), "shell")
    assert "\nAFFINITYD_WARNINGS=parameter_ignored,remote_home,shared_gpu\n" in text


@pytest.mark.parametrize("form", ["shell", "nics"])
def test_a_plan_in_the_shell_format_is_lines_of_variables(form: str) -> None:
    reply = ask(machine("dgx-a100"), gpus="0,1", share="requested")
    assert render(reply, form) == (DATA / f"golden/plan.{form}").read_text()


@pytest.mark.parametrize(
    ("gpu_nodes", "worst"),
    [([0, 2], "local"), ([0, None], "unknown"), ([None, 1], "unknown"), ([0, 1], "remote")],
)
def test_a_plan_s_locality_is_that_of_the_worst_rank(
    gpu_nodes: list[int | None], worst: str
) -> None:
    topology = made({0: "0-3", 1: "4-7", 2: ""}, gpus=gpu_nodes)  # 0 and 1 are equally near to 2
    reply = ask(topology, mode="node", cpuset="0-3")
    assert reply.locality == worst
    assert f"AFFINITYD_LOCALITY={worst}\n" in render(reply, "shell")


@given(questions())
def test_every_format_says_the_same_and_no_shell_line_needs_quoting(question: Question) -> None:
    reply = question.try_to_ask()
    if isinstance(reply, UnsatisfiableError):
        return
    assert isinstance(reply, Reply)
    texts = {name: render(reply, name) for name in FORMATS}
    assert all(text.endswith("\n") for name, text in texts.items() if name != "nics" or text)
    expected = [rank.cpus for rank in reply.ranks]
    ranks = json.loads(texts["json"])["ranks"]
    assert [parse_list(rank["cpulist"]) for rank in ranks] == expected
    assert [parse_list(line) for line in texts["cpulist"].splitlines()] == expected
    assert [parse_mask(line) for line in texts["mask"].splitlines()] == expected
    numactl = re.compile(r"--physcpubind=([0-9,-]+) --localalloc")
    assert [parse_list(cpus) for cpus in numactl.findall(texts["numactl"])] == expected
    shell = re.compile(r"^AFFINITYD_RANK_[0-9]+_CPULIST=(.+)$", re.MULTILINE)
    assert [parse_list(cpus) for cpus in shell.findall(texts["shell"])] == expected
    assert re.fullmatch(r"([A-Z][A-Z0-9_]*=[A-Za-z0-9_,:.-]*\n)+", texts["shell"])
