"""Tables: a query a column, joined by the labels that name a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, DynamicConfigValue

from deploy.grafana.looks import COUNT, Levels
from deploy.grafana.panels import SOURCE, tabled

#: Else each of them shows the text of a table without rows.
EMPTY_CELL = DynamicConfigValue("noValue", "–")


@dataclass(frozen=True)
class Column:
    """What one query says of each row."""

    title: str
    expr: str  #: its labels are the row's keys and no others
    unit: str = COUNT
    levels: Levels | None = None

    @property
    def looks(self) -> list[DynamicConfigValue]:
        """Return how its cells are shown."""
        looks = [DynamicConfigValue("unit", self.unit), EMPTY_CELL]
        if self.levels is not None:
            looks.append(DynamicConfigValue("thresholds", self.levels.value))
            cell = {"type": "color-text"}
            looks.append(DynamicConfigValue("custom.cellOptions", cell))
        return looks


@dataclass(frozen=True)
class Link:
    """Where a click on a key leads, at the same time range."""

    title: str
    url: str  #: relative to Grafana's own

    @property
    def looks(self) -> DynamicConfigValue:
        """Return the property of a column that has it."""
        return DynamicConfigValue("links", [{"title": self.title, "url": self.url}])


def table_of(
    question: str,
    keys: Mapping[str, str],
    columns: Sequence[Column],
    *,
    about: str,
    sort: str,
    links: Mapping[str, Link] | None = None,
    empty: str = "none",
    width: int = 24,
    height: int = 9,
) -> table.Panel:
    """Return a table whose rows are named by `keys`: label → title; worst first by column `sort`.

    `empty` is said where there are no rows.
    """
    panel = table.Panel().title(question).description(about).datasource(SOURCE).no_value(empty)
    for column in columns:
        panel.override_by_name(column.title, column.looks)
    for title in keys.values():
        linked = [links[title].looks] if links and title in links else []
        panel.override_by_name(title, [EMPTY_CELL, *linked])
    return (
        panel.targets([tabled(letter, it.expr) for letter, it in _lettered(columns)])
        .transformations(_joined(keys, columns))
        .sort_by([common.TableSortByFieldState().display_name(sort).desc(desc=True)])
        .show_header(show_header=True)
        .span(width)
        .height(height)
    )


def _joined(keys: Mapping[str, str], columns: Sequence[Column]) -> list[DataTransformerConfig]:
    """Join what the queries answered; keys first, then the columns in their order.

    Grafana calls a query's numbers `Value #A`, or `Value` where there is one query alone.
    """
    alone = len(columns) == 1
    values = {
        "Value" if alone else f"Value #{letter}": column.title
        for letter, column in _lettered(columns)
    }
    names = {**keys, **values}
    order = {name: place for place, name in enumerate(names)}
    return [
        DataTransformerConfig("merge", options={}),
        DataTransformerConfig(
            "organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": order,
                "renameByName": names,
            },
        ),
    ]


def _lettered(columns: Sequence[Column]) -> zip[tuple[str, Column]]:
    return zip(ascii_uppercase, columns, strict=False)
