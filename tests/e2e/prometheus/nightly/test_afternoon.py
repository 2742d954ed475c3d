"""An afternoon in a cluster: events on its nodes, and the alerts that fire.

Real daemons, a real Prometheus with the rules, and a real Alertmanager with the example; a minute
of the rules is MINUTE seconds. docs/alerts.md has the resulting table.
"""

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.prometheus.server import DEPLOY, Prometheus, running_prometheus
from tests.support.children import sleeping
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import PATIENCE, eventually, free_port, running
from tests.support.paths import REPOSITORY
from tests.support.scanning_node import LISTED, ScanningNode, address, facts, scanning, uuid
from tests.support.tiny import FAR

pytestmark = needs_cpuset

MINUTE = 6.0  #: seconds; a daemon starts within five minutes, also on a busy machine
#: Node → what happens to it, in the words of the page's table.
EVENTS = {
    "far": "a job has far CPUs in its mask, for half an hour",
    "ends": "a job ends that had far CPUs in its mask for ten minutes",
    "dies": "a node dies, or its daemon is stopped",
    "hangs": "a node hangs",
    "reboots": "a node reboots within five minutes, or a daemon is upgraded",
    "loses": "a GPU is lost, or falls off the bus",
    "driver": "NVIDIA's driver hangs",
    "drained": "a node is drained, and taken out of Prometheus's targets",
    "cut": "a partition: more than a fifth of the nodes cannot be reached",
}
SCANNING = [name for name in EVENTS if name != "cut"]
CUT = [f"cut{number}" for number in range(3)]  #: nodes that cannot be reached
LOST = "\n".join(f"fail {LISTED}_v{version} 15" for version in (2, 3))


