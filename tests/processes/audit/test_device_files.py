"""Device files that are made for the test, held open by real processes.

No driver of a GPU is here: the files are those of drivers of the kernel that nobody uses, under
the GPU's name.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys as python
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from affinityd.audit.model import GpuKey, Holding
from affinityd.audit.sources.device_files import (
    EVERY,
    NO_FILE,
    ROOT_ONLY,
    TOO_MANY,
    DeviceFileScanner,
    GpuDeviceFiles,
    device_files,
)
from affinityd.topology.model import Gpu
from tests.support.children import program, sleeping
from tests.support.daemons import eventually
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")

ROOT = os.fspath(REPOSITORY)

#: Devices that can be opened, and that hardly a process has open: /dev/full, /dev/random.
NUMBERS = (os.makedev(1, 7), os.makedev(1, 8))
LOOP_0 = os.makedev(7, 0)  #: of a block device; as a character device it is a console's

HOLDING = (
    "import sys; files = [open(it) for it in sys.argv[1:]]; print('ready', flush=True); input()"
)

OPENING = """
import sys
print("ready", flush=True)
input()
file = open(sys.argv[1])
print("open", flush=True)
input()
"""

NPUS = tuple(Gpu(index, "huawei", f"0000:c{index}:00.0", numa_node=0) for index in range(2))
OF_ASCEND, OF_INTEL = ("huawei", 0), ("8086", 0)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """Return a /dev with the files of two NPUs and of their manager."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for index, number in enumerate(NUMBERS):
        os.mknod(folder / f"davinci{index}", stat.S_IFCHR | 0o666, number)
    os.mknod(folder / "davinci_manager", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    return folder


@contextmanager
def holding(*files: Path) -> Iterator[int]:
    """Run a process that has files open; give its pid."""
    with program(HOLDING, *map(os.fspath, files)) as child:
        yield child.pid


def files_of(dev: Path) -> DeviceFileScanner:
    return DeviceFileScanner(sys=os.fspath(dev / "no sysfs"), dev=os.fspath(dev))


def held_by(files: DeviceFileScanner, *pids: int) -> list[list[int]]:
    """Return the GPUs that each of these holds; other tests have their holders at the same time."""
    holdings = files.found(NPUS).holdings
    return [sorted(it.gpu[1] for it in holdings if it.pid == pid) for pid in pids]


def test_who_holds_a_gpus_file_is_found(dev: Path) -> None:
    with holding(dev / "davinci0") as one, holding(dev / "davinci0", dev / "davinci1") as both:
        found = files_of(dev).found(NPUS)
        assert Holding(one, OF_ASCEND) in found.holdings
        assert (found.unknown, found.skipped) == ({}, 0)
        assert held_by(files_of(dev), one, both) == [[0], [0, 1]]


def test_the_file_that_everybody_holds_is_no_gpus(dev: Path) -> None:
    with holding(dev / "davinci_manager") as pid:
        assert held_by(files_of(dev), pid) == [[]]


def test_a_file_is_the_gpus_by_its_number_whatever_its_name(dev: Path) -> None:
    with holding(Path("/dev/full")) as pid:
        assert held_by(files_of(dev), pid) == [[0]]


def test_a_block_device_of_the_same_number_is_another(tmp_path: Path) -> None:
    os.mknod(tmp_path / "davinci0", stat.S_IFBLK | 0o600, LOOP_0)
    assert device_files(NPUS, dev=os.fspath(tmp_path)).gpu_of == {}


@pytest.mark.parametrize(
    ("target", "may_be"),
    [
        pytest.param("/dev/davinci0", True, id="the file"),
        pytest.param("/dev/npu7", True, id="a file of another name in /dev"),
        pytest.param("/dev/null", False, id="what everybody has open"),
        pytest.param("/dev/pts/42", False, id="a terminal"),
        pytest.param("/var/lib/rootfs/dev/davinci0", True, id="the file of a container"),
        pytest.param("/nfs/run/train.log", False, id="a file of another name elsewhere"),
        pytest.param("socket:[4711]", False, id="what is no file"),
    ],
)
def test_a_file_that_can_be_no_gpus_is_not_even_looked_at(target: str, may_be: bool) -> None:
    assert GpuDeviceFiles({}, frozenset({"davinci0"})).is_one(target) is may_be


def test_a_file_in_a_container_is_found_through_its_name(dev: Path, tmp_path: Path) -> None:
    rootfs = tmp_path / "rootfs/dev"
    rootfs.mkdir(parents=True)
    os.mknod(rootfs / "davinci1", stat.S_IFCHR | 0o666, NUMBERS[1])
    with holding(rootfs / "davinci1") as pid:
        assert held_by(files_of(dev), pid) == [[1]]


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Return a /sys in which an accelerator, its control device and an NPU's bus have a file."""
    folder = tmp_path / "sys/dev/char"
    folder.mkdir(parents=True)
    at = "../../devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0"
    (folder / "1:7").symlink_to(f"{at}/accel/accel0")
    (folder / "1:8").symlink_to(f"{at}/accel_control/accel_controlD0")
    (folder / "1:9").symlink_to(f"{at}/i2c-3/i2c-dev/i2c-3")
    (folder / "1:3").symlink_to("../../devices/virtual/mem/null")
    (folder / "13:63").symlink_to("../../devices/pci0000:c0/0000:c0:02.0/input/mice")
    return tmp_path / "sys"


ACCELERATOR = Gpu(0, "8086", "0000:c1:00.0", numa_node=0)


def test_sysfs_tells_which_file_is_whose(sysfs: Path, tmp_path: Path) -> None:
    files = device_files((ACCELERATOR,), os.fspath(sysfs), os.fspath(tmp_path))
    assert files == GpuDeviceFiles({NUMBERS[0]: OF_INTEL}, frozenset({"accel0"}))


def test_the_name_counts_only_where_sysfs_says_nothing(dev: Path, sysfs: Path) -> None:
    """/dev/davinci0 would be the NPU's that sysfs puts at 1:7, davinci1 is by its name alone."""
    npus = (
        replace(NPUS[0], pci_bus_id="0000:c1:00.0"),
        replace(NPUS[1], pci_bus_id="0000:c2:00.0"),
    )
    (dev / "davinci0").rename(dev / "davinci7")
    files = device_files(npus, os.fspath(sysfs), os.fspath(dev))
    assert files.gpu_of == {NUMBERS[0]: ("huawei", 0), NUMBERS[1]: ("huawei", 1)}


def test_of_a_gpu_without_a_file_nothing_is_known(dev: Path) -> None:
    gpus = (*NPUS, ACCELERATOR)
    assert files_of(dev).found(gpus).unknown == {OF_INTEL: NO_FILE}


AS_NOBODY = """
import os, sys
sys.path[:] = sys.argv[2:]
from affinityd.audit.sources.device_files import DeviceFileScanner
from tests.processes.audit.test_device_files import NPUS
file = open(f"{sys.argv[1]}/davinci0")
os.setgid(65534)
os.setuid(65534)
found = DeviceFileScanner(sys="/none", dev=sys.argv[1]).found(NPUS)
print(found.unknown, [it.gpu for it in found.holdings if it.pid == os.getpid()])
"""


def test_without_the_rights_to_see_everybodys_files_nothing_is_known() -> None:
    """As another user: it sees its own process's files and not those of the first process."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        os.mknod(f"{folder}/davinci0", stat.S_IFCHR | 0o666, NUMBERS[0])
        os.mknod(f"{folder}/davinci1", stat.S_IFCHR | 0o666, NUMBERS[1])
        command = [python.executable, "-c", AS_NOBODY, folder, ROOT, *python.path]
        told = subprocess.check_output(command, text=True).strip()
    assert told == f"{ {gpu.key: ROOT_ONLY for gpu in NPUS} } {[OF_ASCEND]}"


def test_a_proc_that_hides_processes_does_not_tell_who_holds_a_file(
    dev: Path, tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    files = DeviceFileScanner(proc=os.fspath(tmp_path / "proc"), sys="/none", dev=os.fspath(dev))
    assert files.found(NPUS).unknown == {gpu.key: ROOT_ONLY for gpu in NPUS}


def test_who_held_none_is_looked_at_again_once_in_a_few_scans(
    dev: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, looked_at = files_of(dev), list[int]()
    keys = files._keys

    def noting(pid: int) -> set[GpuKey]:
        looked_at.append(pid)
        return keys(pid)

    monkeypatch.setattr(files, "_keys", noting)
    with sleeping() as child:
        scans = []
        for scan in range(3 * EVERY):
            looked_at.clear()
            assert held_by(files, child.pid) == [[]]
            scans += [scan] * (child.pid in looked_at)
    assert scans[0] == 0
    turn = (child.pid - 1) % EVERY
    assert scans[1:] == [scan for scan in range(1, 3 * EVERY) if scan % EVERY == turn]


def test_who_opens_a_file_later_is_found_within_a_few_scans(dev: Path) -> None:
    files = files_of(dev)
    with program(OPENING, os.fspath(dev / "davinci1")) as child:
        assert held_by(files, child.pid) == [[]]
        assert child.stdin is not None
        assert child.stdout is not None
        print(file=child.stdin, flush=True)
        child.stdout.readline()
        looks = [held_by(files, child.pid)[0] for _ in range(EVERY)]
        assert looks[-1] == [1]
        assert looks == sorted(looks), "once found, it is found every time"
    assert held_by(files, child.pid) == [[]]
    assert child.pid not in files._known


def test_other_files_have_everybody_looked_at_anew(dev: Path) -> None:
    files = files_of(dev)
    (dev / "davinci1").rename(dev / "hidden")
    with holding(dev / "hidden") as pid:
        assert held_by(files, pid) == [[]]
        (dev / "hidden").rename(dev / "davinci1")
        assert held_by(files, pid) == [[1]]


def test_a_scan_that_takes_too_long_is_gone_on_with_the_next_time(dev: Path) -> None:
    """By a clock that goes on by a second at each look: one process is reached in a scan."""
    seconds = iter(range(1_000_000))
    files = DeviceFileScanner(sys="/none", dev=os.fspath(dev), clock=lambda: float(next(seconds)))
    with ExitStack() as stack:
        pids = {stack.enter_context(holding(dev / "davinci0")) for _ in range(3)}
        first = files.found(NPUS)
        skipped = first.skipped
        assert skipped > 0
        assert set(first.unknown.values()) == {TOO_MANY}
        reached: set[int] = set()
        for _ in range(10 * skipped):
            reached |= {it.pid for it in files.found(NPUS).holdings}
            if pids <= reached:
                break
        assert pids <= reached


def test_a_process_that_vanishes_costs_nothing_but_itself(dev: Path) -> None:
    files = files_of(dev)
    with holding(dev / "davinci0") as gone, holding(dev / "davinci0") as there:
        assert held_by(files, gone, there) == [[0], [0]]
        os.kill(gone, signal.SIGKILL)
        eventually(lambda: held_by(files, gone, there) == [[], [0]], "one of them is gone")
    assert files._keys(gone) == set()


def test_a_machine_without_such_gpus_has_no_process_looked_at(dev: Path) -> None:
    files = files_of(dev)
    assert files.found(()).unknown == {}
    assert files._known == {}
