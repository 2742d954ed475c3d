"""The pages of enforcement: their policy is one; every reason, setting and metric is explained."""

from __future__ import annotations

import re

from affinityd.config.settings import ENFORCE_VALUES
from affinityd.daemon.metrics.enforcement import FAMILIES, GPU_FAMILIES
from affinityd.daemon.policy_document import KEYS, SETTINGS, parse
from affinityd.enforce import decide
from affinityd.enforce.model import CAUSES, PIN_OUTCOMES, REASONS
from affinityd.enforce.policy import Treatment
from affinityd.enforce.policy.identity import ProcessIdentity as Who
from affinityd.planner import Options
from tests.support.paths import REPOSITORY

NAMES = [*(it.name for it in GPU_FAMILIES), *(it.name for it in FAMILIES)]
METRICS = [name.removesuffix("_total") for name in NAMES]
PAGES = ("enforce", "enforce-policy", "metrics")
PAGE = " ".join(REPOSITORY.joinpath(f"docs/{page}.md").read_text() for page in PAGES)
TEXT = " ".join(PAGE.split())
POLICY, DEGREES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_policies_of_the_page_do_what_it_says() -> None:
    """What `affinityd enforce --check` says of the first is on the page, too."""
    trainer, policy = "/system.slice/trainer-7.service", parse(POLICY)
    cgroups = [policy.names_cgroup(Who(uid, cgroups=("/", trainer))) for uid in (1005, 1006)]
    assert cgroups == [trainer, None]
    label = {"LATENCY_CLASS": "critical"}
    found = policy.treatment(Who(namespace="inference-a", environment=label))
    assert found == Treatment(Options("exclusive", min_physical_cores=2), rule=3)
    degrees = parse(DEGREES)
    assert [degrees.treatment(Who(partition=it)).observe for it in ("pilot", "all")] == [
        False,
        True,
    ]


def test_the_page_explains_every_value() -> None:
    words = {*ENFORCE_VALUES, *REASONS, *CAUSES, *KEYS, *SETTINGS, *PIN_OUTCOMES, *METRICS}
    said = {word.removesuffix("_total") for word in re.findall(r"`(\w+)`", PAGE)}
    assert words <= said


def test_the_page_has_the_seconds_of_the_code() -> None:
    assert f"less than {decide.GRACE:.0f} s" in TEXT
    *waits, last = decide.WAITS[2:]
    assert f"then {', '.join(map(str, waits))} and {last} s after" in TEXT
    assert decide.REST == 3600
    assert "An hour without a reset" in TEXT
