"""AFFINITYD=on|observe|off: what a word means, and which of several counts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from affinityd.cli.commands.serve import narrowed
from affinityd.config import file, switch
from affinityd.config.settings import ENFORCE_VALUES, Settings
from affinityd.cpuset import parse_list
from affinityd.daemon.state.plan_service import PlanService
from affinityd.errors import InvalidRequestError
from affinityd.request.parameters import parse_request
from affinityd.request.resolve import Caller
from affinityd.topology.model import Node, Topology
from tests.support.machines.by_hand import made
from tests.support.paths import REPOSITORY

WORDS = {
    "off": ("off", "OFF", "Off", "0", "no", "No", "false", "False"),
    "observe": ("observe", "Observe", "OBSERVE"),
    "on": ("on", "ON", "1", "yes", "true", ""),
}
OTHERS = ("obsreve", "offline", "on ", "2", "*", "$(id)", "of\nf")
PINNING = REPOSITORY / "slurm/pinning.sh"


@pytest.mark.parametrize(("meant", "words"), WORDS.items(), ids=str)
def test_a_word_means(meant: str, words: tuple[str, ...]) -> None:
    assert {switch.read(word) for word in words} == {meant}


@pytest.mark.parametrize("word", OTHERS)
def test_another_word_is_refused_and_of_another_process_it_is_off(word: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"none of on, observe, off$"):
        switch.read(word)
    assert switch.read_or_off(word) == "off"


TABLE = [
    *(("", "", "on"), ("on", "on", "on"), ("observe", "on", "observe"), ("off", "on", "off")),
    *(("", "observe", "observe"), ("on", "observe", "observe"), ("off", "observe", "off")),
    *(("", "off", "off"), ("on", "off", "off"), ("observe", "off", "off"), ("off", "off", "off")),
]


@pytest.mark.parametrize(("job", "site", "counts"), TABLE)
def test_the_least_of_what_job_and_site_say_counts(
    tmp_path: Path, job: str, site: str, counts: str
) -> None:
    conf = tmp_path / "affinityd.conf"
    conf.write_text(f"AFFINITYD={site}\n")
    assert file.chosen_switch({"AFFINITYD": job, "AFFINITYD_CONFIG": str(conf)}) == counts


def test_a_word_of_the_file_that_is_none_is_told_with_its_place(tmp_path: Path) -> None:
    conf = tmp_path / "affinityd.conf"
    conf.write_text("AFFINITYD=obsreve\n")
    with pytest.raises(InvalidRequestError, match=f"^AFFINITYD in {conf}: 'obsreve' is none of"):
        file.chosen_switch({"AFFINITYD_CONFIG": str(conf)})
    assert file.chosen_switch({"AFFINITYD": "off", "AFFINITYD_CONFIG": str(conf)}) == "off"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_scripts_read_it_as_everything_else_does(shell: str) -> None:
    words = [word for words in WORDS.values() for word in words]
    code = (
        f". {PINNING}\n"
        'for one; do for other; do switch=on; heed "$one"; heed "$other"; echo $switch; done; done'
    )
    told = subprocess.check_output([shell, "-c", code, "sh", *words], text=True).split()
    assert told == [
        switch.least(switch.read(one), switch.read(other)) for one in words for other in words
    ]
    for word in OTHERS:
        done = subprocess.run([shell, "-c", f'. {PINNING}; heed "$1"', "sh", word], check=False)
        assert done.returncode == 1


@pytest.mark.parametrize(
    ("said", "ways"),
    [
        ("on", ["off", "observe", "pin"]),
        ("observe", ["off", "observe", "observe"]),
        ("off", ["off", "off", "off"]),
    ],
)
def test_a_daemon_pins_no_more_from_outside_than_the_node_allows(
    said: str, ways: list[str]
) -> None:
    found = [narrowed(Settings(enforce=way), said) for way in ENFORCE_VALUES]
    assert [it.enforce for it in found] == ways
    assert {it.switch for it in found} == {said}


#: GPU 0 is near CPUs 0-3, GPU 1 near 4-7; where GPU 2 is, is not known.
MACHINE = made({0: "0-3", 1: "4-7"}, gpus=(0, 1, None))
ONE_NODE = made({0: "0-7"}, gpus=(0,))


@pytest.mark.parametrize(
    ("machine", "query", "before", "after"),
    [
        pytest.param(MACHINE, "gpus=0&observe=0-1", "local", "local", id="near"),
        pytest.param(MACHINE, "gpus=0&observe=4", "remote", "local", id="far, and it need not be"),
        pytest.param(MACHINE, "gpus=0&observe=3-4", "mixed", "local", id="near and far"),
        pytest.param(MACHINE, "gpus=0&observe=0-7", "unpinned", "local", id="everywhere"),
        pytest.param(
            MACHINE, "gpus=0&observe=4-7&cpuset=4-7", "remote", "remote", id="far, and it stays so"
        ),
        pytest.param(MACHINE, "gpus=0,1&observe=2-5", "local", "local", id="near either of two"),
        pytest.param(MACHINE, "gpus=0,1&rank=1&observe=0", "remote", "local", id="its own GPU's"),
        pytest.param(MACHINE, "gpus=2&observe=0-3", "unknown", "unknown", id="an unknown place"),
        pytest.param(MACHINE, "gpus=0,2&observe=4", "unknown", "unknown", id="one of two unknown"),
        pytest.param(ONE_NODE, "gpus=0&observe=0-7", "local", "local", id="a node of its own"),
    ],
)
def test_an_observed_plan_is_counted_by_where_its_process_is_and_would_be(
    machine: Topology, query: str, before: str, after: str
) -> None:
    request = parse_request(parse_qsl(query))
    for format_name in ("shell", "json"):
        found = PlanService(Node(machine)).answer(request, format_name)
        assert (found.observed, found.locality) == (before, after)
        assert (b"AFFINITYD=observe" in found.body) == (format_name == "shell")


@pytest.mark.parametrize(
    ("site", "query", "caller", "observed", "told"),
    [
        pytest.param("on", "", None, None, None, id="a node that is on"),
        pytest.param("observe", "", None, "unknown", "observe", id="an unknown caller"),
        pytest.param("observe", "", "4-7", "remote", "observe", id="a caller whose mask is known"),
        pytest.param("observe", "cpuset=0", None, "local", "observe", id="a mask that is said"),
        pytest.param("observe", "whose=node", "4-7", None, "observe", id="a pod's init"),
        pytest.param("observe", "format=json", "4-7", None, None, id="a client that only asks"),
        pytest.param("off", "observe=4-7", "4-7", None, "off", id="a node that is off"),
    ],
)
def test_what_the_node_says_is_told_to_clients_that_would_apply_its_plan(
    site: str, query: str, caller: str | None, observed: str | None, told: str | None
) -> None:
    request = parse_request(parse_qsl(f"gpus=0&{query}"))
    who = None if caller is None else Caller(parse_list(caller))
    service = PlanService(Node(MACHINE, switch=site))
    answer = service.answer(request, request.format or "shell", who)
    assert answer.observed == observed
    lines = dict(line.partition("=")[::2] for line in answer.body.decode().splitlines())
    assert lines.get("AFFINITYD") == told
