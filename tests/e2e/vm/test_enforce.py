"""A real kernel on a machine with many NUMA nodes, on cgroup v2: a daemon keeps jobs in place.

The jobs are those of enforced.py. What became of them (guest_enforce.py) is judged here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from affinityd.cpuset import parse_list
from tests.e2e.vm.enforced import CPUSETS, RANKS, WIDE, given, targets
from tests.e2e.vm.reading import Document

ON_TWO, FAR = "on two GPUs", "allocated far away"
NEAR_TWO = "20-23,28-31"  #: what is near to the GPUs of ON_TWO
FILLED = 30 * 2**20  #: bytes that are to be found, of 32 MiB that were written
FAR_NODE, HOME_NODE = "2", "7"  #: of the pods


def family(name: str) -> Sequence[str]:
    return (name, f"{name}'s worker 0", f"{name}'s worker 1")


def told(seen: Document, moment: str, name: str, *fields: str) -> list[object]:
    """Return what is told of a process."""
    jobs = seen[moment]["told"]["jobs"]
    (found,) = (it for job in jobs for it in job["processes"] if it["pid"] == seen["pids"][name])
    return [found[field] for field in fields]


def of_job(masks: Document) -> dict[str, str]:
    """Return where the processes of the ranks run; all threads of each run there."""
    found = {name: {*its} for name, its in masks.items() if name.partition("'")[0] in RANKS}
    return {name: " and ".join(sorted(its)) for name, its in found.items()}


def test_ranks_and_their_workers_are_pinned_near_their_gpus(seen: Document) -> None:
    masks = seen["pinned"]["masks"]
    assert set(of_job(seen["before"]).values()) == {WIDE}
    assert of_job(masks) == targets(WIDE)
    assert [masks[name][0] for name in family(ON_TWO)] == [NEAR_TWO] * 3
    totals = seen["pinned"]["told"]["totals"]
    assert totals["pins"] == {"pinned": 16, "cut": 0, "refused": 0, "unsettled": 0}
    assert (totals["threads"], totals["resets"]) == (20, 0)
    assert 'affinityd_enforce_pins_total{outcome="pinned"} 16.0' in seen["pinned"]["metrics"]


def test_a_thread_that_was_pinned_on_purpose_is_left_there(seen: Document) -> None:
    assert told(seen, "pinned", ON_TWO, "threads_on_purpose") == [1]
    for masks in (seen["before"], seen["pinned"]["masks"]):
        assert masks[ON_TWO][1] == "16"


def test_a_job_that_was_allocated_far_away_is_left_with_what_would_have_prevented_it(
    seen: Document,
) -> None:
    verdict, reason, pins, why = told(seen, "pinned", FAR, "verdict", "reason", "pins", "why")
    assert (verdict, reason, pins) == ("left", "allocation", 0)
    assert "--gres-flags=enforce-binding" in str(why)
    assert seen["pinned"]["masks"][FAR] == seen["before"][FAR] == ["0-3", "0-3"]


@pytest.mark.parametrize("cpuset", CPUSETS)
def test_whose_cpuset_is_rewritten_runs_where_it_is_to_within_two_scans(
    seen: Document, cpuset: str
) -> None:
    rewritten = seen["rewritten"][cpuset]
    assert rewritten["scans"] <= 2
    assert of_job(rewritten["masks"]) == targets(cpuset)
    assert all(parse_list(mask) <= parse_list(cpuset) for mask in rewritten["met"])


def test_memory_follows_its_process_where_it_is_to_be_moved_alone(seen: Document) -> None:
    assert seen["pinned"]["masks"]["pod 0"] == ["28-31"]
    before, after = seen["it stays"]
    assert min(before[FAR_NODE], after[FAR_NODE]) > FILLED  # pages of files come and go
    before, after = seen["it moves"]
    assert min(before[FAR_NODE], after[HOME_NODE]) > FILLED
    assert after.get(FAR_NODE, 0) < FILLED / 4  # pages of files, which others map, too, stay


def test_a_daemon_that_is_started_anew_pins_nothing_that_fits(seen: Document) -> None:
    totals = seen["totals"]  # of the pod that came between
    assert (totals["pins"]["pinned"], totals["threads"], totals["migrations"]["moved"]) == (1, 1, 1)


def test_ranks_that_were_given_more_cpus_than_are_near_are_pinned_to_as_many(
    seen: Document,
) -> None:
    """A job whose GPUs are near to too few of its CPUs keeps them all."""
    kept = seen["kept"]
    assert of_job(kept["masks"]) == given()
    assert kept["told"]["totals"]["pins"]["pinned"] == 12
    assert {mask for name in family(ON_TWO) for mask in kept["masks"][name]} == {"16-31"}


def test_who_keeps_far_cpus_is_left_with_what_would_have_prevented_it_and_no_pin(
    seen: Document,
) -> None:
    for name in (it for rank in (*RANKS, ON_TWO) for it in family(rank)):
        *verdict, why = told(seen, "kept", name, "verdict", "cause", "reason", "why")
        assert verdict == ["left", "allocation", "allocation"]
        assert "--gres-flags=enforce-binding" in str(why)
    assert "--gres-flags=enforce-binding" in seen["kept"]["audit"]
    assert "affinityd pin" not in seen["kept"]["audit"]
