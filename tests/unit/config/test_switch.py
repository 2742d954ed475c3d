"""AFFINITYD=on|observe|off: what a word means, and which of several counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd import config
from affinityd.cli.commands.serve import narrowed
from affinityd.config.settings import ENFORCE_VALUES, Settings
from affinityd.cpuset import parse_list
from affinityd.daemon.state.plan_service import PlanService
from affinityd.errors import InvalidRequestError
from affinityd.request.resolve import Caller
from affinityd.topology.model import Node, Topology
from tests.support.machines.by_hand import made
from tests.support.switch_words import OTHERS, WORDS


@pytest.mark.parametrize(("meant", "words"), WORDS.items(), ids=str)
def test_a_word_means(meant: str, words: tuple[str, ...]) -> None:
    assert {config.read_switch(word) for word in words} == {meant}


@pytest.mark.parametrize("word", OTHERS)
def test_another_word_is_refused_and_of_another_process_it_is_off(word: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"none of on, observe, off$"):
        config.read_switch(word)
    assert config.read_switch_or_off(word) == "off"


def test_the_least_of_what_job_and_site_say_counts(tmp_path: Path) -> None:
    conf = tmp_path / "affinityd.conf"
    order = ("off", "observe", "on", "")
    for site in order:
        conf.write_text(f"AFFINITYD={site}\n")
        for job in order:
            least = order[min(order.index(job), order.index(site), 2)]
            environ = {"AFFINITYD": job, "AFFINITYD_CONFIG": str(conf)}
            assert config.chosen_switch(environ) == least


def test_a_word_of_the_file_that_is_none_is_told_with_its_place(tmp_path: Path) -> None:
    conf = tmp_path / "affinityd.conf"
    conf.write_text("AFFINITYD=obsreve\n")
    with pytest.raises(InvalidRequestError, match=f"^AFFINITYD in {conf}: 'obsreve' is none of"):
        config.chosen_switch({"AFFINITYD_CONFIG": str(conf)})
    assert config.chosen_switch({"AFFINITYD": "off", "AFFINITYD_CONFIG": str(conf)}) == "off"


@pytest.mark.parametrize(
    ("said", "ways"),
    [("on", "off observe pin"), ("observe", "off observe observe"), ("off", "off off off")],
)
def test_a_daemon_pins_no_more_from_outside_than_the_node_allows(said: str, ways: str) -> None:
    found = [narrowed(Settings(enforce=way), said) for way in ENFORCE_VALUES]
    assert [it.enforce for it in found] == ways.split()
    assert {it.switch for it in found} == {said}


#: GPU 0 is near CPUs 0-3, GPU 1 near 4-7; where GPU 2 is, is not known.
MACHINE = made({0: "0-3", 1: "4-7"}, gpus=(0, 1, None))
ONE_NODE = made({0: "0-7"}, gpus=(0,))


@pytest.mark.parametrize(
    ("machine", "query", "before", "after"),
    [
        (MACHINE, "gpus=0&observe=0-1", "local", "local"),
        (MACHINE, "gpus=0&observe=4", "remote", "local"),
        (MACHINE, "gpus=0&observe=3-4", "mixed", "local"),
        (MACHINE, "gpus=0&observe=0-7", "unpinned", "local"),
        (MACHINE, "gpus=0,1&observe=2-5", "local", "local"),
        (MACHINE, "gpus=0,1&rank=1&observe=0", "remote", "local"),
        (MACHINE, "gpus=0,2&observe=4", "unknown", "unknown"),
        (ONE_NODE, "gpus=0&observe=0-7", "local", "local"),
    ],
)
def test_an_observed_plan_is_counted_by_where_its_process_is_and_would_be(
    machine: Topology, query: str, before: str, after: str
) -> None:
    for format_name in ("shell", "json"):
        found = PlanService(Node(machine)).answer(f"{query}&format={format_name}".encode())
        assert (found.observed, found.locality) == (before, after)
        assert (b"AFFINITYD=observe" in found.body) == (format_name == "shell")


@pytest.mark.parametrize(
    ("site", "query", "caller", "observed", "told"),
    [
        ("on", "", None, None, None),
        ("observe", "", None, "unknown", "observe"),
        ("observe", "", "4-7", "remote", "observe"),
        ("observe", "whose=node", "4-7", None, "observe"),  # a pod's init
        ("observe", "format=json", "4-7", None, None),  # a client that only asks
        ("off", "observe=4-7", "4-7", None, "off"),
    ],
)
def test_what_the_node_says_is_told_to_clients_that_would_apply_its_plan(
    site: str, query: str, caller: str | None, observed: str | None, told: str | None
) -> None:
    query = query if "format" in query else f"format=shell&{query}".rstrip("&")
    who = None if caller is None else Caller(parse_list(caller))
    service = PlanService(Node(MACHINE, switch=site))
    answer = service.answer(f"gpus=0&{query}".encode(), who)
    lines = dict(line.partition("=")[::2] for line in answer.body.decode().splitlines())
    assert (answer.observed, lines.get("AFFINITYD")) == (observed, told)
