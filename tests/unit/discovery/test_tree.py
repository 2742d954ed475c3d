from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from affinityd.discovery import archive as archives
from affinityd.discovery import open_tree
from affinityd.discovery.snapshot import COMPRESSIONS
from affinityd.discovery.tree import Tree
from affinityd.errors import TreeError
from tests.support.machines.sysfs_tree import put

CPUS = "sys/devices/system/cpu"
DEVICE = "sys/devices/pci0000:00/0000:00:01.0"
LINK = "sys/bus/pci/devices/0000:00:01.0"


def small_machine(root: Path) -> Path:
    """A machine of one CPU and one PCI device, in a folder of its own."""
    put(root / CPUS / "online", "0")
    put(root / CPUS / "cpu0/topology/core_id", "0")
    put(root / DEVICE / "class", "0x030200")
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / LINK).symlink_to("../../../devices/pci0000:00/0000:00:01.0")
    (root / "nul").write_bytes(b" 0-7\n\0")
    (root / "binary").write_bytes(b"\xff\xfe\x00")
    put(root / "long", "x" * 10_000)
    put(root / "fields", "Model: A\nModel number: 12\nSerial: 77\nUUID: B")
    return root


def as_folder(tmp_path: Path) -> Path:
    return small_machine(tmp_path / "node1")


def as_wrapped_folder(tmp_path: Path) -> Path:
    small_machine(tmp_path / "node1/captures/today")
    return tmp_path / "node1"


def as_archive(suffix: str, prefix: str = "") -> Callable[[Path], Path]:
    def make(tmp_path: Path) -> Path:
        root = small_machine(tmp_path / "made")
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as archive:
            archive.add(root, prefix)
        path = tmp_path / f"node1{suffix}"
        path.write_bytes(COMPRESSIONS[suffix](plain.getvalue()))
        return path

    return make


FORMS = {
    "a folder": as_folder,
    "a folder with the machine two below": as_wrapped_folder,
    "a plain archive": as_archive(".tar"),
    "an archive with dots before its names": as_archive(".tar", "."),
    "a gzip archive": as_archive(".tar.gz"),
    "a bzip2 archive": as_archive(".tar.bz2"),
    "an xz archive with the machine two below": as_archive(".tar.xz", "linux/node1"),
}


@pytest.fixture(params=list(FORMS.values()), ids=list(FORMS))
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    return open_tree(str(request.param(tmp_path)))


def test_a_replayed_machine_is_called_as_its_folder_or_archive(tree: Tree) -> None:
    assert (tree.name, tree.live) == ("node1", False)


def test_the_root_folder_is_the_machine_at_hand_by_its_host_name() -> None:
    live = open_tree("/")
    assert (live.name, live.live) == (os.uname().nodename, True)
    assert live.read(f"{CPUS}/online") == Path(f"/{CPUS}/online").read_text().strip()


def test_the_machine_at_hand_can_be_given_a_name_and_a_replayed_one_has_its_own(
    tmp_path: Path,
) -> None:
    assert open_tree("/", "gpu07").name == "gpu07"
    assert open_tree(str(small_machine(tmp_path / "node1")), "gpu07").name == "node1"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(f"{CPUS}/online", "0", id="a kernel attribute, without its line's end"),
        pytest.param("nul", "0-7", id="a file that ends in a NUL"),
        pytest.param("long", "x" * 10_000, id="a file longer than a page"),
        pytest.param(f"{LINK}/class", "0x030200", id="a file beyond a link"),
        pytest.param(f"{CPUS}/possible", None, id="a file that is missing"),
        pytest.param(CPUS, None, id="a folder is no file"),
        pytest.param("binary", None, id="a file that is no text"),
        pytest.param(f"{CPUS}/online/deeper", None, id="a file taken for a folder"),
    ],
)
def test_reading(tree: Tree, path: str, text: str | None) -> None:
    assert tree.read(path) == text


def test_only_the_lines_that_begin_as_asked_are_read(tree: Tree) -> None:
    assert tree.read("fields", "Model:", "UUID") == "Model: A\nUUID: B"
    assert tree.read("fields", "IRQ") == ""


def test_a_folder_lists_its_names_sorted_and_those_wanted_alone(tree: Tree) -> None:
    assert tree.list(CPUS) == ("cpu0", "online")
    assert tree.list(CPUS, lambda name: name != "online") == ("cpu0",)
    assert tree.list(LINK) == ("class",)
    assert tree.list("no/such") == tree.list(f"{CPUS}/online") == ()


def test_a_link_is_told_as_it_is_written(tree: Tree) -> None:
    assert tree.link(LINK) == "../../../devices/pci0000:00/0000:00:01.0"
    assert tree.link(f"{CPUS}/online") is None
    assert tree.link("no/such") is None


def test_a_pipe_in_a_captured_folder_holds_nobody_up(tmp_path: Path) -> None:
    root = small_machine(tmp_path)
    os.mkfifo(root / "pipe")
    assert open_tree(str(root)).read("pipe") == ""


def test_a_machine_that_holds_other_machines_is_itself_the_machine(tmp_path: Path) -> None:
    small_machine(tmp_path / "node1")
    small_machine(tmp_path / "node1/copies/node2")
    with tarfile.open(tmp_path / "node1.tar", "w") as archive:
        archive.add(tmp_path / "node1", ".")
    for root in (tmp_path / "node1", tmp_path / "node1.tar"):
        assert open_tree(str(root)).list("copies") == ("node2",)


