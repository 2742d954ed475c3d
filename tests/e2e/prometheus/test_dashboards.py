"""Every query of every panel and every rule, asked of a Prometheus that scrapes real daemons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.e2e.chart import dashboards
from tests.support.audited_node import audited
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually, running
from tests.support.dcgm_exporter import dcgm_exporter
from tests.support.ports import free_port
from tests.support.prometheus import Prometheus, Series, running_prometheus

pytestmark = needs_cpuset

#: Nodes: as plain Prometheus names them by their address, and as the chart's monitors do.
PLAIN, POD = "127.0.0.1", "gpu09.example.org"
#: A daemon that looks at no process, and one that has ended; both are nodes of either cluster.
UNAUDITED, GONE = "replayed", "gone"
#: Plain Prometheus has no label `cluster`, the other has; and scrapes by a job of another name.
UNNAMED, EAST = {"cluster": "", "job": "affinityd"}, {"cluster": "east", "job": "gpu-nodes"}
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
    for path in sorted(dashboards.FOLDER.glob("*.json")):
        yield path.stem.removeprefix("affinityd-"), json.loads(path.read_text())


def queries() -> Iterator[Asked]:
    for name, document in documents():
        for panel in document["panels"]:
            for target in panel.get("targets", ()):
                letter, is_instant = target["refId"], target.get("instant", False)
                yield Asked(name, panel["title"], letter, target["expr"], is_instant)


def filled_in(expr: str, chosen: Mapping[str, str]) -> str:
    """Return a query as Grafana sends it, over the last seconds."""
    times = {"__rate_interval": "10s", "__range": f"{RANGE:.0f}s"}
    return dashboards.filled_in(expr, {**times, **chosen})


def as_pattern(names: Sequence[str]) -> str:
    """Return several chosen values as Grafana gives them to =~."""
    escaped = [re.escape(name).replace("\\", "\\\\") for name in names]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def nodes_of(found: Sequence[Series]) -> set[str]:
    return {series["metric"]["node"] for series in found}


ON_PLAIN, ON_POD = {**UNNAMED, "node": PLAIN}, {**EAST, "node": POD}
#: What may be chosen: in the fleet view all, one or several; in the node view one.
CHOICES = {
    "fleet": [
        {**UNNAMED, "node": ".*", "job_id": ".*"},
        {**EAST, "node": as_pattern([POD, UNAUDITED, GONE]), "job_id": as_pattern(["77", "78"])},
    ],
    "node": [ON_PLAIN, ON_POD],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("fleet")
    port, other, ended = free_port(), free_port(), free_port()
    both = {UNAUDITED: other, GONE: ended}
    targets = [{"targets": [f"127.0.0.1:{port}"]}, *(at(it, both[it]) for it in both)]
    pods = [at(it, number, cluster="east", **OF_POD) for it, number in {POD: port, **both}.items()]
    replayed = ("--machine", "dgx-a100")
    with (
        audited(folder / "audited", f"127.0.0.1:{port}") as daemon,
        running(folder / UNAUDITED, *replayed, listen=f"127.0.0.1:{other}"),
        dcgm_exporter() as dcgm,
        running_prometheus(
            folder, targets, {"job_name": EAST["job"], "static_configs": pods}, *dcgm
        ) as prometheus,
    ):
        with running(folder / GONE, *replayed, listen=f"127.0.0.1:{ended}"):
            seen = f'count(affinityd_build_info{{node="{GONE}"}}) == 2'
            eventually(lambda: prometheus.query(seen), "it answers in both clusters, and ends")

        def has_data() -> bool:
            daemon.plan("gpus=0&mode=node")
            daemon.get("/plan?gpus=99")
            far = prometheus.query("node:affinityd_gpu_remote_cpu_seconds:rate5m > 0")
            return nodes_of(far) == {PLAIN, POD}

        eventually(has_data, "CPU time was counted, far from its GPU")
        yield prometheus


def at(node: str, port: int, **labels: str) -> Mapping[str, Any]:
    """Return a target of a node, which has its name by a label."""
    named = {"instance": f"{node}:9465", "node": node}
    return {"targets": [f"127.0.0.1:{port}"], "labels": {**named, **labels}}


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


EXPECTED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "": {"job": ["affinityd"], "node": [PLAIN, GONE, UNAUDITED]},
    "east": {"job": ["gpu-nodes"], "node": [GONE, POD, UNAUDITED]},
}
EVERYWHERE = {"cluster": ["east"], "job_id": ["77", "78", "79"]}


@pytest.mark.parametrize("cluster", EXPECTED)
@pytest.mark.parametrize("variable", list(variables()), ids=" ".join)
def test_a_variable_offers_what_there_is(
    server: Prometheus, variable: tuple[str, str, str, str], cluster: str
) -> None:
    dashboard, name, selector, label = variable
    (chosen,) = (it for it in CHOICES[dashboard] if it["cluster"] == cluster)
    offered = server.label_values(label, filled_in(selector, {**chosen, "node": ".*"}))
    assert offered == {**EXPECTED[cluster], **EVERYWHERE}[name]


def test_every_rule_can_be_followed(server: Prometheus) -> None:
    def followed() -> bool:
        return {rule["health"] for rule in server.rules().values()} == {"ok"}

    eventually(followed, "every rule was evaluated")
    assert [rule.get("lastError") for rule in server.rules().values() if "lastError" in rule] == []


def test_every_record_is_of_both_nodes(server: Prometheus) -> None:
    records = [name for name, rule in server.rules().items() if rule["type"] == "recording"]
    assert len(records) == 6
    for record in records:
        found = [it for it in server.query(record) if it["metric"]["node"] not in {UNAUDITED, GONE}]
        clusters = {(it["metric"].get("cluster", ""), it["metric"]["node"]) for it in found}
        assert clusters == {("", PLAIN), ("east", POD)}, record


@pytest.mark.parametrize(
    "alert",
    [
        *("AffinitydAllocationIsRemote", "AffinitydMaskIsRemote", "AffinitydOrphansHoldGpu"),
        *("AffinitydCannotSeeIntoGpus", "AffinitydCannotPin", "AffinitydPolicyIsBroken"),
    ],
)
def test_an_alert_finds_the_node(server: Prometheus, alert: str) -> None:
    assert nodes_of(server.query(server.rules()[alert]["query"])) == {PLAIN, POD}


def test_a_daemon_that_ended_is_down_whatever_its_job_is_called(server: Prometheus) -> None:
    expr = server.rules()["AffinitydDown"]["query"]

    def is_down() -> bool:
        down = [it["metric"] for it in server.query(expr)]
        return {(it["job"], it["node"]) for it in down} == {
            ("affinityd", GONE),
            ("gpu-nodes", GONE),
        }

    eventually(is_down, "both jobs miss it")


def test_the_alert_of_a_fleet_counts_the_nodes_of_each_cluster(server: Prometheus) -> None:
    found = server.query(server.rules()["AffinitydUnpinned"]["query"])
    counts = {it["metric"].get("cluster", ""): float(it["value"][1]) for it in found}
    assert counts == {"": 1, "east": 1}


@pytest.mark.parametrize("chosen", [ON_PLAIN, ON_POD], ids=[PLAIN, POD])
def test_of_dcgms_gpus_those_that_are_far_and_idle_are_found_by_pod(
    server: Prometheus, chosen: Mapping[str, str]
) -> None:
    title = "Which GPUs are far from their CPUs and idle, by pod?"
    busy, far = (it for it in queries() if it.panel == title)

    def found() -> Mapping[tuple[str, ...], float]:
        return {
            tuple(series["metric"][it] for it in ("gpu", "namespace", "pod")): float(
                series["value"][1]
            )
            for series in busy.put_to(server, chosen)
        }

    both = {("0", "team", "train-0"): 3, ("3", "team", "train-3"): 0}
    eventually(lambda: found() == both, "both exporters were scraped")
    assert {it["metric"]["pod"] for it in far.put_to(server, chosen)} == {"train-0", "train-3"}
    for obvious in ("gpu, pci_bus_id", "pci_bus_id", "uuid"):
        joined = f"DCGM_FI_DEV_GPU_UTIL and on ({obvious}) affinityd_gpu_audited"
        assert server.query(joined) == [], obvious


def test_the_worst_process_of_a_gpu_is_what_is_shown_of_it(server: Prometheus) -> None:
    (worst,) = (it for it in queries() if it.panel == "Where do the processes of each GPU run?")
    numbers = {
        series["metric"]["gpu"]: float(series["values"][-1][1])
        for series in worst.put_to(server, ON_PLAIN)
    }
    assert numbers == {"0": 5, "1": 3, "3": 3, "4": 0}


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
        (series,) = asked.put_to(server, ON_PLAIN)
        return float(series["value"][1]) == number

    eventually(counted, f"{panel}: {number}")
