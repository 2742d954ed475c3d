"""A real kernel on a machine with many NUMA nodes, on cgroup v2: who uses its GPUs from where."""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e.vm.guest_audit import CONTAINER, POD, RANKS
from tests.e2e.vm.inside import Document

#: The jobs of ranks, by their cgroups.
JOBS: dict[str, tuple[str, str, str | None]] = {
    "near": ("slurm", "7", "0"),
    "left over": ("slurm", "8", "batch"),
    "masked": ("kubernetes", POD, None),
}


@pytest.fixture(scope="module")
def document(seen: Document) -> Document:
    return dict(json.loads(seen["found"]["stdout"]))


@pytest.mark.parametrize("name", RANKS)
def test_processes_are_judged(seen: Document, document: Document, name: str) -> None:
    rank = RANKS[name]
    (process,) = (it for it in document["processes"] if it["pid"] == seen["pids"][name])
    judged = (process["gpu"], process["placement"], process["cause"])
    assert judged == (rank.gpu, rank.placement, rank.cause)
    if name in JOBS:
        assert tuple(process["job"].values()) == JOBS[name]
    assert process["container"] == (CONTAINER if name == "masked" else None)
    assert bool(process["orphan"]) == (name == "left over")
    assert bool(process["daemon"]) == (name == "a daemon")


def test_gpus_have_the_mismatches_of_their_processes(seen: Document, document: Document) -> None:
    """A worker counts with the rank that has started it, a known daemon not at all."""
    gpus = {it["index"]: it for it in document["gpus"]}
    counted = {index: sum(gpus[index]["processes"].values()) for index in (0, 3, 6)}
    assert counted == {0: 2, 3: 0, 6: 1}
    causes = {index: [*filter(it["mismatch"].get, it["mismatch"])] for index, it in gpus.items()}
    far = {2: ["mask"], 4: ["allocation"], 5: ["allocation"], 6: ["unpinned"]}
    assert causes == {index: far.get(index, []) for index in range(8)}
    (worker,) = (it for it in document["processes"] if it["parent"] == seen["pids"]["near"])
    assert (worker["gpu"], worker["holds_gpu"], worker["placement"]) == (0, False, "local")


def test_memory_is_read_on_request(seen: Document, document: Document) -> None:
    processes = json.loads(seen["memory"]["stdout"])["processes"]
    (filled,) = (it for it in processes if (it["gpu"], it["holds_gpu"]) == (0, True))
    assert filled["placement"] == "local"
    assert filled["memory"]["2"] > 32 * 2**20 * 0.9
    assert "memory" not in document["processes"][0]


def test_the_table_has_remedies_and_fails_while_a_process_is_remote(seen: Document) -> None:
    assert (seen["found"]["status"], seen["table"]["status"]) == (1, 1)
    table, pids = seen["table"]["stdout"], seen["pids"]
    assert re.search(rf"affinityd pin .*\b{pids['unpinned']}\b", table)
    assert re.search(rf"process {pids['masked']} .*; label the pod affinityd=on", table)
    assert "--gres-flags=enforce-binding" in table
    few = pids["given too few near"]  # which no pin mends
    assert re.search(rf"^.*\b{few}\b.*only 4 CPUs there", table, re.MULTILINE)
    assert not re.search(rf"\b{few}\b.*affinityd pin|affinityd pin .*\b{few}\b", table)
