"""node.json: written whole, read back, refused when it is anything else."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from affinityd.topology import node_file
from affinityd.topology.model import Node
from tests.support.machines.facts import ALL_NAMES, machine


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_node_is_read_back_as_it_was(tmp_path: Path, name: str) -> None:
    node = Node(machine(name), reserved=frozenset({0, 1}), generation=7, switch="observe")
    node_file.write(tmp_path / "node.json", node)
    back = node_file.read(tmp_path / "node.json")
    assert (back.topology, back.reserved, back.generation) == (machine(name), node.reserved, 7)
    assert back.switch == "observe"


def test_one_of_a_daemon_that_knows_no_switch_is_on(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    node_file.write(path, Node(machine("mi250x")))
    data = json.loads(path.read_text())
    del data["settings"]["switch"]
    path.write_text(json.dumps(data))
    assert node_file.read(path).switch == "on"
    data["settings"]["switch"] = "obsreve"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="'obsreve' is none of"):
        node_file.read(path)


def test_everybody_may_read_it_and_nothing_else_is_left(tmp_path: Path) -> None:
    for generation in (1, 2):
        node_file.write(tmp_path / "node.json", Node(machine("mi250x"), generation=generation))
    assert [path.name for path in tmp_path.iterdir()] == ["node.json"]
    assert stat.S_IMODE((tmp_path / "node.json").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"version": 2}',
        '{"version": 1}',
        '{"version": 1, "settings": {}, "topology": {}, "generation": 1}',
        '{"version": 1, "settings": {"reserved_cpus": 5}, "topology": {}, "generation": 1}',
    ],
    ids=[
        "empty",
        "a list",
        "torn",
        "a later version",
        "without a topology",
        "without settings",
        "settings of another type",
    ],
)
def test_what_is_no_node_is_a_value_error_of_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        node_file.read(tmp_path / "node.json")
    assert "\n" not in str(caught.value)


def sparse(path: Path) -> None:
    """Make a file that is longer than a node's, of nothing."""
    with path.open("wb") as file:
        file.truncate(node_file.MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.symlink_to(path), os.strerror(errno.ELOOP)),
        (lambda path: path.symlink_to("/nonexistent"), os.strerror(errno.ENOENT)),
        (sparse, f"longer than {node_file.MAX_BYTES} bytes"),
    ],
    ids=["a FIFO", "a folder", "a device", "a link to itself", "a link to nothing", "far too long"],
)
def test_what_is_no_file_or_without_end_is_neither_waited_for_nor_read(
    tmp_path: Path, make: Callable[[Path], None], told: str
) -> None:
    make(tmp_path / "node.json")
    with pytest.raises(OSError, match=told):
        node_file.read(tmp_path / "node.json")


@pytest.mark.parametrize("generation", ["one", None, -1, 0, True, 1.5])
def test_a_generation_is_a_number_from_one(tmp_path: Path, generation: object) -> None:
    path = tmp_path / "node.json"
    node_file.write(path, Node(machine("mi250x")))
    path.write_text(json.dumps({**json.loads(path.read_text()), "generation": generation}))
    with pytest.raises(ValueError, match="generation"):
        node_file.read(path)


@pytest.mark.parametrize(
    ("boot_id", "believed"),
    [
        ("2b1f9a7e-0000-4000-8000-000000000000", False),
        (Path(node_file.BOOT_ID).read_text().strip(), True),
        (None, True),
    ],
    ids=["another machine's", "this one's", "from where that is hidden"],
)
def test_a_node_of_another_machine_or_another_boot_is_not_believed(
    tmp_path: Path, boot_id: str | None, believed: bool
) -> None:
    path = tmp_path / "node.json"
    node_file.write(path, Node(machine("mi250x")))
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": boot_id}))
    if believed:
        assert node_file.read(path).topology == machine("mi250x")
    else:
        with pytest.raises(ValueError, match="another machine's, or from before"):
            node_file.read(path)


def test_a_node_of_an_earlier_release_says_nothing_of_boots_and_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    node_file.write(path, Node(machine("mi250x")))
    earlier = json.loads(path.read_text())
    del earlier["boot_id"]
    path.write_text(json.dumps(earlier))
    assert node_file.read(path).topology == machine("mi250x")
