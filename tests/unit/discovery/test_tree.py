"""A machine's files: the running one's, a folder's, an archive's; and roots that are no machine."""

import io
import os
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from affinityd.discovery import archive as archives
from affinityd.discovery import open_tree
from affinityd.discovery.snapshot import COMPRESSIONS
from affinityd.discovery.tree import Tree
from affinityd.errors import TreeError
from tests.support.machines.sysfs_tree import put
from tests.support.tables import rows

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


def as_folder(tmp_path: Path, below: str = "") -> Path:
    small_machine(tmp_path / "node1" / below)
    return tmp_path / "node1"


def as_archive(suffix: str, prefix: str = "") -> Callable[[Path], Path]:
    def make(tmp_path: Path) -> Path:
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as archive:
            archive.add(small_machine(tmp_path / "made"), prefix)
        path = tmp_path / f"node1{suffix}"
        path.write_bytes(COMPRESSIONS[suffix](plain.getvalue()))
        return path

    return make


FORMS = {
    "a folder": as_folder,
    "a folder with the machine two below": partial(as_folder, below="captures/today"),
    "a plain archive with dots before its names": as_archive(".tar", "."),
    "a gzip archive": as_archive(".tar.gz"),
    "an xz archive with the machine two below": as_archive(".tar.xz", "linux/node1"),
}


@pytest.fixture(scope="module", params=list(FORMS.values()), ids=list(FORMS))
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return open_tree(str(request.param(tmp_path_factory.mktemp("tree"))))


def test_the_root_folder_is_the_machine_at_hand(tmp_path: Path) -> None:
    live = open_tree("/")
    assert (live.name, live.live) == (os.uname().nodename, True)
    assert live.read(f"{CPUS}/online") == Path(f"/{CPUS}/online").read_text().strip()
    assert open_tree("/", "gpu07").name == "gpu07"
    assert open_tree(str(as_folder(tmp_path)), "gpu07").name == "node1"


def test_a_tree_reads_files_lists_folders_and_reads_links(tree: Tree) -> None:
    assert (tree.name, tree.live) == ("node1", False)
    assert tree.read(f"{CPUS}/online") == "0"  # without its line's end
    assert tree.read("nul") == "0-7"
    assert tree.read("long") == "x" * 10_000  # longer than a page
    assert tree.read(f"{LINK}/class") == "0x030200"
    assert tree.read("fields", "Model:", "UUID") == "Model: A\nUUID: B"
    assert tree.read("fields", "IRQ") == ""
    # What is missing, a folder, no text, beyond a file.
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
    rows("""
    it is not there | nowhere | No such file
    nothing is in it | empty | holds no machine
    two are in it | two | several machines; name one:
    a compressed archive's beginning | garbage.tar.xz | cannot be read
    no archive | notes.txt | cannot be read
    an archive without its end | torn.tar.gz | cannot be read
    an empty archive | none.tar | holds no machine
    """),
)
def test_a_root_without_a_machine_is_an_error_of_one_line(
    tmp_path: Path, name: str, complaint: str
) -> None:
    small_machine(tmp_path / "two/a")
    small_machine(tmp_path / "two/b")
    (tmp_path / "empty").mkdir()
    (tmp_path / "garbage.tar.xz").write_bytes(b"\xfd7zXZ\0 and no more of it")
    put(tmp_path / "notes.txt", "This is no archive.\n" * 100)
    (tmp_path / "torn.tar.gz").write_bytes(as_archive(".tar.gz")(tmp_path).read_bytes()[:-200])
    with tarfile.open(tmp_path / "none.tar", "w"):
        pass
    with pytest.raises(TreeError, match=rf"\A.*{name}.*{complaint}.*\Z"):
        open_tree(str(tmp_path / name))


@pytest.mark.parametrize(
    ("limit", "most", "complaint"),
    [("MAX_UNPACKED", 8192, "larger than 8192 bytes"), ("MAX_MEMBERS", 2, "more than 2 entries")],
)
def test_an_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, complaint: str
) -> None:
    monkeypatch.setattr(archives, limit, most)
    with pytest.raises(TreeError, match=complaint):
        open_tree(str(as_archive(".tar.xz")(tmp_path)))


def test_a_hostile_archive_reads_nothing_outside_itself(tmp_path: Path) -> None:
    links = {"absolute": "/nul", "above": "../../../../etc/hostname", "round": "round"}
    links |= {"ping": "pong/x", "pong": "ping/x", "endless": "./" * 3000 + "nul"}
    with tarfile.open(tmp_path / "node1.tar", "w") as archive:
        archive.add(small_machine(tmp_path / "made"), "node1")
        for name, target in links.items():
            link = tarfile.TarInfo(f"node1/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        hole = tarfile.TarInfo("node1/hole")
        hole.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(10**12)}
        archive.addfile(hole)
        archive.addfile(tarfile.TarInfo("node1/" + "a/" * 60 + "b"))  # deeper than any path
        escape = tarfile.TarInfo("../outside")
        escape.size = 1
        archive.addfile(escape, io.BytesIO(b"x"))
    tree = open_tree(str(tmp_path / "node1.tar"))
    assert {tree.read(name) for name in (*links, "hole", "../outside")} == {None}
    assert tree.list("above") == tree.list("round") == ()
    assert "a" not in tree.list("")
    assert not (tmp_path.parent / "outside").exists()
