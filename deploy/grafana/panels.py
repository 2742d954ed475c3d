"""The kinds of panels, as this repository's dashboards use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, text
from grafana_foundation_sdk.builders import timeseries as series
from grafana_foundation_sdk.models import common as enums
from grafana_foundation_sdk.models.dashboard import DataSourceRef, DynamicConfigValue, ValueMap
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.grafana.looks import COUNT, PLAIN, Levels
from deploy.grafana.queries import Query

#: The data source that the dashboard's variable `datasource` names.
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


def stat_of(
    title: str,
    *queries: Query,
    about: str,
    unit: str = COUNT,
    levels: Levels = PLAIN,
    mapping: ValueMap | None = None,
    width: int = 4,
) -> stat.Panel:
    """Return one number, or one for each legend."""
    last = common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(values=False)
    panel = stat.Panel().title(title).description(about).datasource(SOURCE)
    if mapping is not None:
        panel.mappings([mapping])
    return (
        panel.targets([_instant(letter, query) for letter, query in _lettered(queries)])
        .reduce_options(last)
        .color_mode(levels.color_mode)
        .graph_mode(enums.BigValueGraphMode.NONE)
        .thresholds(levels.config)
        .unit(unit)
        .span(width)
        .height(4)
    )


def graph_of(
    title: str,
    *queries: Query,
    about: str,
    unit: str,
    width: int = 12,
    stacked: bool = False,
    colors: Mapping[str, str] | None = None,
) -> series.Panel:
    """Return lines over time, or areas upon each other; `colors` are legends' own."""
    panel = series.Panel().title(title).description(about).datasource(SOURCE)
    if stacked:
        panel.stacking(common.StackingConfig().mode(enums.StackingMode.NORMAL).group("A"))
        panel.fill_opacity(30)
    for legend, color in (colors or {}).items():
        fixed = DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})
        panel.override_by_name(legend, [fixed])
    return (
        panel.targets([_ranged(letter, query) for letter, query in _lettered(queries)])
        .legend(_legend())
        .tooltip(
            common.VizTooltipOptions()
            .mode(enums.TooltipDisplayMode.MULTI)
            .sort(enums.SortOrder.DESCENDING)
        )
        .unit(unit)
        .min(0)
        .span(width)
        .height(8)
    )


def timeline_of(
    title: str, query: Query, *, mapping: ValueMap, about: str, width: int = 12, height: int = 8
) -> statetimeline.Panel:
    """Return a bar for each legend, whose colour over time is its state."""
    return (
        statetimeline.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .targets([_ranged("A", query)])
        .mappings([mapping])
        .merge_values(merge_values=True)
        .show_value(enums.VisibilityMode.AUTO)
        .legend(_legend())
        .span(width)
        .height(height)
    )


def words_of(title: str, markdown: str, *, width: int = 12, height: int = 8) -> text.Panel:
    """Return a text."""
    return text.Panel().title(title).content(markdown).span(width).height(height)


def tabled(letter: str, expr: str) -> prometheus.Dataquery:
    """Return a query whose answer is the rows of a table."""
    return _instant(letter, Query(expr)).format(PromQueryFormat.TABLE)


def _lettered(queries: Sequence[Query]) -> zip[tuple[str, Query]]:
    return zip(ascii_uppercase, queries, strict=False)


def _ranged(letter: str, query: Query) -> prometheus.Dataquery:
    asked = prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(query.expr)
    return asked.legend_format(query.legend)


def _instant(letter: str, query: Query) -> prometheus.Dataquery:
    return _ranged(letter, query).instant()


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(enums.LegendDisplayMode.LIST)
        .placement(enums.LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
    )
