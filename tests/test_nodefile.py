"""node.json: written whole, read back, refused when it is anything else."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from affinityd import nodefile
from affinityd.service import Node
from tests.machines.facts import ALL_NAMES, machine


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_node_is_read_back_as_it_was(tmp_path: Path, name: str) -> None:
    node = Node(machine(name), reserved=frozenset({0, 1}), generation=7)
    nodefile.write(tmp_path / "node.json", node)
    back = nodefile.read(tmp_path / "node.json")
    assert (back.topology, back.reserved, back.generation) == (machine(name), node.reserved, 7)


def test_everybody_may_read_it_and_nothing_else_is_left(tmp_path: Path) -> None:
    for generation in (1, 2):
        nodefile.write(tmp_path / "node.json", Node(machine("mi250x"), generation=generation))
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
        nodefile.read(tmp_path / "node.json")
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "node.json")
    with pytest.raises(OSError, match="no file"):
        nodefile.read(tmp_path / "node.json")


@pytest.mark.parametrize("generation", ["one", None, -1, 0, True, 1.5])
def test_a_generation_is_a_number_from_one(tmp_path: Path, generation: object) -> None:
    path = tmp_path / "node.json"
    nodefile.write(path, Node(machine("mi250x")))
    path.write_text(json.dumps({**json.loads(path.read_text()), "generation": generation}))
    with pytest.raises(ValueError, match="generation"):
        nodefile.read(path)
