"""The files of this machine and of captured machines, and roots that are no machine."""

import os
from pathlib import Path

import pytest

from affinityd.discovery import open_tree
from affinityd.discovery.tree import Tree
from affinityd.errors import TreeError
from tests.support.machines.sysfs_tree import put

CPUS = "sys/devices/system/cpu"
DEVICE = "sys/devices/pci0000:00/0000:00:01.0"
LINK = "sys/bus/pci/devices/0000:00:01.0"


def small_machine(root: Path) -> Path:
    """Make a machine of one CPU and one PCI device, in a folder of its own."""
    put(root / CPUS / "online", "0")
    put(root / CPUS / "cpu0/topology/core_id", "0")
    put(root / DEVICE / "class", "0x030200")
    (root / LINK).parent.mkdir(parents=True)
    (root / LINK).symlink_to("../../../devices/pci0000:00/0000:00:01.0")
    (root / "nul").write_bytes(b" 0-7\n\0")
    (root / "binary").write_bytes(b"\xff\xfe\x00")
    put(root / "long", "x" * 10_000)
    put(root / "fields", "Model: A\nModel number: 12\nSerial: 77\nUUID: B")
    return root


def test_the_root_folder_is_this_machine(tmp_path: Path) -> None:
    live = open_tree("/")
    assert (live.name, live.live) == (os.uname().nodename, True)
    assert live.read(f"{CPUS}/online") == Path(f"/{CPUS}/online").read_text().strip()
    assert open_tree("/", "gpu07").name == "gpu07"
    assert open_tree(str(small_machine(tmp_path / "node1")), "gpu07").name == "node1"


def test_a_tree_reads_files_and_links_and_lists_folders(tmp_path: Path) -> None:
    tree = open_tree(str(small_machine(tmp_path / "node1")))
    assert (tree.name, tree.live) == ("node1", False)
    assert tree.read(f"{CPUS}/online") == "0"  # without the end of the line
    assert tree.read("nul") == "0-7"
    assert tree.read("long") == "x" * 10_000  # longer than a page
    assert tree.read(f"{LINK}/class") == "0x030200"
    assert tree.read("fields", "Model:", "UUID") == "Model: A\nUUID: B"
    assert tree.read("fields", "IRQ") == ""
    # A missing file, a folder, a file that is no text, and a path below a file.
    for path in (f"{CPUS}/possible", CPUS, "binary", f"{CPUS}/online/deeper"):
        assert tree.read(path) is None
    assert tree.list(CPUS) == ("cpu0", "online")
    assert tree.list(CPUS, lambda name: name != "online") == ("cpu0",)
    assert tree.list(LINK) == ("class",)
    assert tree.list("no/such") == tree.list(f"{CPUS}/online") == ()
    assert tree.link(LINK) == "../../../devices/pci0000:00/0000:00:01.0"
    assert tree.link(f"{CPUS}/online") is tree.link("no/such") is None


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere", "holds no machine"),
        ("empty", "holds no machine"),
        ("node.tar", r"unpack it \(mkdir node && tar -C node -xf .*/node.tar\)"),
    ],
)
def test_a_root_without_a_machine_is_an_error_of_one_line(
    tmp_path: Path, name: str, complaint: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "node.tar").touch()
    with pytest.raises(TreeError, match=rf"\A.*{name}.*{complaint}.*\Z"):
        open_tree(str(tmp_path / name))


def test_links_in_a_captured_machine_lead_to_no_file_outside_of_it(tmp_path: Path) -> None:
    root = small_machine(tmp_path / "node1")
    put(tmp_path / "outside", "secret")
    put(tmp_path / "node12/file", "secret")
    links = {"absolute": "/etc/hostname", "above": "../outside", "round": "round"}
    links |= {"folder": "..", "beside": "../node12/file"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    tree = open_tree(str(root))
    assert {tree.read(name) for name in (*links, "folder/outside", "../outside")} == {None}
    assert tree.list("folder") == tree.list("..") == ()
    assert Tree(f"{root}/", "node1", live=True).read("above") == "secret"
