"""Trees like a kernel's, but with errors: each gives a machine, or is refused in one line, soon."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.discovery import discover, open_tree, snapshot_nvml
from affinityd.discovery.nvml import NvmlReport
from affinityd.discovery.snapshot import write_snapshot
from affinityd.errors import TreeError
from tests.e2e.fuzz.inputs import SOME, read_or_refused, words
from tests.e2e.fuzz.test_fuzz_documents import use
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import nvml_report, write_tree

HUGE = 100 * 2**20  #: the size in bytes of a sparse file without data

TEXTS = (
    *("", "-1", "0", "1", "65535", "65536", "99999999999999999999", "1" * 5000, "0-65535", "4-2"),
    *("0-65535:65535," * 5000, "ffffffff," * 5000, "0x10de\n0x1002", "x", "\x1b[2J", "²", "٣"),
    *("Unified", "Data", "0x030200", "0x120000", "Node 0 MemTotal: 9\x85 kB", "10 20", "10 -1 x"),
    *("location_id 9\ndrm_render_minor 128", "domain 4294967295", "unique_id 18446744073709551616"),
)

#: Names of files that a folder may have besides those that a kernel makes.
NAMES = (
    *words("cpu7 cpu65536 cpu99999999999999999999 cpu² cpux node9 node65536 online index9 vendor"),
    *words("node99999999999999999999 0000:ff:1f.7 99999:00:00.0 0000:00:00.0 numa_node class ..."),
    *("a\nb", "\x1b[2J", "mlx5_0", "eth\x7f", "renderD129"),
)


def hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


#: What may replace a file or folder.
KINDS: st.SearchStrategy[Callable[[Path], object]] = st.one_of(
    st.sampled_from([Path.mkdir, os.mkfifo, hole, lambda _path: None]),
    st.sampled_from([".", "..", "../../..", "/dev/zero", "/dev/null", "nowhere", "/"]).map(
        lambda target: lambda path: path.symlink_to(target)
    ),
    (st.sampled_from(TEXTS).map(str.encode) | st.binary(max_size=40)).map(
        lambda content: lambda path: path.write_bytes(content)
    ),
)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("trees")
    return {
        name: write_tree(machine(name), folder / name)
        for name in ("laptop", "two-vendors", "cloud-vm")
    }


#: Important files: a file drawn from the whole tree would mostly be about a cache.
PLACES = (
    *(f"sys/devices/system/{it}" for it in words("cpu cpu/* cpu/cpu*/topology node node/*")),
    *words("sys/devices/system/node/node*/* sys/bus/pci/devices sys/bus/pci/devices/* sys sys/*"),
    *words("sys/bus/pci/devices/*/* sys/class/kfd/kfd/topology/nodes/* **/cache/*/* **/*_list"),
    *words("sys/class/kfd/kfd/topology/nodes/*/* proc/* proc/driver/nvidia/gpus/*"),
    "proc/driver/nvidia/gpus/*/*",
)


def replace(path: Path, kind: Callable[[Path], object]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    kind(path)


def is_inside(path: Path, root: Path) -> bool:
    """Whether a path's folder is in the tree: a link may lead to files of this machine."""
    return path.parent.is_dir() and path.parent.resolve().is_relative_to(root.resolve())


def spoil(data: st.DataObject, root: Path) -> None:
    for _ in range(data.draw(st.integers(1, 6))):
        matches = sorted(root.glob(data.draw(st.sampled_from(PLACES))))
        paths = [it for it in matches if is_inside(it, root)] or [root]
        path = data.draw(st.sampled_from(paths))
        if path.is_dir() and data.draw(st.booleans()):
            path /= data.draw(st.sampled_from(NAMES))
        if path == root or not is_inside(path, root):
            continue
        is_folder = not path.is_symlink() and not path.is_file()
        is_numbered = path.name.startswith(("cpu", "node")) and is_folder
        if is_numbered and data.draw(st.booleans()):
            (path / "topology").mkdir(parents=True, exist_ok=True)
        else:
            replace(path, data.draw(KINDS))


@given(data=st.data())
@SOME
def test_a_tree_with_arbitrary_errors_gives_a_machine_or_is_refused(
    data: st.DataObject, trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = data.draw(st.sampled_from(sorted(trees)))
    folder = tmp_path_factory.mktemp("spoiled")
    # The tree lies so deep that links which lead up find no other test's machine.
    root = shutil.copytree(trees[name], folder / "a/b/c/root", symlinks=True)
    try:
        spoil(data, root)
        nvml = nvml_report(machine(name)) if data.draw(st.booleans()) else None
        read_or_refused(lambda: read_whole(root, nvml, folder / "made.tar"), TreeError)
    finally:
        shutil.rmtree(folder)


def read_whole(root: Path, nvml: NvmlReport | None, archive: Path) -> None:
    """Read a machine; then read its snapshot, which tar(1) has unpacked."""
    topology = discover(open_tree(os.fspath(root)), nvml)
    use(topology)
    write_snapshot(open_tree(os.fspath(root)), nvml, archive)
    unpacked = archive.with_name("unpacked")
    unpacked.mkdir()
    subprocess.run(["tar", "-C", unpacked, "-xf", archive], check=True)
    replayed = open_tree(os.fspath(unpacked))
    again = discover(replayed, snapshot_nvml(replayed))
    assert again.cores == topology.cores
    assert again.gpus == topology.gpus
