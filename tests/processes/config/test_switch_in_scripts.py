"""The shell scripts read AFFINITYD=on|observe|off as everything else does."""

from __future__ import annotations

import subprocess

import pytest

from affinityd import config
from tests.support.paths import REPOSITORY
from tests.support.switch_words import OTHERS, WORDS

PINNING = REPOSITORY / "slurm/pinning.sh"
HEED = 'for one; do for other; do switch=on; heed "$one"; heed "$other"; echo $switch; done; done'


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_scripts_read_it_as_everything_else_does(shell: str) -> None:
    words = [word for words in WORDS.values() for word in words]
    command = [shell, "-c", f". {PINNING}\n{HEED}", "sh", *words]
    told = subprocess.check_output(command, text=True).split()
    meant = [config.read_switch(word) for word in words]
    assert told == [config.least_switch(one, other) for one in meant for other in meant]
    for word in OTHERS:
        done = subprocess.run([shell, "-c", f'. {PINNING}; heed "$1"', "sh", word], check=False)
        assert done.returncode == 1
