"""Every query of every panel and every rule, asked of a Prometheus that scrapes real daemons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.cpusets import needs_cpuset
from tests.daemons import eventually, running
from tests.e2e.audited_node import audited
from tests.ports import free_port
from tests.prometheus import DEPLOY, Prometheus, Series, running_prometheus

pytestmark = [pytest.mark.prometheus, needs_cpuset]

DASHBOARDS = DEPLOY / "helm" / "affinityd" / "dashboards"

#: Nodes: as plain Prometheus names them by their address, and as the chart's monitors do.
PLAIN, POD = "127.0.0.1", "gpu09.example.org"
UNAUDITED, GONE = "replayed", "gone"  #: a daemon that looks at no process, and none at all
#: What the operator's monitors add to each target.
OF_POD = {
    "namespace": "gpu",
    "pod": "affinityd-x7k2p",
    "container": "affinityd",
    "endpoint": "http",
}

RANGE = 20.0  #: seconds; the Prometheus has not run for longer

#: Panel and query: nothing here is as it should be, for no test makes a node so ill.
EMPTY_ON_PURPOSE = {
    ("Which nodes cannot be seen, and why?", "D"),  # a scan was cut short by its time limit
    ("Which nodes cannot be seen, and why?", "E"),  # the last scan is a minute old
    ("Which nodes do not pin as they are to?", "C"),  # a process was reset five times
    ("Which nodes do not pin as they are to?", "D"),  # the kernel refused a pin
}


@dataclass(frozen=True)
class Asked:
    """One query of one panel."""

    dashboard: str
    panel: str
    letter: str
    expr: str
    is_instant: bool

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel} {self.letter}"

    def put_to(self, server: Prometheus, chosen: Mapping[str, str]) -> list[Series]:
        """Ask with variables filled in, as Grafana does."""
        expr = filled_in(self.expr, chosen)
        return server.query(expr) if self.is_instant else server.query_range(expr, RANGE)


def documents() -> Iterator[tuple[str, Any]]:
    for path in sorted(DASHBOARDS.glob("*.json")):
        yield path.stem.removeprefix("affinityd-"), json.loads(path.read_text())


def queries() -> Iterator[Asked]:
    for name, document in documents():
        for panel in document["panels"]:
            for target in panel.get("targets", ()):
                letter, is_instant = target["refId"], target.get("instant", False)
                yield Asked(name, panel["title"], letter, target["expr"], is_instant)


def filled_in(expr: str, chosen: Mapping[str, str]) -> str:
    """Return a query as Grafana sends it; whatever begins with a dollar must be known here."""
    values = {"__rate_interval": "10s", "__range": f"{RANGE:.0f}s", **chosen}
    return re.sub(r"\$(\w+)", lambda name: values[name[1]], expr)


def as_pattern(names: Sequence[str]) -> str:
    """Return several chosen values as Grafana gives them to =~."""
    escaped = [re.escape(name).replace("\\", "\\\\") for name in names]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def nodes_of(found: Sequence[Series]) -> set[str]:
    return {series["metric"]["node"] for series in found}


#: What may be chosen: in the fleet view all, one or several; in the node view one.
CHOICES = {
    "fleet": [
        {"node": ".*", "job": ".*"},
        {"node": as_pattern([PLAIN, POD, UNAUDITED, GONE]), "job": as_pattern(["77", "78"])},
    ],
    "node": [{"node": PLAIN}, {"node": POD}],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("fleet")
    port, other = free_port(), free_port()
    targets: list[Mapping[str, Any]] = [
        {"targets": [f"127.0.0.1:{port}"]},
        *(
            {
                "targets": [f"127.0.0.1:{number}"],
                "labels": {"instance": f"{node}:9465", "node": node, **OF_POD},
            }
            for node, number in ((POD, port), (UNAUDITED, other), (GONE, free_port()))
        ),
    ]
    replayed = ("--machine", "dgx-a100")
    with (
        audited(folder / "audited", f"127.0.0.1:{port}") as daemon,
        running(folder / UNAUDITED, *replayed, listen=f"127.0.0.1:{other}"),
        running_prometheus(folder, targets) as prometheus,
    ):

        def has_data() -> bool:
            daemon.plan("gpus=0&mode=node")
            daemon.get("/plan?gpus=99")
            far = prometheus.query("node:affinityd_gpu_remote_cpu_seconds:rate5m > 0")
            return nodes_of(far) == {PLAIN, POD}

        eventually(has_data, "CPU time was counted, far from its GPU")
        yield prometheus


@pytest.mark.parametrize("asked", list(queries()), ids=str)
def test_a_panel_has_data(server: Prometheus, asked: Asked) -> None:
    for chosen in CHOICES[asked.dashboard]:
        if (asked.panel, asked.letter) in EMPTY_ON_PURPOSE:
            assert asked.put_to(server, chosen) == []
        else:
            eventually(partial(asked.put_to, server, chosen), f"{asked} has data: {chosen}")


def test_what_is_empty_on_purpose_is_asked_somewhere() -> None:
    assert {(asked.panel, asked.letter) for asked in queries()} >= EMPTY_ON_PURPOSE


def test_a_table_has_a_row_for_each_of_its_keys_and_no_label_besides(server: Prometheus) -> None:
    for name, document in documents():
        for panel in (it for it in document["panels"] if it["type"] == "table"):
            (organize,) = (it for it in panel["transformations"] if it["id"] == "organize")
            keys = {key for key in organize["options"]["indexByName"] if "Value" not in key}
            for target in panel["targets"]:
                expr = filled_in(target["expr"], CHOICES[name][0])
                for series in server.query(expr):
                    assert set(series["metric"]) <= keys, target["expr"]


def variables() -> Iterator[tuple[str, str, str, str]]:
    """Yield each variable that Prometheus fills: its dashboard, name, selector and label."""
    for name, document in documents():
        for it in document["templating"]["list"]:
            if it["type"] == "query":
                query = it["query"]["query"]
                called = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
                assert called, query
                yield name, it["name"], called[1], called[2]


EXPECTED = {"node": [PLAIN, POD, UNAUDITED], "job": ["77", "78", "79"]}


@pytest.mark.parametrize(("dashboard", "name", "selector", "label"), list(variables()))
def test_a_variable_offers_what_there_is(
    server: Prometheus, dashboard: str, name: str, selector: str, label: str
) -> None:
    chosen = CHOICES[dashboard][0]
    assert server.label_values(label, filled_in(selector, chosen)) == EXPECTED[name]


def test_every_rule_can_be_followed(server: Prometheus) -> None:
    def followed() -> bool:
        return {rule["health"] for rule in server.rules().values()} == {"ok"}

    eventually(followed, "every rule was evaluated")
    assert [rule.get("lastError") for rule in server.rules().values() if "lastError" in rule] == []


def test_every_record_is_of_both_nodes(server: Prometheus) -> None:
    records = [name for name, rule in server.rules().items() if rule["type"] == "recording"]
    assert len(records) == 5
    for record in records:
        assert nodes_of(server.query(record)) == {PLAIN, POD}, record


@pytest.mark.parametrize(
    "alert",
    [
        *("AffinitydAllocationIsRemote", "AffinitydMaskIsRemote", "AffinitydUnpinned"),
        *("AffinitydOrphansHoldGpu", "AffinitydCannotSeeIntoGpus"),
        *("AffinitydCannotPin", "AffinitydPolicyIsBroken"),
    ],
)
def test_an_alert_finds_the_node(server: Prometheus, alert: str) -> None:
    (rule,) = (rule for name, rule in server.rules().items() if name == alert)
    assert nodes_of(server.query(rule["query"])) == {PLAIN, POD}


def test_the_worst_process_of_a_gpu_is_what_is_shown_of_it(server: Prometheus) -> None:
    (worst,) = (it for it in queries() if it.panel == "Where do the processes of each GPU run?")
    numbers = {
        series["metric"]["gpu"]: float(series["values"][-1][1])
        for series in worst.put_to(server, {"node": PLAIN})
    }
    assert numbers == {"0": 5, "1": 3, "3": 3}


@pytest.mark.parametrize(
    ("panel", "number"),
    [
        ("GPUs that ran far", 3),
        ("… and a pin mends it", 1),
        ("… that need another allocation", 1),
        ("… that are left as they are", 1),
    ],
)
def test_each_gpu_that_ran_far_is_counted_by_what_mends_it(
    server: Prometheus, panel: str, number: int
) -> None:
    (asked,) = (it for it in queries() if (it.dashboard, it.panel) == ("node", panel))

    def counted() -> bool:
        (series,) = asked.put_to(server, {"node": PLAIN})
        return float(series["value"][1]) == number

    eventually(counted, f"{panel}: {number}")
