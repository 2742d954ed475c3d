"""Every query of every panel and every rule, run on a Prometheus that scrapes real daemons.

promtool in tests/e2e/chart evaluates queries of several clusters and scrape jobs, and faults that
no test can cause on a node.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.prometheus.audited_node import audited
from tests.e2e.prometheus.server import (
    QUERIES,
    Asked,
    Prometheus,
    documents,
    filled_in,
    panels,
    running_prometheus,
)
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import Daemon, eventually, free_port, running
from tests.support.tiny import Ended, ran

pytestmark = needs_cpuset

#: The audited node, which plain Prometheus names by its address; a daemon without the audit, as
#: in the chart by default; and a daemon that has ended.
AUDITED, DEFAULT, GONE = "127.0.0.1", "gpu09.example.org", "gone"
#: The labels that the Prometheus operator's monitors add to each target.
OF_POD = {"namespace": "gpu", "pod": "affinityd-x7k2p", "endpoint": "http"}

CANNOT_SEE = "Which nodes cannot be seen, and why?"
OF_NICS = "What do the NICs of each GPU carry?"
WITH_DCGM = (
    "Which GPUs are far from their CPUs and idle, by pod?",
    "Which GPUs wait for their CPUs, and how busy are they?",
)
#: Panels and queries that rightly have no data here.
EMPTY_ON_PURPOSE = {
    (CANNOT_SEE, "D"),  # no GPU is lost
    *((panel, it) for panel in WITH_DCGM for it in "AB"),  # there is no dcgm-exporter
    *((OF_NICS, it) for it in "AB"),  # there is no node_exporter
}


def several(*names: str) -> str:
    return "({})".format("|".join(re.escape(name).replace("\\", "\\\\") for name in names))


#: Choices of variables: all or several nodes in the fleet view, one node in the node view.
BOTH_VIEWS = {"cluster": "", "job": "affinityd"}
FLEET = {**BOTH_VIEWS, "node": ".*", "job_id": ".*"}
NODE = {**BOTH_VIEWS, "node": AUDITED}
SEVERAL = {**FLEET, "node": several(AUDITED, DEFAULT, GONE), "job_id": several("77", "78")}
CHOICES = {"fleet": [FLEET, SEVERAL], "node": [NODE]}


@dataclass(frozen=True)
class Scraped:
    audited: Daemon
    server: Prometheus


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("fleet")
    address, other, ended = (f"127.0.0.1:{free_port()}" for _ in range(3))
    targets = [{"targets": [address]}, target(DEFAULT, other), target(GONE, ended)]
    replayed = ("--machine", "dgx-a100")
    with (
        audited(folder / "audited", address) as daemon,
        running(folder / DEFAULT, *replayed, "--scan-interval=off", listen=other) as default,
        running_prometheus(folder, targets) as server,
    ):
        with running(folder / GONE, *replayed, listen=ended):
            seen = f'affinityd_build_info{{node="{GONE}"}}'
            eventually(lambda: server.query(seen), "it answers, and ends")

        def has_data() -> object:
            for node in (daemon, default):
                node.get("/plan?gpus=0&mode=node&format=shell")
            daemon.get("/plan?gpus=99&format=shell")
            return server.query("node:affinityd_gpu_remote_cpu_seconds:rate5m > 0")

        eventually(has_data, "CPU time was counted, far from its GPU")
        yield Scraped(daemon, server)


@pytest.fixture
def server(scraped: Scraped) -> Prometheus:
    return scraped.server


def target(node: str, address: str) -> Mapping[str, Any]:
    return {"targets": [address], "labels": {"instance": f"{node}:9465", "node": node, **OF_POD}}


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_a_panel_has_data(server: Prometheus, asked: Asked) -> None:
    is_empty = (asked.panel, asked.letter) in EMPTY_ON_PURPOSE

    def is_right() -> bool:
        answers = [asked.put_to(server, chosen) for chosen in CHOICES[asked.dashboard]]
        return all(bool(series) != is_empty for series in answers)

    eventually(is_right, f"{asked} has data: {not is_empty}")


def test_rows_of_a_table_have_only_the_table_s_key_columns(server: Prometheus) -> None:
    for name, document in documents():
        for panel in (it for it in panels(document) if it["type"] == "table"):
            (organize,) = (it for it in panel["transformations"] if it["id"] == "organize")
            keys = {key for key in organize["options"]["indexByName"] if "Value" not in key}
            for target in panel["targets"]:
                expr = filled_in(target["expr"], CHOICES[name][0])
                for series in server.query(expr):
                    assert set(series["metric"]) <= keys, target["expr"]


OFFERED: Mapping[str, Sequence[str]] = {
    "cluster": [],
    "job": ["affinityd"],
    "node": [AUDITED, GONE, DEFAULT],
    "job_id": ["77", "78", "79", "80"],
}


def test_variables_offer_the_existing_values(server: Prometheus) -> None:
    for _, document in documents():
        for variable in (
            variable for variable in document["templating"]["list"] if variable["type"] == "query"
        ):
            called = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert called
            selector = filled_in(called[1], FLEET)
            assert server.label_values(called[2], selector) == OFFERED[variable["name"]]


def test_alerts_find_each_fault(server: Prometheus) -> None:
    def alerting(alert: str) -> set[str]:
        series = server.query(server.rules()[f"Affinityd{alert}"]["query"])
        return {it["metric"]["node"] for it in series}

    for alert in ("OrphansHoldGpu", "CannotSeeIntoGpus"):
        assert alerting(alert) == {AUDITED}
    eventually(lambda: alerting("Down") == {GONE}, "the daemon that ended is missed")


def test_a_gpu_is_shown_with_its_worst_process(server: Prometheus) -> None:
    (worst,) = (it for it in QUERIES if it.panel == "Where do the processes of each GPU run?")
    numbers = {it["metric"]["gpu"]: it["values"][-1][1] for it in worst.put_to(server, NODE)}
    assert numbers == {"0": "5", "2": "3", "3": "3"}


def test_promtool_reports_nothing_about_the_metrics(scraped: Scraped) -> None:
    metrics = scraped.audited.get("/metrics").text
    for kind in ("gpu_", "job_", "plans"):
        assert f"\n# TYPE affinityd_{kind}" in metrics
    assert ran("promtool", "check", "metrics", input=metrics) == Ended(0, "", "")
