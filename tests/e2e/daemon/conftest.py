"""A daemon on a shipped machine, and a folder for those of a test's own."""

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
