"""docs/alerts.md: where each alert's runbook_url leads, what to look at, and what to do."""

from __future__ import annotations

import re

from tests.e2e.chart.promtool import ALERTS, RUNBOOK
from tests.e2e.chart.rendering import CHART
from tests.e2e.chart.series import FLEET
from tests.support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "alerts.md").read_text()
SECTIONS = {
    heading: text for heading, _, text in (it.partition("\n\n") for it in PAGE.split("\n## ")[1:])
}


def test_the_runbook_of_each_alert_is_its_heading() -> None:
    assert list(SECTIONS) == list(ALERTS)
    assert RUNBOOK.endswith("/docs/alerts.md")
    for name, alert in ALERTS.items():
        assert alert["annotations"]["runbook_url"] == f"{RUNBOOK}#{name.lower()}"


def test_a_heading_says_how_bad_it_is_for_how_long_what_to_look_at_and_what_to_do() -> None:
    for name, alert in ALERTS.items():
        since = f"for {alert['for']}" if "for" in alert else "at once"
        scope = ", one for a fleet" if name in FLEET else ""
        start = f"{alert['labels']['severity'].capitalize()}, {since}{scope}. "
        assert SECTIONS[name].startswith(start)
        bold = re.findall(r"\*\*(.*?)\*\*", SECTIONS[name])
        assert [word.lower() for word in bold] == ["look at", "do"]


def test_the_panels_that_it_names_are_on_the_dashboards() -> None:
    boards = "".join(it.read_text() for it in (CHART / "dashboards").iterdir())
    named = re.findall(r"(?<![*\w])\*([A-Za-z][^*]+)\*(?!\*)", PAGE)
    assert len(named) >= 3
    assert [panel for panel in named if f'"{panel}"' not in boards] == []
