"""Built-in machines have what their sources publish."""

from pathlib import Path

import pytest

from affinityd.errors import TreeError
from affinityd.machines import NAMES, load
from tests.support.machines.facts import machine
from tests.support.paths import DATA


@pytest.mark.parametrize(
    ("name", "counts", "gpu_nodes"),  # counts: CPUs, cores, packages, nodes, LLC groups
    [
        ("dgx-a100", (256, 128, 2, 8, 32), [3, 3, 1, 1, 7, 7, 5, 5]),
        ("dgx-h100", (224, 112, 2, 2, 2), [0, 0, 0, 0, 1, 1, 1, 1]),
        ("p4d-24xlarge", (96, 48, 2, 2, 2), [0, 0, 0, 0, 1, 1, 1, 1]),
        ("mi250x", (128, 64, 1, 4, 8), [3, 3, 1, 1, 0, 0, 2, 2]),
        ("ascend-910b", (192, 192, 4, 8, 8), [6, 6, 4, 4, 0, 0, 2, 2]),
        ("gh200x4", (288, 288, 4, 36, 4), [0, 1, 2, 3]),
        ("gb200", (144, 144, 2, 34, 2), [0, 0, 1, 1]),
        ("gb200-cdmm", (144, 144, 2, 2, 2), [0, 0, 1, 1]),
    ],
    ids=NAMES,
)
def test_a_shipped_machine_has_what_its_maker_says(
    name: str, counts: tuple[int, ...], gpu_nodes: list[int]
) -> None:
    topology = load(name)
    packages = {core.package for core in topology.cores}
    llcs = {core.llc for core in topology.cores}
    every = (topology.online, topology.cores, packages, topology.nodes, llcs)
    assert tuple(map(len, every)) == counts
    assert topology.name == name
    assert topology.possible == topology.online == frozenset(range(counts[0]))
    assert [gpu.numa_node for gpu in topology.gpus] == gpu_nodes


@pytest.mark.parametrize("name", ["dgx-z1", "../dgx-a100", "__init__", "", "DGX-A100"])
def test_an_unknown_machine_is_an_error_of_one_line_that_lists_the_known_ones(name: str) -> None:
    with pytest.raises(TreeError, match=rf"^no machine is named '{name}'; there are dgx-a100, .+$"):
        load(name)


def test_a_file_of_facts_is_a_machine(tmp_path: Path) -> None:
    assert load(str(DATA / "machines/mixed-models.json")) == machine("mixed-models")
    wrong = tmp_path / "wrong.json"
    for text in ("", "[]", "{}", '{"name": 1}', '{"cores": "x", "threads": 1}'):
        wrong.write_text(text)
        with pytest.raises(TreeError, match=r"^'\S+wrong.json' has no facts of a machine: .+$"):
            load(str(wrong))
    with pytest.raises(TreeError, match=r"^'\S+none.json' cannot be read: No such file"):
        load(str(tmp_path / "none.json"))
