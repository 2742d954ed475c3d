"""Processes that are only observed: what a pin would do is said, and nothing is pinned."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from affinityd.daemon.metrics.enforcement import drifts_of
from affinityd.enforce.policy.identity import ProcessIdentity
from tests.support.enforced_node import Site, rank, said, worker
from tests.support.machines.by_hand import made

TWO = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
FAR = rank("4-7")
WHERE = "it may run on CPUs 4-7, and is to run on 0-3"

PILOT = """
observe = true
[[rule]]
partition = "pilot"
observe = false
"""
TRIAL = """
[[rule]]
partition = "trial"
observe = true
"""
NO_ENVIRONMENT = frozenset(("partition", "account", "user", "environment"))


@pytest.mark.parametrize(
    ("policy", "about", "because"),
    [
        pytest.param(
            "",
            ProcessIdentity(switch="observe"),
            "AFFINITYD=observe is in the environment of process 100 of its job",
            id="its owner says so",
        ),
        pytest.param(
            TRIAL,
            ProcessIdentity(partition="trial"),
            "rule 1 of the policy has it observed",
            id="a rule",
        ),
        pytest.param(
            PILOT,
            ProcessIdentity(partition="a"),
            "the top level of the policy has it observed",
            id="the top",
        ),
        pytest.param(PILOT, ProcessIdentity(partition="pilot"), None, id="a rule pins it"),
        pytest.param(TRIAL, ProcessIdentity(partition="a"), None, id="another partition"),
        pytest.param(
            PILOT,
            ProcessIdentity(partition="pilot", switch="observe"),
            "AFFINITYD=observe is in the environment of process 100 of its job",
            id="a rule would pin it, and its owner would not",
        ),
        pytest.param(
            PILOT,
            ProcessIdentity(unread=NO_ENVIRONMENT),
            "the top level of the policy has it observed",
            id="whether the rule means it is not known",
        ),
    ],
)
def test_what_has_drifted_is_not_pinned_where_it_is_observed(
    policy: str, about: ProcessIdentity, because: str | None
) -> None:
    site = Site(TWO, policy, identities={100: about})
    workers = worker("4-7", of=FAR)
    for decision in site.look(FAR, workers):
        assert said(decision) == ["drifted mask"]
        assert decision.is_observed == (because is not None)
        assert decision.why == (f"{WHERE}; it is not pinned: {because}" if because else WHERE)


@pytest.mark.parametrize(
    ("policy", "about", "what"),
    [
        ("", ProcessIdentity(switch="off"), "left opted_out"),
        (PILOT, ProcessIdentity(switch="off"), "left opted_out"),
        (TRIAL, ProcessIdentity(unread=NO_ENVIRONMENT), "left policy"),
    ],
    ids=["its owner wants none", "where all are observed too", "a rule that may mean it"],
)
def test_a_process_that_is_let_alone_is_not_observed(
    policy: str, about: ProcessIdentity, what: str
) -> None:
    (decision,) = Site(TWO, policy, identities={100: about}).look(FAR)
    assert (said(decision), decision.is_observed) == ([what], False)


def test_of_a_job_s_ranks_the_least_that_one_says_counts() -> None:
    ranks = FAR, rank("0-3", gpu=1)

    def verdicts(said_of: Mapping[int, str]) -> list[tuple[str, bool]]:
        identities = {pid: ProcessIdentity(switch=word) for pid, word in said_of.items()}
        found = Site(TWO, identities=identities).look(*ranks)
        return [(it.reason or it.verdict, it.is_observed) for it in found]

    assert verdicts({200: "observe"}) == [("drifted", True)] * 2
    assert verdicts({100: "observe", 200: "off"}) == [("opted_out", False)] * 2


def test_what_fits_has_nothing_to_be_observed() -> None:
    (decision,) = Site(TWO, "observe = true").look(rank("0-3"))
    assert (said(decision), decision.is_observed, decision.why) == (["fits"], False, None)


def test_metrics_count_it_as_what_a_pin_would_mend() -> None:
    decisions = Site(TWO, "observe = true").look(FAR)
    assert drifts_of(decisions)["nvidia", 0].would_pin == {"mask": 1}
