"""A node's daemon, and pods on that node that `affinityd init` has prepared."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.json_codec import dumps
from tests.support.daemons import Daemon, running
from tests.support.machines.sysfs_tree import nvml_report, write_tree
from tests.support.pods import Pod
from tests.support.tiny import affinityd
from tests.unit.request.test_devices import EIGHT


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = write_tree(EIGHT, tmp_path_factory.mktemp("machine"))
    (written / "nvml.json").write_text(dumps(nvml_report(EIGHT)))
    return written


@pytest.fixture(scope="module")
def daemon(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("node")
    with running(folder, "--root", str(tree), listen="127.0.0.1:0") as started:
        yield started


@pytest.fixture
def pod(daemon: Daemon, tmp_path: Path) -> Pod:
    made = Pod(tmp_path, daemon.socket, {"AFFINITYD_MODE": "unique_contiguous"})
    made.has("nvidia5")  # GPU 2
    return made


@pytest.fixture
def tiny_pod(tiny_daemon: Daemon, tmp_path: Path) -> Path:
    done = affinityd("init", "--to", str(tmp_path / "to"), "--socket", str(tiny_daemon.socket))
    assert done.status == 0, done.stderr
    script = tmp_path / "to/run"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia1").touch()
    script.write_text(script.read_text().replace("dev=/dev ", f"dev={tmp_path}/dev "))
    return script
