"""docs/enforce.md: its policy is one, and it explains every reason, setting and metric there is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from affinityd.config.settings import ENFORCE_VALUES
from affinityd.daemon.metrics.enforcement import FAMILIES, GPU_FAMILIES
from affinityd.daemon.policy_document import KEYS, SETTINGS, parse
from affinityd.enforce import backoff, memory_migration
from affinityd.enforce.model import CAUSES, PIN_OUTCOMES, REASONS
from affinityd.enforce.policy.identity import ProcessIdentity
from affinityd.enforce.policy.model import Treatment
from affinityd.planner.model import Options
from tests.support.paths import REPOSITORY

METRICS = [
    *(it.name.removesuffix("_total") for it in GPU_FAMILIES),
    *(it.name.removesuffix("_total") for it in FAMILIES),
]
PAGE = REPOSITORY.joinpath("docs/enforce.md").read_text()
POLICY, DEGREES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    ("about", "rule", "treatment"),
    [
        pytest.param(ProcessIdentity(), None, Treatment(), id="anybody"),
        pytest.param(
            ProcessIdentity(account="bench-9"), 1, Treatment(leave=True), id="who is left"
        ),
        pytest.param(
            ProcessIdentity(account="vision", partition="train-long"),
            2,
            Treatment(Options("unique_contiguous", share="node")),
            id="who has cores of its own",
        ),
        pytest.param(
            ProcessIdentity(namespace="inference-a", environment={"LATENCY_CLASS": "critical"}),
            3,
            Treatment(Options("exclusive", min_physical_cores=2)),
            id="a pod with a label",
        ),
        pytest.param(
            ProcessIdentity(namespace="inference-a"), None, Treatment(), id="a pod without"
        ),
        pytest.param(
            ProcessIdentity(uid=1005, cgroups=("/", "/system.slice/trainer-7.service")),
            4,
            Treatment(),
            id="a service",
        ),
    ],
)
def test_its_policy_treats_a_process_as_its_comments_say(
    about: ProcessIdentity, rule: int | None, treatment: Treatment
) -> None:
    assert parse(POLICY).treatment(about) == replace(treatment, rule=rule)


@pytest.mark.parametrize(
    ("about", "is_observed"),
    [
        (ProcessIdentity(partition="pilot"), False),
        (ProcessIdentity(partition="all"), True),
        (ProcessIdentity(), True),
        (ProcessIdentity(unread=frozenset(("partition", "environment"))), True),
    ],
)
def test_by_degrees_one_partition_is_pinned_and_the_others_are_observed(
    about: ProcessIdentity, is_observed: bool
) -> None:
    found = parse(DEGREES).treatment(about)
    assert (found.observe, found.unread, found.leave) == (is_observed, (), False)


def test_a_cgroup_of_its_policy_is_a_job() -> None:
    path = "/system.slice/trainer-7.service"
    policy = parse(POLICY)
    assert policy.names_cgroup(ProcessIdentity(uid=1005, cgroups=("/", path))) == path
    assert policy.names_cgroup(ProcessIdentity(uid=1006, cgroups=("/", path))) is None


@pytest.mark.parametrize(
    "words",
    [
        ENFORCE_VALUES,
        REASONS,
        CAUSES,
        KEYS,
        SETTINGS,
        PIN_OUTCOMES,
        memory_migration.OUTCOMES,
        METRICS,
    ],
    ids=["ways", "reasons", "causes", "keys", "settings", "pins", "moves", "metrics"],
)
def test_it_explains_every_word(words: list[str]) -> None:
    said = {word.removesuffix("_total") for word in re.findall(r"`(\w+)`", PAGE)}
    assert set(words) <= said


def test_its_seconds_are_those_that_count() -> None:
    assert f"less than {backoff.GRACE:.0f} s" in PAGE
    *waits, last = backoff.WAITS[2:]
    assert f"then {', '.join(map(str, waits))} and {last} s after" in PAGE
    assert backoff.REST == 3600
    assert "An hour of rest" in " ".join(PAGE.split())
