"""What it costs to look at processes: a scan, and the answers that are given meanwhile.

A scan's cost is that of each process which holds no GPU: how much more CPU time scans take with
many idle processes, where NVML tells which use the GPUs, and where open device files do. Its peer
is psutil, which reads the mask of each process. Answers are timed in turn while the daemon
rests, and while it scans threads, is scraped and asked for `/audit` without a pause, with thousands
of series; with `--every 15` it scans as often as usual, and is asked for nothing else.

    python -m bench.audit [--processes N] [--series N] [--rounds N] [--every S] [--threads N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from affinityd.audit.auditor import Auditor
from affinityd.audit.facts.holding import GpuHolders, Holding
from affinityd.audit.facts.job import Job
from affinityd.audit.model import CpuTime, Scan
from affinityd.audit.sources.holders import HolderSources
from affinityd.config.settings import Settings
from affinityd.daemon import main as daemon
from affinityd.daemon.scanning import Scanning
from affinityd.daemon.state.scans import ScanChild
from affinityd.discovery.machine import Machine
from affinityd.discovery.nvml.report import ProcessReport
from affinityd.topology.model import Topology
from bench.ratio import Ratio
from tests.support.children import children_of, program
from tests.support.daemons import eventually
from tests.support.machines.by_hand import made

VENDORS = ("nvidia", "huawei")
SCANS = 240  #: an hour's
SERIES_A_JOB = 5
HOLDERS = 10  #: processes that hold a GPU
SECONDS = 2.0  #: of a turn, and as many as four scans take
LATE = 5.0  #: milliseconds
PAUSE = 0.002  #: between two questions

IDLE = 'i=0; while [ $i -lt "$0" ]; do sleep 3600 & i=$((i + 1)); done; echo ready; wait'
THREADED = """
import sys, threading
for _ in range({}):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print('ready', flush=True)
sys.stdin.read()
"""
QUERY = b"/plan?gpus=0,1&mode=unique_contiguous&share=requested"


def request(target: bytes) -> bytes:
    return b"GET " + target + b" HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n\r\n"


@contextlib.contextmanager
def idle(processes: int) -> Iterator[Sequence[int]]:
    """Run so many processes that do nothing; yield them."""
    with subprocess.Popen(
        ["sh", "-c", IDLE, str(processes)], stdout=subprocess.PIPE, start_new_session=True
    ) as shell:
        try:
            assert shell.stdout is not None
            assert shell.stdout.readline()
            yield children_of(shell.pid)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def cost(processes: int = 2000, tries: int = 3) -> tuple[Ratio, ...]:
    """Return what each idle process adds to a scan, by the GPUs' vendor, by what psutil takes.

    It is CPU time.
    """
    scans = {vendor: partial(scan_seconds, vendor) for vendor in VENDORS}
    alone = {vendor: min(seconds() for _ in range(tries)) for vendor, seconds in scans.items()}
    with idle(processes) as pids:
        rounds = [
            (psutil_seconds(pids), {vendor: seconds() for vendor, seconds in scans.items()})
            for _ in range(tries)
        ]
    return tuple(
        Ratio(
            f"audit scan a process without a GPU, {vendor}",
            "psutil's cpu_affinity",
            "≤ 0.05",
            [(its[vendor] - alone[vendor]) / psutils for psutils, its in rounds],
        )
        for vendor in VENDORS
    )


def psutil_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time in which psutil reads the mask of each process, the least of three."""
    spent = []
    for _ in range(3):
        began = time.process_time()
        for pid in pids:
            psutil.Process(pid).cpu_affinity()
        spent.append(time.process_time() - began)
    return min(spent)


def scan_seconds(vendor: str) -> float:
    """Return the CPU time of a scan, as the mean of the first hour's."""
    machine = made({0: "0-3"})
    topology = replace(machine, gpus=(replace(machine.gpus[0], vendor=vendor),))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "version").touch()  # of the driver
        auditor = Auditor(HolderSources(lambda _: ProcessReport(gpus=()), driver=folder))
        began = time.process_time()
        for _ in range(SCANS):
            auditor.scan(topology)
        return (time.process_time() - began) / SCANS


@dataclass(frozen=True)
class Latency:
    """How long answers took, in milliseconds."""

    p50: float
    p99: float
    worst: float
    late: float  #: the share that took longer than LATE

    def __str__(self) -> str:
        times = f"p50 {self.p50:.2f}  p99 {self.p99:.2f}  worst {self.worst:.2f} ms"
        return f"{times}  late {self.late:.3%}"


