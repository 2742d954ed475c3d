"""The examples of the pages print what the pages show."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.cli import main
from docs.check.blocks import BLOCKS
from tests.support.daemons import Daemon, running
from tests.support.doctor_facts import TWO
from tests.support.machines.sysfs_tree import put, write_tree
from tests.support.paths import REPOSITORY

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
def test_an_example_prints_what_the_page_shows(daemon: Daemon, command: str, printed: str) -> None:
    words = shlex.split(command.replace(SOCKET, str(daemon.socket)))
    program = [sys.executable, "-m", "affinityd"] if words[0] == "affinityd" else words[:1]
    assert words[0] in {"affinityd", "curl"}
    done = subprocess.run([*program, *words[1:]], capture_output=True, text=True, check=False)
    assert done.stdout == printed


@pytest.mark.parametrize(("place", "words"), QUESTIONS)
def test_a_page_s_request_is_answered_as_shown(
    daemon: Daemon, place: str, words: list[str]
) -> None:
    here = ["--unix-socket", str(daemon.socket)]
    asked = [it.replace(SOCKET, here[1]).replace(ADDRESS, "http://localhost") for it in words[1:]]
    assert asked != words[1:], f"{place}: it asks no daemon"
    command = ["curl", "-s", "-w", "%{http_code}", *here, *asked]
    answer = subprocess.check_output(command, text=True)
    assert answer.endswith("200") or "a replayed machine has no processes to scan" in answer


def shown(page: str, command: str) -> str:
    examples = dict(it for block in BLOCKS if block.page == page for it in block.examples)
    return examples[command]


def test_the_page_shows_the_doctor_s_output_for_a_balanced_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFFINITYD_CONFIG", str(tmp_path / "none"))
    write_tree(TWO, tmp_path / "gpu07")
    put(tmp_path / "gpu07/proc/sys/kernel/numa_balancing", "1")
    command = "affinityd doctor gpu-numa-node numa-balancing"
    assert main([*command.split()[1:], "--root", str(tmp_path / "gpu07")]) == 0
    assert capsys.readouterr().out == shown("docs/doctor.md", command)


def test_the_demo_prints_the_lines_shown_on_pages(capsys: pytest.CaptureFixture[str]) -> None:
    main(["audit", "--machine", "dgx-a100-busy"])
    printed = capsys.readouterr().out.splitlines()
    blocks = [
        it for it in BLOCKS if it.text.startswith("$ affinityd audit --machine dgx-a100-busy\n")
    ]
    assert len(blocks) > 1
    for block in blocks:
        for line in block.text.splitlines()[1:]:
            assert any(it.startswith(line.removesuffix("…")) for it in printed), f"{block}: {line}"


PROGRAMS = REPOSITORY / "examples"


def test_without_pytorch_one_line_says_so() -> None:
    command = [sys.executable, "-I", "-S", str(PROGRAMS / "loader_ab.py")]  # no installed packages
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "loader_ab.py needs PyTorch; pip install torch brings it\n"


def test_every_example_is_in_the_readme_of_examples() -> None:
    readme = (PROGRAMS / "README.md").read_text()
    assert [path.name for path in PROGRAMS.glob("*.py") if f"({path.name})" not in readme] == []
