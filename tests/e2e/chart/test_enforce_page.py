"""docs/enforce.md: Prometheus answers its questions as it says, its alerts are there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.e2e.chart.alert_cases import left, remedied
from tests.e2e.chart.promtool import rules, try_rules
from tests.e2e.chart.rendering import CHART

PAGE = (CHART.parents[2] / "docs" / "enforce.md").read_text()
QUESTIONS = re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)


WEEK = {
    remedied("pin", 0): "1x9 _x90",
    remedied("pin", 1): "_x50 1x9",
    remedied("allocation", 1): "1x9",
    remedied("pin", 0, "gpu08"): "1x99",
    remedied("neither", 2): "1x99",
}


@pytest.mark.parametrize(
    ("number", "series", "answers"),
    [
        (
            0,
            WEEK,
            {'{remedy="pin"}': 3, '{remedy="allocation"}': 1, '{remedy="neither"}': 1},
        ),
        (1, WEEK, {'{node="gpu07"}': 2, '{node="gpu08"}': 1}),
        (
            2,
            {
                left("allocation"): "0x9 2x9 0x80",
                left("allocation", 1): "1x99",
                left("orphan"): "0x9 1 0x80",
                left("policy"): "0x99",
                left("young"): "3x99",
                left("waiting"): "1x99",
            },
            {'{reason="allocation"}': 2, '{reason="orphan"}': 1},
        ),
    ],
    ids=["by what mends them", "by node", "by reason"],
)
def test_a_question_has_the_answer_that_the_page_says(
    tmp_path: Path, number: int, series: Mapping[str, str], answers: Mapping[str, float]
) -> None:
    samples = [{"labels": its, "value": value} for its, value in answers.items()]
    wanted = {"expr": QUESTIONS[number], "eval_time": "99m", "exp_samples": samples}
    try_rules(tmp_path, series, {"promql_expr_test": [wanted]})


def test_every_question_is_tested() -> None:
    marks = test_a_question_has_the_answer_that_the_page_says.pytestmark  # type: ignore[attr-defined]
    asked: Sequence[int] = [case[0] for case in marks[0].args[1]]
    assert asked == list(range(len(QUESTIONS)))


def test_its_alerts_are_those_there_are() -> None:
    of_pinning = {it["alert"] for it in rules("alert") if "affinityd_enforce_" in it["expr"]}
    assert set(re.findall(r"`(Affinityd\w+)`", PAGE)) == of_pinning
