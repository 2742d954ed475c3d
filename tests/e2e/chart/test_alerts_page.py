"""docs/alerts.md: where each alert's runbook_url leads, what to look at, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.chart.alert_cases import FLEET
from tests.e2e.chart.promtool import RUNBOOK, rules
from tests.e2e.chart.rendering import CHART

PAGE = (CHART.parents[2] / "docs" / "alerts.md").read_text()
SECTIONS = {
    heading: text for heading, _, text in (it.partition("\n\n") for it in PAGE.split("\n## ")[1:])
}
EACH = pytest.mark.parametrize("alert", list(rules("alert")), ids=lambda alert: alert["alert"])


def test_each_alert_has_a_heading_and_each_heading_an_alert() -> None:
    assert list(SECTIONS) == [it["alert"] for it in rules("alert")]


@EACH
def test_the_runbook_of_an_alert_is_its_heading(alert: Mapping[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == RUNBOOK
    assert page.endswith("/docs/alerts.md")
    (heading,) = (it for it in SECTIONS if it.lower() == anchor)  # as Markdown makes anchors
    assert heading == alert["alert"]


@EACH
def test_a_heading_says_how_bad_it_is_and_for_how_long(alert: Mapping[str, Any]) -> None:
    since = f"for {alert['for']}" if "for" in alert else "at once"
    scope = ", one for a fleet" if alert["alert"] in FLEET else ""
    start = f"{alert['labels']['severity'].capitalize()}, {since}{scope}. "
    assert SECTIONS[alert["alert"]].startswith(start)


@EACH
def test_a_heading_says_what_to_look_at_and_what_to_do(alert: Mapping[str, Any]) -> None:
    bold = re.findall(r"\*\*(.*?)\*\*", SECTIONS[alert["alert"]])
    assert [word.lower() for word in bold] == ["look at", "do"]


def test_links_within_the_page_lead_to_alerts() -> None:
    anchors = set(re.findall(r"\]\(#(.*?)\)", PAGE))
    assert anchors
    assert anchors <= {heading.lower() for heading in SECTIONS}


def test_the_panels_that_it_names_are_on_the_dashboards() -> None:
    boards = "".join(it.read_text() for it in (CHART / "dashboards").iterdir())
    named = re.findall(r"(?<![*\w])\*([A-Za-z][^*]+)\*(?!\*)", PAGE)
    assert len(named) >= 3
    assert [panel for panel in named if f'"{panel}"' not in boards] == []
