"""A real kernel on a machine with many NUMA nodes, on cgroup v2: a daemon keeps jobs in place.

The jobs are those of enforced.py. What became of them (guest_enforce.py) is judged here.
"""

from __future__ import annotations

import re

import pytest

from affinityd.cpuset import parse_list
from tests.e2e.vm.enforced import CPUSETS, RANKS, WIDE, given, parted, targets
from tests.e2e.vm.reading import Document

ON_TWO, FAR = "on two GPUs", "allocated far away"
NEAR_TWO = "20-23,28-31"  #: what is near to the GPUs of ON_TWO
FILLED = 32 * 2**20  #: bytes
FAR_NODE, HOME_NODE = "2", "7"  #: of the pods


def told(seen: Document, moment: str, name: str) -> Document:
    """Return what is told of a process."""
    jobs = seen[moment]["told"]["jobs"]
    (found,) = (it for job in jobs for it in job["processes"] if it["pid"] == seen["pids"][name])
    return dict(found)


def of_job(masks: Document) -> dict[str, str]:
    """Return where the processes of the ranks run; all threads of each run there."""
    found = {name: {*its} for name, its in masks.items() if name.partition("'")[0] in RANKS}
    return {name: " and ".join(sorted(its)) for name, its in found.items()}


def test_who_observes_changes_no_mask_of_any_process(seen: Document) -> None:
    before, after = seen["observed"]["before"], seen["observed"]["after"]
    both = before.keys() & after.keys()
    assert {name.partition(" ")[0] for name in both} >= {f"{pid}" for pid in seen["pids"].values()}
    assert {name for name in both if before[name] != after[name]} == set()


def test_who_observes_says_what_a_pin_would_mend(seen: Document) -> None:
    observed = seen["observed"]["told"]
    assert (observed["enforce"], observed["does"]) == ("observe", "observe")
    summary = observed["summary"]
    assert summary["processes"]["drifted"] == {"mask": 16, "unpinned": 0, "share": 0}
    assert {reason for reason, number in summary["processes"]["left"].items() if number} == {
        "allocation"
    }
    assert [summary[f"gpus_{it}"] for it in ("mismatched", "pinning_would_mend")] == [6, 5]
    assert [summary[f"gpus_{it}"] for it in ("need_allocation", "left")] == [1, 0]
    assert observed["totals"]["threads"] == 0
    metric = r"^affinityd_enforce_would_pin_processes\{.*\} (\S+)$"
    found = re.findall(metric, seen["observed"]["metrics"], re.MULTILINE)
    assert sum(map(float, found)) == 16


def test_ranks_and_their_workers_are_pinned_near_their_gpus(seen: Document) -> None:
    assert set(of_job(seen["before"]).values()) == {WIDE}
    assert of_job(seen["pinned"]["masks"]) == targets(WIDE)


def test_a_process_on_two_gpus_is_pinned_near_both_and_so_are_its_workers(seen: Document) -> None:
    main, _ = seen["pinned"]["masks"][ON_TWO]
    workers = [seen["pinned"]["masks"][f"{ON_TWO}'s worker {at}"] for at in (0, 1)]
    assert (main, workers) == (NEAR_TWO, [[NEAR_TWO], [NEAR_TWO]])


def test_a_thread_that_was_pinned_on_purpose_is_left_there(seen: Document) -> None:
    for moment in ("pinned", "restarted"):
        assert told(seen, moment, ON_TWO)["threads_on_purpose"] == 1
    for masks in (seen["before"], seen["pinned"]["masks"], seen["restarted"]["after"]):
        assert masks[ON_TWO][1] == "16"


def test_a_job_that_was_allocated_far_away_is_left_with_what_would_have_prevented_it(
    seen: Document,
) -> None:
    found = told(seen, "pinned", FAR)
    assert (found["verdict"], found["reason"], found["pins"]) == ("left", "allocation", 0)
    assert "--gres-flags=enforce-binding" in found["why"]
    assert seen["pinned"]["masks"][FAR] == seen["before"][FAR] == ["0-3", "0-3"]


def test_a_pin_is_counted(seen: Document) -> None:
    totals = seen["pinned"]["told"]["totals"]
    assert totals["pins"] == {"pinned": 16, "cut": 0, "refused": 0, "unsettled": 0}
    assert (totals["threads"], totals["resets"]) == (20, 0)
    assert 'affinityd_enforce_pins_total{outcome="pinned"} 16.0' in seen["pinned"]["metrics"]


