"""What every dashboard has: its variables, its way to the others, and panels in rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.panels import SOURCE

FLEET, NODE = "affinityd-fleet", "affinityd-node"  #: uids, and the names of the files
SAME_TIME = "${__url_time_range}"  #: of an address: the time range as it is chosen

Rows = Mapping[str, Sequence[Builder[Any]]]  #: a row's title → its panels, left to right


def way_to(uid: str, *parameters: str) -> str:
    """Return a dashboard's address, with the same Prometheus and what else is to be chosen."""
    return "&".join([f"/d/{uid}?${{datasource:queryparam}}", *parameters])


def dashboard_of(
    uid: str,
    rows: Rows,
    variables: Sequence[Builder[Any]],
    *,
    title: str,
    about: str,
    since: str,
) -> models.Dashboard:
    """Return a dashboard; its panels are numbered as they stand."""
    source = builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    other = NODE if uid == FLEET else FLEET
    link = builders.DashboardLink(other).type(models.DashboardLinkType.LINK)
    board = (
        builders.Dashboard(title)
        .uid(uid)
        .description(about)
        .tags(["affinityd", "gpu"])
        .editable()
        .timezone("browser")
        .time(since, "now")
        .refresh("1m")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(link.url(way_to(other)).keep_time(keep_time=True))
        .variables([source, *variables])
    )
    for name, panels in rows.items():
        board.with_row(builders.Row(name))
        for panel in panels:
            board.with_panel(panel)
    made = board.build()
    for number, placed in enumerate(made.panels or (), start=1):
        placed.id_val = number
    return made


def variable_of(name: str, label: str, values: str, *, several: bool) -> builders.QueryVariable:
    """Return a variable whose values Prometheus knows; all of them, where several may be chosen."""
    variable = (
        builders.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": values, "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(several)
        .include_all(several)
    )
    if several:
        everything = models.VariableOption(text="All", value="$__all", selected=True)
        variable.all_value(".*").current(everything)
    return variable
