"""The pages of enforcement: their policy is one; every reason, setting and metric is explained."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from affinityd.config.settings import ENFORCE_VALUES
from affinityd.daemon.metrics.enforcement import FAMILIES, GPU_FAMILIES
from affinityd.daemon.policy_document import KEYS, SETTINGS, parse
from affinityd.enforce import backoff, memory_migration
from affinityd.enforce.model import CAUSES, PIN_OUTCOMES, REASONS
from affinityd.enforce.policy.identity import ProcessIdentity as Who
from affinityd.enforce.policy.model import Treatment
from affinityd.planner.model import Options
from tests.support.paths import REPOSITORY

NAMES = [*(it.name for it in GPU_FAMILIES), *(it.name for it in FAMILIES)]
METRICS = [name.removesuffix("_total") for name in NAMES]
PAGES = ("enforce", "enforce-policy", "metrics")
PAGE = " ".join(REPOSITORY.joinpath(f"docs/{page}.md").read_text() for page in PAGES)
TEXT = " ".join(PAGE.split())
POLICY, DEGREES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


TRAINER = "/system.slice/trainer-7.service"
LABEL = {"LATENCY_CLASS": "critical"}
OWN_CORES = Treatment(Options("unique_contiguous", share="node"))
OWN_L3 = Treatment(Options("exclusive", min_physical_cores=2))


@pytest.mark.parametrize(
    ("who", "rule", "treatment"),
    [
        (Who(), None, Treatment()),
        (Who(account="bench-9"), 1, Treatment(leave=True)),
        (Who(account="vision", partition="train-long"), 2, OWN_CORES),
        (Who(namespace="inference-a", environment=LABEL), 3, OWN_L3),
        (Who(namespace="inference-a"), None, Treatment()),
        (Who(uid=1005, cgroups=("/", TRAINER)), 4, Treatment()),
    ],
)
def test_its_policy_treats_a_process_as_its_comments_say(
    who: Who, rule: int | None, treatment: Treatment
) -> None:
    assert parse(POLICY).treatment(who) == replace(treatment, rule=rule)


@pytest.mark.parametrize(
    ("who", "is_observed"),
    [
        (Who(partition="pilot"), False),
        (Who(partition="all"), True),
        (Who(), True),
        (Who(unread=frozenset(("partition", "environment"))), True),
    ],
)
def test_by_degrees_one_partition_is_pinned_and_the_others_are_observed(
    who: Who, is_observed: bool
) -> None:
    found = parse(DEGREES).treatment(who)
    assert (found.observe, found.unread, found.leave) == (is_observed, (), False)


def test_a_cgroup_of_its_policy_is_a_job() -> None:
    policy = parse(POLICY)
    assert policy.names_cgroup(Who(uid=1005, cgroups=("/", TRAINER))) == TRAINER
    assert policy.names_cgroup(Who(uid=1006, cgroups=("/", TRAINER))) is None


def test_it_explains_every_word() -> None:
    words = {*ENFORCE_VALUES, *REASONS, *CAUSES, *KEYS, *SETTINGS, *PIN_OUTCOMES, *METRICS}
    said = {word.removesuffix("_total") for word in re.findall(r"`(\w+)`", PAGE)}
    assert words | {*memory_migration.OUTCOMES} <= said


def test_its_seconds_are_those_that_count() -> None:
    assert f"less than {backoff.GRACE:.0f} s" in TEXT
    *waits, last = backoff.WAITS[2:]
    assert f"then {', '.join(map(str, waits))} and {last} s after" in TEXT
    assert backoff.REST == 3600
    assert "An hour without a reset" in TEXT
