"""A daemon on a built-in machine, and folders for daemons that a test starts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, running
from tests.support.paths import open_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with open_folder() as folder, running(folder, "--machine", "dgx-a100") as daemon:
        yield daemon
