"""The chart's probes, asked of a real daemon."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.chart.rendering import container
from tests.support.daemons import Daemon, eventually, running, spawn

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def statuses(daemon: Daemon) -> list[int]:
    paths = [container("default")[probe]["httpGet"]["path"] for probe in PROBES]
    return [daemon.get(path).status for path in paths]


def test_a_daemon_that_has_read_its_machine_passes_them_all(tmp_path: Path) -> None:
    with running(tmp_path, "--machine=dgx-a100") as daemon:
        assert statuses(daemon) == [200, 200, 200]


def test_a_daemon_that_cannot_read_its_machine_is_not_ready_and_not_ended(tmp_path: Path) -> None:
    (tmp_path / "node" / "sys/devices/system/cpu").mkdir(parents=True)
    daemon = spawn(tmp_path, f"--root={tmp_path / 'node'}")
    try:
        unread = "the machine could not be read"
        eventually(lambda: any(unread in line for line in daemon.lines), "a reading has failed")
        assert statuses(daemon) == [200, 200, 503]
    finally:
        daemon.process.kill()
        daemon.process.wait()