def missing(tmp_path: Path) -> Path:
    return tmp_path / "nowhere"


def empty(tmp_path: Path) -> Path:
    return tmp_path


def two_machines(tmp_path: Path) -> Path:
    small_machine(tmp_path / "a")
    small_machine(tmp_path / "b")
    return tmp_path


def garbage(tmp_path: Path) -> Path:
    (tmp_path / "garbage.tar.xz").write_bytes(b"\xfd7zXZ\0 and no more of it")
    return tmp_path / "garbage.tar.xz"


def prose(tmp_path: Path) -> Path:
    put(tmp_path / "notes.txt", "This is no archive.\n" * 100)
    return tmp_path / "notes.txt"


def truncated(tmp_path: Path) -> Path:
    path = as_archive(".tar.gz")(tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    return path


def empty_archive(tmp_path: Path) -> Path:
    tarfile.open(tmp_path / "empty.tar", "w").close()
    return tmp_path / "empty.tar"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        pytest.param(missing, "No such file", id="a root that does not exist"),
        pytest.param(empty, "holds no machine", id="a folder without a machine"),
        pytest.param(two_machines, "several machines; name one: ", id="a folder of two machines"),
        pytest.param(garbage, "cannot be read", id="an archive of garbage"),
        pytest.param(prose, "cannot be read", id="a file that is no archive"),
        pytest.param(truncated, "cannot be read", id="an archive that was cut off"),
        pytest.param(empty_archive, "holds no machine", id="an archive without a machine"),
    ],
)
def test_a_root_that_is_no_machine_is_an_error_of_one_line(
    make: Callable[[Path], Path], complaint: str, tmp_path: Path
) -> None:
    root = make(tmp_path)
    with pytest.raises(TreeError, match=complaint) as raised:
        open_tree(str(root))
    assert str(root) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = as_archive(".tar.xz")(tmp_path)
    monkeypatch.setattr(archives, "MAX_BYTES", 8192)
    with pytest.raises(TreeError, match="larger than 8192 bytes"):
        open_tree(str(path))


def test_a_hostile_archive_reaches_neither_what_is_outside_nor_all_memory(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "node1.tar", "w") as archive:
        archive.add(small_machine(tmp_path / "made"), "node1")
        for name, target in {
            "node1/absolute": "/etc/hostname",
            "node1/above": "../../../../etc/hostname",
            "node1/round": "round",
            "node1/ping": "pong/x",
            "node1/pong": "ping/x",
        }.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        hole = tarfile.TarInfo("node1/hole")
        hole.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(10**12)}
        archive.addfile(hole)
        escape = tarfile.TarInfo("../outside")
        escape.size = 1
        archive.addfile(escape, io.BytesIO(b"x"))
    tree = open_tree(str(tmp_path / "node1.tar"))
    names = ("absolute", "above", "round", "ping", "hole", "../outside")
    assert [tree.read(name) for name in names] == [None] * len(names)
    assert tree.list("above") == tree.list("round") == ()
    assert not (tmp_path.parent / "outside").exists()


def header(name: str, size: int) -> bytes:
    """A member's header in GNU's format, whose size may be negative."""
    content = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    content[124:136] = size.to_bytes(12, "big", signed=True)
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content)
    return bytes(content)


def test_a_member_of_less_than_nothing_is_not_read_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "back.tar"
    path.write_bytes(header(f"{CPUS}/online", 0) + header("x", -512) + bytes(10240))
    with pytest.raises(TreeError, match=r"cannot be read: "):
        open_tree(str(path))


def test_a_small_archive_of_very_many_folders_does_not_take_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_BYTES", 2**20)
    path = tmp_path / "deep.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(20):
            archive.addfile(tarfile.TarInfo(f"{CPUS}/{number}/" + "a/" * 1000))
    assert path.stat().st_size < 2**17
    with pytest.raises(TreeError, match=r"the folders of archive 'deep' take more than 1048576"):
        open_tree(str(path))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_archive_is_read_or_refused_but_never_a_traceback(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(as_archive(".tar", "node1")(folder).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "damaged.tar"
    path.write_bytes(content)
    with contextlib.suppress(TreeError):
        tree = open_tree(str(path))
        tree.read(f"{CPUS}/online")
        tree.list("sys")


def test_a_file_without_an_end_is_read_only_so_far(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "endless").symlink_to("/dev/zero")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(3 * 1024**3)
    tree = open_tree(str(tmp_path))
    assert tree.read("endless") == ""
    assert tree.read("sparse") == ""


def test_a_member_whose_name_is_longer_than_any_path_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "deep.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("sys/devices/system/cpu/online", "a/" * 60_000 + "b"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert open_tree(str(path)).list("") == ("sys",)


def test_a_list_that_the_kernel_gives_in_pieces_is_read_to_its_end() -> None:
    text = open_tree("/").read("proc/self/maps")
    assert text is not None
    assert len(text) > 4096
    assert text.splitlines()[-1] == Path("/proc/self/maps").read_text().splitlines()[-1]
