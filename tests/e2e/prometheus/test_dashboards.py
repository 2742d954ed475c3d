"""Every query of every panel and every rule, asked of a Prometheus that scrapes real daemons."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import yaml

from tests.e2e.prometheus.audited_node import audited
from tests.e2e.prometheus.queries import QUERIES, Asked, documents, filled_in
from tests.e2e.prometheus.server import Prometheus, Series, running_prometheus
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import Daemon, eventually, running
from tests.support.paths import DATA
from tests.support.ports import free_port

pytestmark = needs_cpuset

#: Nodes: as plain Prometheus names them by their address, and as the chart's monitors do.
PLAIN, POD = "127.0.0.1", "gpu09.example.org"
#: A daemon with the arguments of the chart's default, without the audit; and one that has ended.
#: Both are nodes of either cluster.
DEFAULT, GONE = "replayed", "gone"
#: Plain Prometheus has no label `cluster`, the other has; and scrapes by a job of another name.
UNNAMED, EAST = {"cluster": "", "job": "affinityd"}, {"cluster": "east", "job": "gpu-nodes"}
#: What the operator's monitors add to each target.
OF_POD = {"namespace": "gpu", "pod": "affinityd-x7k2p", "endpoint": "http"}

CANNOT_SEE = "Which nodes cannot be seen, and why?"
DO_NOT_PIN = "Which nodes do not pin as they are to?"
WITH_DCGM = "Which GPUs are far from their CPUs and idle, by pod?"
#: Panel and query: nothing here is as it should be, for no test makes a node so ill.
EMPTY_ON_PURPOSE = {
    (CANNOT_SEE, "D"),  # a scan was cut short by its time limit
    (CANNOT_SEE, "E"),  # the last scan is a minute old
    (DO_NOT_PIN, "C"),  # a process was reset five times
    (DO_NOT_PIN, "D"),  # the kernel refused a pin
    *((WITH_DCGM, it) for it in "AB"),  # there is no dcgm-exporter; tests/e2e/chart plays one
}


def as_pattern(names: Sequence[str]) -> str:
    """Return several chosen values as Grafana gives them to =~."""
    return "({})".format("|".join(re.escape(name).replace("\\", "\\\\") for name in names))


def nodes_of(found: Sequence[Series]) -> set[str]:
    return {series["metric"]["node"] for series in found}


#: What may be chosen: in the fleet view all, one or several; in the node view one.
CHOICES = {
    "fleet": [
        {**UNNAMED, "node": ".*", "job_id": ".*"},
        {**EAST, "node": as_pattern([POD, DEFAULT, GONE]), "job_id": as_pattern(["77", "78"])},
    ],
    "node": [{**UNNAMED, "node": PLAIN}, {**EAST, "node": POD}],
}


@dataclass(frozen=True)
class Fleet:
    """What is scraped, and who scrapes it."""

    audited: Daemon
    server: Prometheus


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    port, other, ended = free_port(), free_port(), free_port()
    both = {DEFAULT: other, GONE: ended}
    targets = [{"targets": [f"127.0.0.1:{port}"]}, *(at(it, both[it]) for it in both)]
    pods = [at(it, number, cluster="east", **OF_POD) for it, number in {POD: port, **both}.items()]
    replayed = ("--machine", "dgx-a100")
    with (
        audited(folder / "audited", f"127.0.0.1:{port}") as daemon,
        running(
            folder / DEFAULT, *replayed, *default_arguments(), listen=f"127.0.0.1:{other}"
        ) as default,
        running_prometheus(
            folder, targets, {"job_name": EAST["job"], "static_configs": pods}
        ) as prometheus,
    ):
        with running(folder / GONE, *replayed, listen=f"127.0.0.1:{ended}"):
            seen = f'count(affinityd_build_info{{node="{GONE}"}}) == 2'
            eventually(lambda: prometheus.query(seen), "it answers in both clusters, and ends")

        def has_data() -> bool:
            for it in (daemon, default):
                it.plan("gpus=0&mode=node")
            daemon.get("/plan?gpus=99")
            far = prometheus.query("node:affinityd_gpu_remote_cpu_seconds:rate5m > 0")
            return nodes_of(far) == {PLAIN, POD}

        eventually(has_data, "CPU time was counted, far from its GPU")
        yield Fleet(daemon, prometheus)


@pytest.fixture
def server(fleet: Fleet) -> Prometheus:
    return fleet.server


def at(node: str, port: int, **labels: str) -> Mapping[str, Any]:
    """Return a target of a node, which has its name by a label."""
    named = {"instance": f"{node}:9465", "node": node}
    return {"targets": [f"127.0.0.1:{port}"], "labels": {**named, **labels}}


def default_arguments() -> list[str]:
    """Return what the chart's default tells the daemon, but for folder and ports of its own."""
    made = yaml.safe_load_all((DATA / "golden" / "chart" / "default.yaml").read_text())
    (daemon_set,) = (it for it in made if it["kind"] == "DaemonSet")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    places = ("serve", "--socket=", "--listen=", "--listen-plan=")
    return [it for it in container["args"] if not it.startswith(places)]


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_a_panel_has_data(server: Prometheus, asked: Asked) -> None:
    for chosen in CHOICES[asked.dashboard]:
        if (asked.panel, asked.letter) in EMPTY_ON_PURPOSE:
            assert asked.put_to(server, chosen) == []
        else:
            eventually(partial(asked.put_to, server, chosen), f"{asked} has data: {chosen}")


