"""What the daemon costs at rest: CPU time of all its processes, and wake-ups of their threads.

It runs on a machine of eight GPUs, with NVML's stub: once without scans, and once with a scan and a
scrape every 15 s. Its peer, if it is installed (Debian: prometheus-node-exporter), is scraped as
often. A thread wakes up each time it has waited, proc_pid_status(5) voluntary_ctxt_switches; the
threads that end within the time do not count, and their CPU time does.

    python -m bench.idle [--seconds N]
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.live import live
from tests.support.daemons import eventually

EVERY = 15.0  #: seconds between two scrapes, as between two scans
WARM = 3.0  #: seconds after the start that do not count
TICKS = os.sysconf("SC_CLK_TCK")
PEER = "prometheus-node-exporter"


@dataclass(frozen=True)
class Spent:
    """What a process and its descendants have spent since they began."""

    cpu: float  #: seconds
    wakes: dict[str, int]  #: by thread

    @classmethod
    def by(cls, process: int) -> Spent:
        """Return what it is now."""
        tasks = [task for pid in _tree(process) for task in Path(f"/proc/{pid}/task").iterdir()]
        wakes = {str(task): _wakes((task / "status").read_text()) for task in tasks}
        return cls(sum(map(_cpu, _tree(process))), wakes)


def _tree(process: int) -> Iterator[int]:
    yield process
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        for child in file.read_text().split():
            yield from _tree(int(child))


def _cpu(pid: int) -> float:
    """Return the CPU time of a process, and of its children that have ended: proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def _wakes(status: str) -> int:
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split(maxsplit=1)[0])


def measure(title: str, process: int, seconds: float, scrape: Callable[[], object] | None) -> None:
    """Print what a process spends in so many seconds."""
    time.sleep(WARM)
    before, start = Spent.by(process), time.monotonic()
    while (left := start + seconds - time.monotonic()) > 0:
        if scrape is not None:
            scrape()
        time.sleep(min(EVERY, left))
    took, after = time.monotonic() - start, Spent.by(process)
    wakes = sum(count - before.wakes.get(task, 0) for task, count in after.wakes.items())
    cpu = 100 * (after.cpu - before.cpu) / took
    print(f"| {title} | {cpu:.2f} | {wakes / took:.1f} |")


@contextmanager
def _peer() -> Iterator[tuple[int, str]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"127.0.0.1:{free.getsockname()[1]}"
    command = [PEER, f"--web.listen-address={url}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: _answers(f"http://{url}/metrics"), f"{PEER} answers")
            yield process.pid, f"http://{url}/metrics"
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return bool(_get(url))
    except OSError:
        return False


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - this machine's own
        return bytes(answer.read())


def main() -> None:
    """Measure each, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    print("| | CPU, % of one | wake-ups a second |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        with live(Path(name, "off"), "--scan-interval", "off") as daemon:
            measure("no scans, no scrapes", daemon.process.pid, seconds, None)
        with live(Path(name, "on")) as daemon:
            pid, metrics = daemon.process.pid, lambda: daemon.get("/metrics")
            measure("a scan and a scrape every 15 s", pid, seconds, metrics)
    if shutil.which(PEER):
        with _peer() as (pid, url):
            measure(f"{PEER}, at rest", pid, seconds, None)
            measure(f"{PEER}, a scrape every 15 s", pid, seconds, lambda: _get(url))


if __name__ == "__main__":
    main()
