"""The document of a measurement: ratios of near to far, the sentence, the file, the tables."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cli.render.measure import lines
from affinityd.errors import OutputError
from affinityd.measure.document import (
    NOT_COMPARED,
    OF_GPUS,
    ONE_NODE,
    READ,
    TO_DEVICE,
    TO_DEVICE_PAGEABLE,
    Figure,
    by_round,
    compared,
    gpu_ratios,
    read,
    save,
    sentence,
)
from affinityd.measure.run import ROUNDS, blanks, phases_at_once
from tests.support.machines.by_hand import made
from tests.support.measurements import GPU, UNPLACED, copies, measurement, memory

TO_GPU = GPU.pci_bus_id


OF_BOTH = [memory(0, 0, 20.0), memory(1, 0, 10.0), memory(0, 1, 8.0), memory(1, 1, 16.0)]


@pytest.mark.parametrize(
    ("figures", "quantity", "expected"),
    [
        ([copies(0, 54.0), copies(1, 30.0)], TO_DEVICE, {TO_GPU: {0: 1.0, 1: 1.8}}),
        (OF_BOTH, READ, {0: {0: 1.0, 1: 2.0}, 1: {0: 2.0, 1: 1.0}}),
        # Nothing to compare with: near was not measured, or is not known, or has no CPUs.
        ([copies(0, None), copies(1, 30.0)], TO_DEVICE, {}),
        ([copies(0, 54.0, UNPLACED), copies(1, 30.0, UNPLACED)], TO_DEVICE, {}),
        ([memory(0, 8, 20.0)], READ, {}),
        ([copies(0, 0.0), copies(1, 30.0)], TO_DEVICE, {}),  # as a file may say
        ([copies(0, 54.0)], TO_DEVICE_PAGEABLE, {}),
    ],
)
def test_a_ratio_compares_near_with_each_node(
    figures: Sequence[Figure], quantity: str, expected: Mapping[object, Mapping[int, float]]
) -> None:
    every_round = {
        (target, node): pytest.approx([ratio] * ROUNDS)
        for target, by_node in expected.items()
        for node, ratio in by_node.items()
    }
    assert by_round(figures, [GPU, UNPLACED], quantity) == every_round


BOTH = [memory(0, 0, 20.0), memory(1, 0, 10.0)]


def vary(node: int, *values: float) -> Figure:
    """Return copies from a node, a value each round."""
    return copies(node, values[0], values=values)


#: On one memory: each round is disturbed by itself, and single pairs differ by up to 1.9.
NOISE = (vary(0, 30, 54, 41, 29, 55, 40, 31), vary(1, 54, 30, 40, 55, 29, 41, 30))


@pytest.mark.parametrize(
    ("figures", "nodes", "said"),
    [
        ([copies(0, 54.0), copies(1, 30.0), *BOTH], 2, "pinned: near is 1.8 × as fast as far"),
        ([copies(0, 54.0), copies(1, 53.0)], 2, "no difference beyond noise (± 5%)"),
        (NOISE, 2, "no difference beyond noise (± 90%)"),
        # Each quantity is judged: copies are alike, and memory is not.
        (
            [*NOISE, *BOTH],
            2,
            "read by one thread: near is 2.0 × as fast as far (2.0 to 2.0); a job",
        ),
        ([copies(0, 30.0), copies(1, 54.0)], 2, "far is 1.8 × as fast as near"),
        ([copies(0, None), copies(1, None), *BOTH], 2, "near is 2.0 × as fast as far"),
        # A common disturbance: each round is slower than the one before, near always twice as fast.
        ([vary(0, 64, 32, 16, 8, 4), vary(1, 32, 16, 8, 4, 2)], 2, "near is 2.0 × as fast as far"),
        ([vary(0, 54, 54), vary(1, 30, 30)], 2, NOT_COMPARED),
        ([copies(1, 30.0)], 2, NOT_COMPARED),
        ([copies(0, 54.0)], 1, ONE_NODE),
    ],
)
def test_the_sentence_is_about_the_first_quantity_whose_rounds_tell_near_from_far(
    figures: Sequence[Figure], nodes: int, said: str
) -> None:
    assert said in sentence(compared(figures, [GPU]), nodes=nodes)


def test_two_nodes_of_one_memory_rarely_differ() -> None:
    """Rounds vary by half, at random: of 300 comparisons six at most call that a difference."""
    draw = random.Random(1)  # noqa: S311 - the same each time
    told = 0
    for _ in range(300):
        pair = [vary(node, *(draw.uniform(1, 1.5) for _ in range(ROUNDS))) for node in (0, 1)]
        told += "noise" not in sentence(compared(pair, [GPU]), nodes=2)
    assert told <= 6


FOUND = measurement([copies(0, 54.0), copies(1, 30.0), copies(1, None, why="no")])
HERE = made({0: "0-1", 1: "2-3"}, gpus=[0])


def test_a_measurement_saved_in_a_new_folder_can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "measure.json"
    usual = os.umask(0o077)
    try:
        save(FOUND, path)
    finally:
        os.umask(usual)
    assert [it.stat().st_mode & 0o777 for it in (path.parent, path)] == [0o755, 0o644]
    back = read(os.fspath(path))
    assert (list(back.figures), back.sentence) == (FOUND.figures, FOUND.sentence)
    assert gpu_ratios(os.fspath(path), HERE) == ({("nvidia", 0): {0: 1.0, 1: 1.8}}, ())


def test_an_unwritable_path_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written: "):
        save(FOUND, tmp_path / "file" / "measure.json")


@pytest.mark.parametrize(
    ("changes", "notice"),
    [
        ({"gpus": [replace(GPU, pci_bus_id="0000:20:00.0")]}, None),
        ({"gpus": [replace(GPU, uuid="GPU-another")]}, None),
        ({"version": 1}, "is of version 1, not 2"),
        ({"figures": [copies(7, 30.0)]}, None),
    ],
)
def test_a_measurement_of_another_machine_gives_no_ratio(
    tmp_path: Path, changes: dict[str, object], notice: str | None
) -> None:
    path = tmp_path / "measure.json"
    save(replace(FOUND, **changes), path)  # type: ignore[arg-type]
    found, notices = gpu_ratios(os.fspath(path), HERE)
    assert found == {}
    assert [str(notice) in it for it in notices] == [True] * (notice is not None)


@pytest.mark.parametrize(
    ("text", "notice"), [(None, None), ("{", "not JSON"), ("{}", "has no 'version'")]
)
def test_an_unreadable_file_is_a_notice_and_a_missing_one_is_not(
    tmp_path: Path, text: str | None, notice: str | None
) -> None:
    path = tmp_path / "measure.json"
    if text is not None:
        path.write_text(text)
    found, notices = gpu_ratios(os.fspath(path), HERE)
    assert found == {}
    assert len(notices) == (notice is not None)
    assert all(str(notice) in it and it.startswith(f"{path} is not used") for it in notices)


#: Node 1 has no memory, node 2 no CPUs, and the second GPU is in an unknown place.
ODD = made({0: "0-1", 1: "2-3", 2: ""}, gpus=[1, None], memoryless=[1])


def test_each_node_with_cpus_measures_each_memory_and_each_gpu() -> None:
    for node in (0, 1):
        figures = blanks(ODD, node)
        assert {figure.numa_node for figure in figures} == {node}
        assert [(figure.quantity, figure.target) for figure in figures] == [
            *((READ, memory_node) for memory_node in (0, 2)),
            *((quantity, gpu.pci_bus_id) for gpu in ODD.gpus for quantity in OF_GPUS),
        ]


def test_gpus_at_once_are_copied_to_from_near_then_half_way_round() -> None:
    machine = made({node: f"{node}" for node in range(4)}, gpus=[0, 1, 3, None])
    near, far = (
        {node: [gpu.index for gpu in gpus] for node, gpus in phase.items()}
        for phase in phases_at_once(machine, machine.gpus)
    )
    assert near == {0: [0], 1: [1], 3: [2]}
    assert far == {2: [0], 3: [1], 1: [2]}


TABLED = measurement(
    [
        memory(0, 0, 38e9),
        memory(1, 0, 15.2e9),
        copies(1, 45.9e9),
        copies(1, None, UNPLACED, why="it is used"),
        copies(0, None, UNPLACED, why="it is used"),
        copies(0, 55.04e9),
        copies(2, None, why="outside"),
        memory(2, 0, None, why="outside"),
    ],
    gpus=[GPU, UNPLACED],
    notices=["virtual"],
)

TABLE = """\
memory, read by one thread, GB/s (*: near)
CPUs of  memory 0
 node 0     38.0*
 node 1     15.2

host to device, pinned, GB/s (*: near)
CPUs of  GPU 0
 node 0  55.0*
 node 1  45.9

note: GPU 1 from nodes 0-1: it is used
note: memory of node 0, GPU 0 from node 2: outside
note: virtual
it is so"""


def test_the_tables_come_first_then_missing_figures_then_the_sentence() -> None:
    assert "\n".join(lines(TABLED)) == TABLE
