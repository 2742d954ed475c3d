"""A topology in JSON, and node.json."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from affinityd.json_codec import decode
from affinityd.topology.document import (
    BOOT_ID,
    TopologyDocument,
    from_document,
    read_node,
    to_document,
    write_node,
)
from affinityd.topology.model import Node, Topology
from tests.support.documents import in_json
from tests.support.machines.facts import machine
from tests.support.machines.strategies import machines

FLAT = machine("flat")


def to_json(topology: Topology) -> dict[str, Any]:
    data: dict[str, Any] = in_json(to_document(topology))
    return data


def from_json(data: object) -> Topology:
    return from_document(decode(TopologyDocument, data, "topology"))


@given(machines())
def test_any_machine_is_read_back_as_written(topology: Topology) -> None:
    assert from_json(to_json(topology)) == topology


def test_a_nic_has_its_nearness_to_each_gpu() -> None:
    nic = to_json(machine("dgx-h100"))["nics"][5]
    assert nic["names"] == ["mlx5_9", "ibp192s0"]
    near = {"0000:1b:00.0": "SYS", "0000:9d:00.0": "NODE", "0000:c3:00.0": "PXB"}
    assert nic["nearness"].items() >= near.items()


def test_a_document_of_another_release_is_read() -> None:
    data = to_json(FLAT)
    for nic in data["nics"]:
        del nic["numa_source"]
    for gpu in data["gpus"]:
        gpu["nvlinks"] = None
    assert from_json(data) == FLAT


CORES = to_json(machine("laptop"))["cores"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 3}, ".name is 3, not a string"),
        ({"cores": [{**CORES[0], "cpulist": ""}]}, ".cores[0].cpulist is empty; a core has at l"),
        ({"nodes": []}, ".nodes has no node 0, the node of CPU 0"),
    ],
)
def test_a_malformed_document_is_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"\Atopology.*\Z") as caught:
        from_json(to_json(machine("laptop")) | change)
    assert str(caught.value).startswith(f"topology{said}")


NODE = Node(machine("mi250x"), reserved=frozenset({0, 1}), generation=7, switch="observe")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_node(tmp_path / "node.json", NODE)
    return tmp_path / "node.json"


def change(path: Path, **fields: object) -> None:
    """Change these fields of a document; remove those whose value is `...`."""
    data = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: it for name, it in data.items() if it is not ...}))


def test_a_written_node_is_read_back(path: Path) -> None:
    write_node(path, Node(machine("mi250x"), replayed=True))
    assert read_node(path).replayed
    write_node(path, NODE)
    assert vars(read_node(path)) == vars(NODE)
    assert list(path.parent.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644  # all users may read it


def test_a_node_file_without_a_switch_means_on(path: Path) -> None:
    change(path, settings={"reserved_cpus": ""})
    assert read_node(path).switch == "on"
    change(path, settings={"reserved_cpus": "", "switch": "obsreve"})
    with pytest.raises(ValueError, match="'obsreve' is none of"):
        read_node(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "node.json is b'', not JSON"),
        ('{"version": 2}', "node.json is of version 2, not 1"),
        ('{"version": 1}', "node.json has no 'generation'"),
    ],
)
def test_a_malformed_node_file_is_a_one_line_value_error(path: Path, text: str, said: str) -> None:
    path.write_text(text)
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        read_node(path)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        *(({"generation": it}, "generation") for it in ("one", None, -1, 0, True, 1.5)),
        ({"boot_id": "2b1f9a7e-0000-4000-8000-000000000000"}, "of another machine, or older"),
        ({"boot_id": Path(BOOT_ID).read_text().strip()}, None),
        ({"boot_id": None}, None),  # written where the id is hidden
        ({"boot_id": ...}, None),  # written by an earlier release
    ],
)
def test_a_node_file_of_another_boot_or_a_bad_generation_is_refused(
    path: Path, fields: Mapping[str, object], said: str | None
) -> None:
    change(path, **fields)
    if said is None:
        assert vars(read_node(path)) == vars(NODE)
    else:
        with pytest.raises(ValueError, match=said):
            read_node(path)