class Busy:
    """Scans real threads for made jobs; holds still while a file is there."""

    def __init__(self, jobs: int, holders: list[int], still: Path) -> None:
        self._auditor = Auditor(self)
        self._jobs = {Job("slurm", str(number)): CpuTime(2.0, 1.0) for number in range(jobs)}
        self._holders = holders
        self._still = still

    def held(self, topology: Topology) -> GpuHolders:
        return GpuHolders(tuple(Holding(pid, topology.gpus[0].key) for pid in self._holders))

    def scan(self, topology: Topology) -> Scan:
        while self._still.exists():
            time.sleep(0.01)
        scan = self._auditor.scan(topology)
        return replace(scan, job_time=self._jobs, since=dict.fromkeys(self._jobs, 1.0))


def serve(path: Path, series: int, every: int, holders: list[int]) -> None:
    """Be the daemon of a shipped machine whose processes are these."""
    jobs = series // SERIES_A_JOB
    settings = Settings(socket=str(path), scan_interval=every, job_series=jobs)
    machine = Machine(replace(settings, machine="dgx-a100"))
    busy = Busy(jobs, holders, path.with_name("still"))
    daemon.run(settings, machine, ScanChild(lambda: Scanning(settings, busy.scan, {}), {}))


def bother(path: Path) -> None:
    """Ask for metrics and processes for ever."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        while True:
            for target in (b"/metrics", b"/audit"):
                ask(connection, target)


def ask(connection: socket.socket, target: bytes) -> int:
    """Return how many bytes the answer has."""
    connection.sendall(request(target))
    answer = bytearray()
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65536)
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    got = len(body)
    while got < length:
        got += len(connection.recv(1 << 20))
    return length


def latency(path: Path, seconds: float) -> Latency:
    """Return how long answers take."""
    took = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            ask(connection, QUERY)
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(PAUSE)
    took.sort()
    late = sum(it > LATE for it in took) / len(took)
    return Latency(median(took), took[len(took) * 99 // 100], took[-1], late)


def tail(rounds: int = 4) -> Ratio:
    """Return the 99th percentile of answers while the daemon scans and is scraped, by at rest."""
    turns = zip(*answers(rounds=rounds), strict=True)
    ratios = [working.p99 / resting.p99 for resting, working in turns]
    return Ratio("p99 of a plan amid scans and scrapes", "without them", "≤ 2", ratios)


def answers(
    series: int = 10_000, rounds: int = 3, every: int = 0, threads: int = 100
) -> tuple[list[Latency], list[Latency]]:
    """Return how long answers take while the daemon rests, and while it does all it can.

    `every`: seconds between scans; 0: without a pause, and it is asked for all else, too.
    `threads`: of each of the processes.
    """
    resting, working = list[Latency](), list[Latency]()
    options = ["--series", str(series), "--every", str(every)]
    again = [sys.executable, "-m", "bench.audit", *options]
    threaded = THREADED.format(threads - 1)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path, still = Path(folder, "affinityd.sock"), Path(folder, "still")
        holders = [stack.enter_context(program(threaded)).pid for _ in range(HOLDERS)]
        command = [*again, "--serve", str(path), *map(str, holders)]
        served = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        stack.callback(served.terminate)
        eventually(path.exists, "the daemon listens")
        eventually(lambda: _has_series(path, series), "it has all the series")
        for _ in range(rounds):
            still.touch()
            time.sleep(0.5)
            resting.append(latency(path, SECONDS))
            still.unlink()
            with _bothered(None if every else [*again, "--bother", str(path)]):
                time.sleep(0.5)
                working.append(latency(path, SECONDS + 4 * every))
            print(f"resting: {resting[-1]}   working: {working[-1]}")
    return resting, working


@contextlib.contextmanager
def _bothered(command: list[str] | None) -> Iterator[None]:
    if command is None:
        yield
        return
    with subprocess.Popen(command) as bothering:
        yield
        bothering.kill()


def _has_series(path: Path, series: int) -> bool:
    bytes_a_series = 50
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        return ask(connection, b"/metrics") > series * bytes_a_series


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2000)
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--threads", type=int, default=100)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bother", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("holders", type=int, nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.series, arguments.every, arguments.holders)
    elif arguments.bother:
        bother(arguments.bother)
    else:
        for ratio in cost(arguments.processes):
            print(ratio)
        answers(arguments.series, arguments.rounds, arguments.every, arguments.threads)


if __name__ == "__main__":
    main()
