"""What the examples say where they cannot run; tests/e2e/torch/test_torch.py runs them."""

from __future__ import annotations

import subprocess
import sys

from tests.support.paths import REPOSITORY

EXAMPLES = REPOSITORY / "examples"


def test_without_pytorch_there_is_one_line_that_says_so() -> None:
    command = [sys.executable, "-I", "-S", str(EXAMPLES / "loader_ab.py")]  # no installed packages
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "loader_ab.py needs PyTorch; pip install torch brings it\n"


def test_every_example_is_in_the_readme() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f"({path.name})" not in readme] == []
