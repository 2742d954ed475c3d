"""The man page without a warning, and completion in the shells themselves."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from affinityd.cli import COMMANDS
from tests.support.daemons import PATIENCE
from tests.support.paths import REPOSITORY

#: What is typed, and the word that a tab makes of its end.
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
#: How an interactive shell completes, and shows the line as it is at Ctrl-G.
BASH = """\
source {0}/bash-completion/completions/affinityd
show() {{ printf '<%s>' "$READLINE_LINE"; }}
bind -x '"\\C-g": show'
"""
ZSH = """\
fpath=({0}/zsh/site-functions $fpath); autoload -U compinit; compinit -u -D
show() {{ print -rn -- "<$BUFFER>"; }}
zle -N show; bindkey '^G' show
"""
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], BASH),
    "zsh": (["zsh", "-f", "-i"], ZSH),
}


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


def test_the_page_names_every_command(share: Path) -> None:
    page = rendered(share / "man/man1/affinityd.1")
    assert [name for name in COMMANDS if f"COMMAND 'affinityd {name}'" not in page] == []


def read_until(terminal: int, pattern: str) -> str:
    """Read what a shell writes until this is in it, and return the pattern's group."""
    written, end = "", time.monotonic() + PATIENCE
    while not (found := re.search(pattern, written)):
        ready, _, _ = select.select([terminal], [], [], end - time.monotonic())
        assert ready, written
        written += os.read(terminal, 4096).decode(errors="replace")
    return found[1]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_tab_completes(shell: str, share: Path) -> None:
    command, setup = SHELLS[shell]
    terminal, other = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "PS1": "$ ", "HISTFILE": ""}
    with subprocess.Popen(
        command, stdin=other, stdout=other, stderr=other, env=environment, start_new_session=True
    ) as process:
        os.close(other)
        try:
            os.write(terminal, f"{setup.format(share)}echo rea''dy\n".encode())
            read_until(terminal, "(ready)\r\n")
            for typed, word in TYPED.items():
                os.write(terminal, f"{typed}\t\a".encode())
                line = read_until(terminal, "<(aff[^>]*)>")
                assert line.rstrip() == f"{typed.rpartition(' ')[0]} {word}"
                os.write(terminal, b"\x15")  # Ctrl-U empties the line
        finally:
            process.kill()
            os.close(terminal)


@pytest.mark.parametrize(("typed", "word"), TYPED.items())
def test_fish_completes(typed: str, word: str, share: Path) -> None:
    script = f"source {share}/fish/vendor_completions.d/affinityd.fish; complete -C {typed!r}"
    command = ["fish", "--no-config", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout.partition("\t")[0].strip(), done.stderr) == (word, "")