def test_workers_that_unpin_themselves_are_pinned_again(seen: Document) -> None:
    for rank in RANKS:
        assert told(seen, "unpinned", rank)["resets"] == 0
        for at in (0, 1):
            assert told(seen, "unpinned", f"{rank}'s worker {at}")["resets"] == 1
    assert of_job(seen["unpinned"]["masks"]) == targets(WIDE)


@pytest.mark.parametrize("cpuset", CPUSETS)
def test_whose_cpuset_is_rewritten_runs_where_it_is_to_within_two_scans(
    seen: Document, cpuset: str
) -> None:
    rewritten = seen["rewritten"][cpuset]
    assert rewritten["scans"] <= 2
    assert of_job(rewritten["masks"]) == targets(cpuset)
    assert all(parse_list(mask) <= parse_list(cpuset) for mask in rewritten["met"])


def test_memory_stays_where_it_is_unless_it_is_to_be_moved(seen: Document) -> None:
    assert seen["pinned"]["masks"]["pod 0"] == ["28-31"]
    before, after = seen["it stays"]
    assert before[FAR_NODE] > FILLED
    assert after[FAR_NODE] > FILLED  # about as before: pages of files come and go


def test_memory_that_is_to_be_moved_follows_its_process(seen: Document) -> None:
    before, after = seen["it moves"]
    assert before[FAR_NODE] > FILLED
    assert after[HOME_NODE] > FILLED
    assert after.get(FAR_NODE, 0) < FILLED / 4  # pages of files, which others map, too, stay
    assert seen["restarted"]["told"]["totals"]["migrations"]["moved"] == 1


def test_a_daemon_that_is_started_anew_pins_nothing_that_fits(seen: Document) -> None:
    restarted = seen["restarted"]
    assert restarted["after"] == restarted["before"]
    assert restarted["told"]["totals"]["pins"]["pinned"] == 1  # the pod that came between
    assert restarted["told"]["totals"]["threads"] == 1


def test_a_policy_that_is_changed_while_it_runs_counts(seen: Document) -> None:
    assert of_job(seen["a policy"]["masks"]) == parted()
    by_rule = told(seen, "a policy", "rank 0")
    assert (by_rule["rule"], by_rule["mode"], by_rule["cpulist"]) == (
        1,
        "unique_contiguous",
        "12-13",
    )
    other = told(seen, "a policy", ON_TWO)
    assert (other["rule"], other["mode"], other["cpulist"]) == (None, "node", NEAR_TWO)


def test_a_policy_that_is_broken_leaves_the_one_before_and_says_where(seen: Document) -> None:
    policy = seen["a broken policy"]["told"]["policy"]
    assert policy["rules"] == 1
    assert "rule 1" in policy["error"]
    assert "unique_contigous" in policy["error"]
    assert of_job(seen["a broken policy"]["masks"]) == parted()


def test_ranks_that_were_given_more_cpus_than_are_near_are_pinned_to_as_many(
    seen: Document,
) -> None:
    kept = seen["kept"]
    assert of_job(kept["masks"]) == given()
    assert kept["told"]["totals"]["pins"]["pinned"] == 12


def test_a_job_whose_gpus_are_near_to_too_few_of_its_cpus_keeps_them_all(seen: Document) -> None:
    masks = {name: {*its} for name, its in seen["kept"]["masks"].items() if ON_TWO in name}
    assert len(masks) == 3
    assert all(its == {"16-31"} for its in masks.values())


@pytest.mark.parametrize("name", [*RANKS, ON_TWO])
def test_who_keeps_far_cpus_is_left_with_what_would_have_prevented_it(
    seen: Document, name: str
) -> None:
    for process in (name, f"{name}'s worker 0", f"{name}'s worker 1"):
        found = told(seen, "kept", process)
        assert (found["verdict"], found["cause"], found["reason"]) == (
            "left",
            "allocation",
            "allocation",
        )
        assert "--gres-flags=enforce-binding" in found["why"]


def test_the_audit_names_no_pin_for_who_keeps_far_cpus(seen: Document) -> None:
    table = seen["kept"]["audit"]["stdout"]
    assert "--gres-flags=enforce-binding" in table
    assert "affinityd pin" not in table
