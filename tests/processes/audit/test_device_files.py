"""A real process that holds a device file open, looked for with and without the rights to see it.

No driver of a GPU is here: the file is /dev/full, which hardly a process uses, under an NPU's name.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from affinityd.audit.model import Holding
from affinityd.audit.sources.holders import ROOT_ONLY, DeviceFileScanner
from affinityd.topology.model import Gpu
from tests.support.child_python import said
from tests.support.children import program

NPU = Gpu(0, "huawei", "0000:c0:00.0", numa_node=0)
HOLDING = "file = open('/dev/full'); print('ready', flush=True); input()"
AS_NOBODY = """
import os, sys
from tests.processes.audit.test_device_files import NPU, DeviceFileScanner
file = open("/dev/full")
os.setgid(65534)
os.setuid(65534)
found = DeviceFileScanner(sys="/none", dev=sys.argv[1]).found((NPU,))
print(found.unknown, [it.gpu for it in found.holdings if it.pid == os.getpid()])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the files of all processes")
def test_a_process_that_holds_a_gpus_file_is_found_and_to_another_user_nothing_is_known() -> None:
    """Another user sees the files of its own processes, and not those of the first process."""
    with TemporaryDirectory() as dev:
        Path(dev).chmod(0o755)
        Path(dev, "davinci0").symlink_to("/dev/full")
        scanner = DeviceFileScanner(sys="/none", dev=dev)
        with program(HOLDING) as child:
            found = scanner.found((NPU,))
        assert Holding(child.pid, NPU.key) in found.holdings
        assert (found.unknown, found.skipped) == ({}, 0)
        assert child.pid not in {it.pid for it in scanner.found((NPU,)).holdings}
        assert said(AS_NOBODY, dev) == f"{ {NPU.key: ROOT_ONLY} } {[NPU.key]}"
