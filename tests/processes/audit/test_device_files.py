"""Device files that are made for the test, held open by a real process.

No driver of a GPU is here: the file is that of a driver of the kernel's that hardly a process uses,
under the GPU's name.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from affinityd.audit.model import Holding
from affinityd.audit.sources.device_files import ROOT_ONLY, DeviceFileScanner
from affinityd.topology.model import Gpu
from tests.support.children import program
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")

NPU = Gpu(0, "huawei", "0000:c0:00.0", numa_node=0)
HOLDING = "import sys; file = open(sys.argv[1]); print('ready', flush=True); input()"


@pytest.fixture
def dev() -> Iterator[Path]:
    """Return a /dev, which other users see, with the file of an NPU: that of /dev/full."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        os.mknod(f"{folder}/davinci0", stat.S_IFCHR | 0o666, os.makedev(1, 7))
        yield Path(folder)


def test_a_process_that_holds_a_gpus_file_is_found(dev: Path) -> None:
    scanner = DeviceFileScanner(sys="/none", dev=os.fspath(dev))
    with program(HOLDING, f"{dev}/davinci0") as child:
        found = scanner.found((NPU,))
    assert Holding(child.pid, NPU.key) in found.holdings
    assert (found.unknown, found.skipped) == ({}, 0)
    assert child.pid not in {it.pid for it in scanner.found((NPU,)).holdings}


AS_NOBODY = """
import os, sys
sys.path[:] = sys.argv[2:]
from affinityd.audit.sources.device_files import DeviceFileScanner
from tests.processes.audit.test_device_files import NPU
file = open(f"{sys.argv[1]}/davinci0")
os.setgid(65534)
os.setuid(65534)
found = DeviceFileScanner(sys="/none", dev=sys.argv[1]).found((NPU,))
print(found.unknown, [it.gpu for it in found.holdings if it.pid == os.getpid()])
"""


def test_without_the_rights_to_see_all_processes_files_nothing_is_known(dev: Path) -> None:
    """As another user: it sees its own process's files and not those of the first process."""
    command = [sys.executable, "-c", AS_NOBODY, os.fspath(dev), os.fspath(REPOSITORY), *sys.path]
    told = subprocess.check_output(command, text=True).strip()
    assert told == f"{ {NPU.key: ROOT_ONLY} } {[NPU.key]}"
