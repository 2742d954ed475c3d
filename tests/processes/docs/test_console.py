"""The pages' examples print what the pages say; their questions to the daemon are answered."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from docs.check.blocks import BLOCKS
from tests.support.daemons import Daemon, running

SOCKET, ADDRESS = "/run/affinityd/affinityd.sock", "http://127.0.0.1:9465"
EXAMPLES = [it for block in BLOCKS if block.kind == "console" for it in block.examples]
QUESTIONS = [
    (str(block), words)
    for block in BLOCKS
    if block.kind == "sh"
    for words in block.commands
    if words[0] == "curl"
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("docs")
    with running(folder, "--machine", "dgx-a100") as daemon:
        yield daemon


@pytest.mark.parametrize(("command", "printed"), EXAMPLES)
def test_an_example_prints_what_the_page_says(daemon: Daemon, command: str, printed: str) -> None:
    words = shlex.split(command.replace(SOCKET, str(daemon.socket)))
    program = [sys.executable, "-m", "affinityd"] if words[0] == "affinityd" else words[:1]
    assert words[0] in {"affinityd", "curl"}
    done = subprocess.run([*program, *words[1:]], capture_output=True, text=True, check=False)
    assert done.stdout == printed


@pytest.mark.parametrize(("place", "words"), QUESTIONS)
def test_a_question_is_answered(daemon: Daemon, place: str, words: list[str]) -> None:
    here = ["--unix-socket", str(daemon.socket)]
    asked = [it.replace(SOCKET, here[1]).replace(ADDRESS, "http://localhost") for it in words[1:]]
    assert asked != words[1:], f"{place}: it asks no daemon"
    command = ["curl", "-s", "-w", "%{http_code}", *here, *asked]
    answer = subprocess.check_output(command, text=True)
    assert answer.endswith("200") or "a replayed machine has no processes to scan" in answer
