from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.shared_objects import environment

Facts = Callable[[str], Path]  #: text → the file that NVML holds open


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """Let NVML answer from a text, in the words of libnvidia_ml.c."""

    def write(text: str) -> Path:
        device = tmp_path / "nvidiactl"
        device.touch()
        for name, value in environment(f"device {device}\n{text}", tmp_path).items():
            monkeypatch.setenv(name, value)
        return device

    return write