#: Query → a value that it has of the default install.
SHOWN = {
    "fleet: GPUs that run far from their CPUs B": 8,  # of how many
    f"fleet: {CANNOT_SEE} B": 1,  # no audit
    "fleet: Daemons that answer A": 1,
    "node: GPUs that run far from their CPUs B": 8,
    "node: GPUs, and their processes A": 3,  # NUMA nodes
    "node: CPUs A": 256,
}
#: Once jobs ask.
ASKED = {
    "fleet: What did jobs get that asked for a plan? A",
    "node: How long does a plan take? A",
}


def test_panels_have_data_of_the_default_install_without_the_audit(server: Prometheus) -> None:
    chosen = {**UNNAMED, "node": DEFAULT, "job_id": ".*"}
    by_name = {str(asked): asked for asked in QUERIES}

    def empty() -> list[str]:
        found = {it: by_name[it].values(server, chosen) for it in (*SHOWN, *ASKED)}
        return [it for it in found if not found[it] or SHOWN.get(it, found[it][0]) not in found[it]]

    eventually(lambda: empty() == [], "they have data")


def test_a_table_has_a_row_for_each_of_its_keys_and_no_label_besides(server: Prometheus) -> None:
    for name, document in documents():
        for panel in (it for it in document["panels"] if it["type"] == "table"):
            (organize,) = (it for it in panel["transformations"] if it["id"] == "organize")
            keys = {key for key in organize["options"]["indexByName"] if "Value" not in key}
            for target in panel["targets"]:
                expr = filled_in(target["expr"], CHOICES[name][0])
                for series in server.query(expr):
                    assert set(series["metric"]) <= keys, target["expr"]


OFFERED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "": {"job": ["affinityd"], "node": [PLAIN, GONE, DEFAULT]},
    "east": {"job": ["gpu-nodes"], "node": [GONE, POD, DEFAULT]},
}
EVERYWHERE = {"cluster": ["east"], "job_id": ["77", "78", "79"]}


@pytest.mark.parametrize("cluster", OFFERED)
def test_variables_offer_what_there_is(server: Prometheus, cluster: str) -> None:
    expected = {**OFFERED[cluster], **EVERYWHERE}
    for name, document in documents():
        (chosen,) = (it for it in CHOICES[name] if it["cluster"] == cluster)
        for it in (it for it in document["templating"]["list"] if it["type"] == "query"):
            called = re.fullmatch(r"label_values\((.*), (\w+)\)", it["query"]["query"])
            assert called
            selector = filled_in(called[1], {**chosen, "node": ".*"})
            assert server.label_values(called[2], selector) == expected[it["name"]]


def test_every_rule_can_be_followed_and_every_record_is_of_both_nodes(server: Prometheus) -> None:
    def followed() -> bool:
        return {rule["health"] for rule in server.rules().values()} == {"ok"}

    eventually(followed, "every rule was evaluated")
    assert [rule["lastError"] for rule in server.rules().values() if "lastError" in rule] == []
    records = [name for name, rule in server.rules().items() if rule["type"] == "recording"]
    assert len(records) == 6
    for record in records:
        found = [it["metric"] for it in server.query(record)]
        clusters = {(it.get("cluster", ""), it["node"]) for it in found}
        assert {it for it in clusters if it[1] not in {DEFAULT, GONE}} == {
            ("", PLAIN),
            ("east", POD),
        }


def test_alerts_find_what_is_wrong(server: Prometheus) -> None:
    def found(alert: str) -> list[Mapping[str, str]]:
        return [it["metric"] for it in server.query(server.rules()[f"Affinityd{alert}"]["query"])]

    of_a_node = "AllocationIsRemote MaskIsRemote OrphansHoldGpu CannotSeeIntoGpus CannotPin"
    for alert in (*of_a_node.split(), "PolicyIsBroken"):
        assert {it["node"] for it in found(alert)} == {PLAIN, POD}
    ended = {("affinityd", GONE), ("gpu-nodes", GONE)}
    eventually(
        lambda: {(it["job"], it["node"]) for it in found("Down")} == ended,
        "both jobs miss the daemon that ended, whatever they are called",
    )
    counts = server.query(server.rules()["AffinitydUnpinned"]["query"])
    nodes = {it["metric"].get("cluster", ""): float(it["value"][1]) for it in counts}
    assert nodes == {"": 1, "east": 1}


def test_the_worst_process_of_a_gpu_is_what_is_shown_of_it(server: Prometheus) -> None:
    (worst,) = (it for it in QUERIES if it.panel == "Where do the processes of each GPU run?")
    series = worst.put_to(server, CHOICES["node"][0])
    numbers = {it["metric"]["gpu"]: float(it["values"][-1][1]) for it in series}
    assert numbers == {"0": 5, "1": 3, "3": 3, "4": 0}


def test_promtool_has_nothing_to_say_about_the_metrics(fleet: Fleet) -> None:
    scraped = fleet.audited.get("/metrics").text
    for kind in ("gpu", "job", "enforce", "plan"):
        assert f"\n# TYPE affinityd_{kind}_" in scraped
    command = ("promtool", "check", "metrics")
    done = subprocess.run(command, input=scraped, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
