"""The man page is rendered without a warning, and bash completes the commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from affinityd.cli import COMMANDS
from tests.support.paths import REPOSITORY

#: Typed text → the word to which a tab completes the last typed word.
TYPED = {
    "affinityd snap": "snapshot",
    "affinityd plan --expl": "--explain",
    "affinityd plan --mode unique_c": "unique_contiguous",
    "affinityd topology --machine dgx-h": "dgx-h100",
    "affinityd doctor gpu-nu": "gpu-numa-node",
    "affinityd slurm gres": "gres-conf",
    "affinityd exec --memory inter": "interleave",
    "affinityd snapshot --output /usr/inclu": "/usr/include/",
}
#: Completes the last of the words, as bash does at a tab.
BASH = """\
source {0}/bash-completion/completions/affinityd
COMP_WORDS=({1}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_affinityd {1} 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    script = os.fspath(REPOSITORY / "scripts/manual")
    subprocess.run([script, folder], check=True, env={**os.environ, "PYTHON": sys.executable})
    return folder


def rendered(page: Path) -> str:
    environment = {**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    command = ["man", "--warnings", "-l", os.fspath(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    return done.stdout


def test_the_man_page_names_every_command(share: Path) -> None:
    page = rendered(share / "man/man1/affinityd.1")
    assert [name for name in COMMANDS if f"COMMAND 'affinityd {name}'" not in page] == []


@pytest.mark.parametrize(("typed", "word"), TYPED.items())
def test_bash_completes_commands_and_options(typed: str, word: str, share: Path) -> None:
    script = BASH.format(share, typed)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert word.removesuffix("/") in done.stdout.splitlines()
