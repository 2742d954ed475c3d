"""What the default install starts: how it answers probes, and what the dashboards show of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chart.rendering import container
from tests.e2e.prometheus.test_dashboards import queries
from tests.support.daemons import Daemon, eventually, running, spawn
from tests.support.ports import free_port
from tests.support.prometheus import Prometheus, running_prometheus


def probed(daemon: Daemon) -> list[int]:
    """Return how the daemon answers the chart's probes."""
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    paths = [container("default")[probe]["httpGet"]["path"] for probe in probes]
    return [daemon.get(path).status for path in paths]


def test_a_daemon_that_cannot_read_its_machine_is_not_ready_and_not_ended(tmp_path: Path) -> None:
    (tmp_path / "node" / "sys/devices/system/cpu").mkdir(parents=True)
    daemon = spawn(tmp_path, f"--root={tmp_path / 'node'}")
    try:
        unread = "the machine could not be read"
        eventually(lambda: any(unread in line for line in daemon.lines), "a reading has failed")
        assert probed(daemon) == [200, 200, 503]
    finally:
        daemon.process.kill()
        daemon.process.wait()


NODE = "gpu07"
#: Of a daemon in a pod; the test has a folder and a port of its own.
PLACES = ("--socket=", "--listen=", "--listen-plan=")
#: What is chosen at the top of a dashboard: this node, and all of the rest.
CHOSEN = {"node": NODE, "cluster": "", "job": ".*", "job_id": ".*"}

#: Before any job has asked for a plan; dashboard, panel, and the letters of its queries.
SHOWN = {
    ("fleet", "GPUs that run far from their CPUs", "B"): 8,  # of how many
    ("fleet", "Nodes with such a GPU", "B"): 1,
    ("fleet", "Which nodes run far from their GPUs, and what does it cost?", "B"): 8,
    ("fleet", "Which nodes cannot be seen, and why?", "B"): 1,  # no audit
    ("fleet", "Daemons that answer", "A"): 1,
    ("fleet", "Versions", "A"): 1,
    ("node", "GPUs that run far from their CPUs", "B"): 8,
    ("node", "GPUs, and who uses them", "A"): 3,  # NUMA nodes
    ("node", "CPUs", "A"): 256,
    ("node", "Has the topology changed?", "A"): 0,
}
#: Once jobs ask.
ASKED = {
    ("fleet", "What did jobs get that asked for a plan?", "A"),
    ("fleet", "In which mode are plans made?", "A"),
    ("node", "What did jobs get that asked for a plan?", "A"),
    ("node", "How long does a plan take?", "A"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Have a Prometheus that scrapes a daemon with the default install's arguments."""
    folder = tmp_path_factory.mktemp("default")
    arguments = [it for it in container("default")["args"][1:] if not it.startswith(PLACES)]
    address = f"127.0.0.1:{free_port()}"
    target = {"targets": [address], "labels": {"node": NODE, "instance": f"{NODE}:9465"}}
    replayed = ("--machine", "dgx-a100")
    with (
        running(folder / "daemon", *replayed, *arguments, listen=address) as daemon,
        running_prometheus(folder, [target]) as prometheus,
    ):
        assert probed(daemon) == [200, 200, 200]

        def counts() -> bool:
            daemon.plan("gpus=0&mode=node")
            return bool(prometheus.query("rate(affinityd_plans_total[10s]) > 0"))

        eventually(counts, "plans were counted")
        yield prometheus


@pytest.mark.parametrize("key", sorted({*SHOWN, *ASKED}), ids=": ".join)
def test_a_panel_has_data_without_the_audit(server: Prometheus, key: tuple[str, str, str]) -> None:
    def values() -> list[float]:
        (asked,) = (it for it in queries() if (it.dashboard, it.panel, it.letter) == key)
        found = asked.put_to(server, CHOSEN)
        return [float((it["value"] if "value" in it else it["values"][-1])[1]) for it in found]

    eventually(lambda: values() and SHOWN.get(key) in {None, *values()}, f"{key} has data")
