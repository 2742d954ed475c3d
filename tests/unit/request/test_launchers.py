"""Variables that scripts send; tests/processes/cli/test_which_gpu.py tests each launcher."""

import re

import pytest

from affinityd.request.environment import MPS_LIST, OF_NUMBERS, VISIBLE_NAMES
from tests.support.paths import REPOSITORY


@pytest.mark.parametrize("script", ["affinityd/kubernetes/files/run.sh", "slurm/task_prolog.sh"])
def test_a_script_sends_every_variable_about_devices(script: str) -> None:
    names = re.findall(r"\b[A-Z][A-Z0-9_]+\b", (REPOSITORY / script).read_text())
    assert {*VISIBLE_NAMES, *OF_NUMBERS} - {MPS_LIST} <= set(names)
