"""What every dashboard has: its variables, its way to the others, and panels in rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.panels import SOURCE
from deploy.grafana.queries import CLUSTER, DAEMONS

FLEET, NODE = "affinityd-fleet", "affinityd-node"  #: uids, and the names of the files
SAME_TIME = "${__url_time_range}"  #: of an address: the time range as it is chosen

#: Only daemons have this metric: it shows which jobs scrape them.
BUILD = "affinityd_build_info"
ANY = ".*"  #: matches a series without the label, too

Rows = Mapping[str, Sequence[Builder[Any]]]  #: a row's title → its panels, left to right


def way_to(uid: str, *parameters: str) -> str:
    """Return a dashboard's address, with the same daemons and what else is to be chosen."""
    same = [f"${{{it}:queryparam}}" for it in ("datasource", "cluster", "job")]
    return f"/d/{uid}?{'&'.join([*same, *parameters])}"


def dashboard_of(
    uid: str,
    rows: Rows,
    variables: Sequence[Builder[Any]],
    *,
    title: str,
    about: str,
    since: str,
) -> models.Dashboard:
    """Return a dashboard; its panels are numbered as they stand.

    Its first variables choose the daemons: Prometheus, `cluster` and `job`.
    """
    daemons = (
        builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        variable_of("cluster", "Cluster", f"label_values({BUILD}, cluster)"),
        variable_of("job", "Scrape job", f"label_values({BUILD}{{{CLUSTER}}}, job)", several=True),
    )
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
        .variables([*daemons, *variables])
    )
    for name, panels in rows.items():
        board.with_row(builders.Row(name))
        for panel in panels:
            board.with_panel(panel)
    made = board.build()
    for number, placed in enumerate(made.panels or (), start=1):
        placed.id_val = number
    return made


def nodes_of(*, several: bool) -> builders.QueryVariable:
    """Return the variable `node`: where the daemons run, or also where they do not any more."""
    nodes = f"label_values({BUILD}{{{DAEMONS}}}, node)"
    return variable_of("node", "Node", nodes, several=several, everything=ANY if several else "")


def variable_of(
    name: str, label: str, values: str, *, several: bool = False, everything: str = ""
) -> builders.QueryVariable:
    """Return a variable whose values Prometheus knows; all of them, where several may be chosen.

    `everything` is the pattern of all; empty: the values that there are, one by one.
    """
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
        variable.current(models.VariableOption(text="All", value="$__all", selected=True))
    if everything:
        variable.all_value(everything)
    return variable