class Cluster:
    """The nodes, each with a job on its first GPU."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in (*SCANNING, *CUT)}
        self.nodes: dict[str, ScanningNode] = {}
        self._folder, self._stack = folder, stack
        self._running: dict[str, ExitStack] = {}

    def start(self, name: str, *job: int) -> None:
        own = self._running[name] = self._stack.enter_context(ExitStack())
        node = scanning("--scan-interval=3", users={0: job}, listen=self.addresses[name])
        self.nodes[name] = own.enter_context(node)

    def stop(self, name: str) -> None:
        self._running.pop(name).close()

    def tell_prometheus(self) -> None:
        targets = [
            {"targets": [address], "labels": {"node": name}}
            for name, address in self.addresses.items()
        ]
        (self._folder / "nodes.yaml").write_text(yaml.safe_dump(targets))


@contextmanager
def running_alertmanager(folder: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    config = DEPLOY / "prometheus" / "alertmanager.yaml"
    command = ["prometheus-alertmanager", f"--config.file={config}", "--cluster.listen-address="]
    command += [f"--storage.path={folder / 'alerts'}", f"--web.listen-address={address}"]
    with (
        (folder / "alertmanager.log").open("w") as log,
        subprocess.Popen(command, stderr=log) as process,
    ):
        try:
            yield address
        finally:
            process.terminate()


@dataclass(frozen=True)
class Afternoon:
    fired: Mapping[str, set[str]]  #: node → the alerts that have fired; "" has the cluster's
    suppressed: set[str]  #: nodes whose AffinitydDown is suppressed by Alertmanager
    summaries: set[str]


def fired(server: Prometheus) -> dict[str, set[str]]:
    alerts: dict[str, set[str]] = {}
    for series in server.query('count_over_time(ALERTS{alertstate="firing"}[1h])'):
        labels = series["metric"]
        alerts.setdefault(labels.get("node", ""), set()).add(labels["alertname"])
    return alerts


def firing(alert: str, node: str = "") -> str:
    return f'ALERTS{{alertname="Affinityd{alert}",node="{node}",alertstate="firing"}}'


@pytest.fixture(scope="module")
def afternoon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Afternoon]:
    folder = tmp_path_factory.mktemp("afternoon")
    with ExitStack() as stack:
        cluster = Cluster(folder, stack)
        ending = stack.enter_context(ExitStack())
        far = ("taskset", "-c", FAR)
        job = stack.enter_context(sleeping(before=far)).pid
        short_job = ending.enter_context(sleeping(before=far)).pid
        for name in SCANNING:
            cluster.start(name, short_job if name == "ends" else job)
        cut = []
        for name in CUT:
            how = {"listen": cluster.addresses[name]}
            replayed = ("--machine", "dgx-a100", "--scan-interval=off")
            cut.append(stack.enter_context(running(folder / name, *replayed, **how)))
        alertmanager = stack.enter_context(running_alertmanager(folder))
        prometheus = running_prometheus(folder, [], minute=MINUTE, alertmanager=alertmanager)
        server = stack.enter_context(prometheus)
        cluster.tell_prometheus()
        seen = f"count(affinityd_build_info) == {len(cluster.addresses)}"
        eventually(lambda: server.query(seen), "all nodes are scraped")
        time.sleep(8 * MINUTE)

        nodes = cluster.nodes
        cluster.stop("reboots")
        cluster.start("reboots")
        ending.close()
        nodes["ends"].say({})
        nodes["dies"].daemon.process.kill()
        nodes["hangs"].daemon.signal(signal.SIGSTOP)
        first, all_four = f"uuid {uuid(0)}", facts({0: [job]})
        without_last = all_four[: all_four.rindex("gpu\n")]
        nodes["loses"].tell(without_last.replace(first, f"{first}\n{LOST}"))
        nodes["loses"].daemon.signal(signal.SIGHUP)  # the driver's list in /proc would differ
        nodes["driver"].say({0: [job]}, "fail nvmlDeviceGetCount_v2 hang")
        cluster.stop("drained")
        del cluster.addresses["drained"]
        cluster.tell_prometheus()
        eventually(lambda: server.query(firing("MaskIsRemote", "far")), "the far job's alert fires")
        time.sleep(5 * MINUTE)
        assert "" not in fired(server), "two nodes are not many"

        for daemon in cut:
            daemon.signal(signal.SIGSTOP)
        eventually(lambda: server.query(firing("ManyNodes")), "the alert of many nodes fires")
        url = f"http://{alertmanager}/api/v2/alerts?silenced=false"

        def alerts() -> list[Any]:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                found: list[Any] = json.load(answer)
            return found

        def suppressed() -> set[str]:
            return {
                it["labels"].get("node", "")
                for it in alerts()
                if it["status"]["state"] == "suppressed"
                and it["labels"]["alertname"] == "AffinitydDown"
            }

        eventually(lambda: {*CUT} <= suppressed(), "one alert stands for all cut nodes")
        summaries = {it["annotations"]["summary"] for it in alerts()}
        yield Afternoon(fired(server), suppressed(), summaries)
        for daemon in (*cut, nodes["hangs"].daemon):
            daemon.signal(signal.SIGCONT)


def test_the_page_s_table_has_the_alerts_that_fire(afternoon: Afternoon) -> None:
    rows = []
    for node, event in EVENTS.items():
        names = afternoon.fired.get(node, set())
        if node == "cut":
            names = afternoon.fired[""].union(*(afternoon.fired[name] for name in CUT))
        alerts = ", ".join(f"[{it}](#{it.lower()})" for it in sorted(names))
        rows.append(f"| {event} | {alerts or 'nothing'} |")
    assert "\n".join(rows) in (REPOSITORY / "docs/alerts.md").read_text()


def test_each_message_names_its_subject(afternoon: Afternoon) -> None:
    assert afternoon.suppressed == {*CUT, "dies", "hangs"}
    names = f"GPU 0 ({address(0)}) GPU 3 ({address(3)})"
    summaries = afternoon.summaries
    assert f"On loses 2 GPU(s) are lost or hang: {names}." in summaries
    assert any(re.fullmatch(r"[3-5] of 10 nodes have AffinitydDown\.", it) for it in summaries)


def test_only_the_alert_of_a_silent_daemon_inhibits_that_daemon_s_alerts(tmp_path: Path) -> None:
    sent = [
        {"labels": {"alertname": f"Affinityd{alert}", "instance": instance, "node": "a", **more}}
        for alert, instance, more in (
            ("Down", "restarts", {"reason": "restarts"}),
            ("OrphansHoldGpu", "restarts", {}),
            ("Down", "dead", {"reason": "down"}),
            ("OrphansHoldGpu", "dead", {}),
            ("OrphansHoldGpu", "alive", {}),  # by a second daemon on the node
        )
    ]
    with running_alertmanager(tmp_path) as address:
        url = f"http://{address}/api/v2/alerts"
        message = {"Content-Type": "application/json"}
        post = urllib.request.Request(url, json.dumps(sent).encode(), message)

        def is_sent() -> bool:
            try:
                with urllib.request.urlopen(post, timeout=PATIENCE):  # noqa: S310 - ours
                    return True
            except OSError:
                return False

        def suppressed() -> list[tuple[str, str]] | None:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                alerts = json.load(answer)
            if any(it["status"]["state"] == "unprocessed" for it in alerts):
                return None
            states = {(it["labels"]["alertname"], it["labels"]["instance"]): it for it in alerts}
            assert len(states) == len(sent)
            return [it for it in states if states[it]["status"]["state"] == "suppressed"]

        eventually(is_sent, "it takes alerts")
        eventually(lambda: suppressed() == [("AffinitydOrphansHoldGpu", "dead")], "it inhibits")
