"""A real kernel on a machine with many NUMA nodes, on cgroup v2: who uses its GPUs from where.

What the audit said there (guest_audit.py) is judged here.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e.vm.holders import CONTAINER, POD, RANKS
from tests.e2e.vm.reading import Document


def process(document: Document, pid: int) -> Document:
    (found,) = (it for it in document["processes"] if it["pid"] == pid)
    return dict(found)


def gpu(document: Document, index: int) -> Document:
    (found,) = (it for it in document["gpus"] if it["index"] == index)
    return dict(found)


def sample(metrics: str, name: str, index: int, **labels: str) -> float:
    """Return the one sample of a GPU with these labels."""
    for line in metrics.splitlines():
        pairs = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if line.startswith(f"{name}{{") and {**labels, "gpu": f"{index}"}.items() <= pairs.items():
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no {name} of GPU {index}")


@pytest.mark.parametrize(
    ("rank", "placement", "cause"),
    [
        ("near", "local", None),
        ("left over", "local", None),
        ("masked", "remote", "mask"),
        ("a known daemon", "unpinned", "unpinned"),
        ("allocated far away", "remote", "allocation"),
        ("given too few near", "mixed", "allocation"),
        ("unpinned", "unpinned", "unpinned"),
    ],
)
def test_each_process_is_judged_by_the_node_of_its_gpu(
    seen: Document, rank: str, placement: str, cause: str | None
) -> None:
    for document in (seen["at first"], json.loads(seen["command"]["stdout"])):
        found = process(document, seen["pids"][rank])
        judged = (found["placement"], found["cause"], found["gpu"])
        assert judged == (placement, cause, RANKS[rank].gpu)


def test_a_worker_counts_with_the_rank_that_has_started_it(seen: Document) -> None:
    counted = gpu(seen["at first"], 0)["processes"]
    assert (counted["local"], sum(counted.values())) == (2, 2)
    (worker,) = (it for it in seen["at first"]["processes"] if it["parent"] == seen["pids"]["near"])
    assert (worker["gpu"], worker["holds_gpu"], worker["placement"]) == (0, False, "local")


@pytest.mark.parametrize(
    ("rank", "job", "container"),
    [
        ("near", {"scheduler": "slurm", "id": "7", "step": "0"}, None),
        ("left over", {"scheduler": "slurm", "id": "8", "step": "batch"}, None),
        ("masked", {"scheduler": "kubernetes", "id": POD, "step": None}, CONTAINER),
        ("a known daemon", None, None),
    ],
)
def test_the_job_is_read_from_the_cgroup(
    seen: Document, rank: str, job: Document | None, container: str | None
) -> None:
    found = process(seen["at first"], seen["pids"][rank])
    assert (found["job"], found["container"]) == (job, container)


def test_what_no_job_owns_any_more_is_told(seen: Document) -> None:
    orphans = [it["pid"] for it in seen["at first"]["processes"] if it["orphan"]]
    assert orphans == [seen["pids"]["left over"]]
    name = "affinityd_gpu_orphan_processes"
    assert [sample(seen["metrics"], name, index) for index in (0, 1)] == [0, 1]


def test_a_known_daemon_is_named_and_not_counted(seen: Document) -> None:
    assert process(seen["at first"], seen["pids"]["a known daemon"])["daemon"]
    assert sum(gpu(seen["at first"], 3)["processes"].values()) == 0


@pytest.mark.parametrize(
    ("index", "causes"),
    [(0, []), (2, ["mask"]), (3, []), (4, ["allocation"]), (5, ["allocation"]), (6, ["unpinned"])],
)
def test_the_metric_says_which_gpu_has_a_mismatch_and_why(
    seen: Document, index: int, causes: list[str]
) -> None:
    name, every = "affinityd_gpu_numa_mismatch", ("allocation", "mask", "unpinned")
    told = [it for it in every if sample(seen["metrics"], name, index, cause=it) == 1]
    assert told == causes


def test_a_process_that_is_repinned_between_scans_is_local_at_the_next(seen: Document) -> None:
    found = process(seen["repinned"], seen["pids"]["masked"])
    assert (found["placement"], found["threads"][0]["cpulist"]) == ("local", "4-5")
    assert gpu(seen["repinned"], 2)["mismatch"] == {"allocation": 0, "mask": 0, "unpinned": 0}


def test_cpu_time_on_far_cpus_is_counted_as_such(seen: Document) -> None:
    name = "affinityd_gpu_remote_cpu_seconds_total"
    before, after = (sample(seen[moment], name, 0) for moment in ("metrics", "turned"))
    assert after > before + 0.5


def test_memory_is_read_on_request(seen: Document) -> None:
    processes = json.loads(seen["memory"]["stdout"])["processes"]
    (filled,) = (it for it in processes if (it["gpu"], it["holds_gpu"]) == (0, True))
    assert filled["placement"] == "local"
    assert filled["memory"]["2"] > 32 * 2**20 * 0.9
    assert "memory" not in seen["at first"]["processes"][0]


def test_the_table_says_what_mends_each_and_fails_as_long_as_something_is_remote(
    seen: Document,
) -> None:
    assert (seen["command"]["status"], seen["table"]["status"]) == (1, 1)
    table, pids = seen["table"]["stdout"], seen["pids"]
    assert re.search(rf"affinityd pin .*\b{pids['masked']}\b", table)
    assert "--gres-flags=enforce-binding" in table
    few = pids["given too few near"]  # which no pin mends
    assert re.search(rf"^.*\b{few}\b.*only 4 CPUs there", table, re.MULTILINE)
    assert not re.search(rf"\b{few}\b.*affinityd pin|affinityd pin .*\b{few}\b", table)
