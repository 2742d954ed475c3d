"""The CPU time that a process without a GPU adds to a scan, divided by psutil's for a mask.

It is the time of scans with many idle processes, minus that of scans without them. It is measured
with NVML and with open device files as the source of the GPUs' processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from affinityd.audit.auditor import Auditor
from affinityd.audit.sources import HolderSources
from affinityd.discovery.nvml import ProcessReport
from bench.ratio import Ratio
from tests.support.children import children_of
from tests.support.machines.by_hand import made

VENDORS = ("nvidia", "huawei")
SCANS = 240  #: scans in an hour
IDLE = 'i=0; while [ $i -lt "$0" ]; do sleep 3600 & i=$((i + 1)); done; echo ready; wait'


def measure(processes: int = 2000, rounds: int = 3) -> tuple[Ratio, ...]:
    """Return for each GPU vendor the CPU time of a scan per process, divided by psutil's."""
    alone = {vendor: min(scan(vendor) for _ in range(rounds)) for vendor in VENDORS}
    with _idle(processes) as pids:
        psutils = [_psutil(pids) for _ in range(rounds)]
        costs = {vendor: [scan(vendor) for _ in range(rounds)] for vendor in VENDORS}
    return tuple(
        Ratio(
            f"scan of a process without a GPU, {vendor}",
            "psutil's cpu_affinity",
            0.05,
            [
                (ours - alone[vendor]) / peer
                for ours, peer in zip(costs[vendor], psutils, strict=True)
            ],
        )
        for vendor in VENDORS
    )


def scan(vendor: str) -> float:
    """Return the CPU time of a scan in seconds: the mean of the scans of the first hour."""
    machine = made({0: "0-3"})
    topology = replace(machine, gpus=(replace(machine.gpus[0], vendor=vendor),))
    with tempfile.TemporaryDirectory() as driver:
        Path(driver, "version").touch()
        auditor = Auditor(HolderSources(lambda _: ProcessReport(gpus=()), driver=driver).held)
        began = time.process_time()
        for _ in range(SCANS):
            auditor.scan(topology)
        return (time.process_time() - began) / SCANS


def _psutil(pids: Sequence[int]) -> float:
    began = time.process_time()
    for pid in pids:
        psutil.Process(pid).cpu_affinity()
    return time.process_time() - began


@contextmanager
def _idle(processes: int) -> Iterator[Sequence[int]]:
    with subprocess.Popen(
        ["sh", "-c", IDLE, str(processes)], stdout=subprocess.PIPE, start_new_session=True
    ) as shell:
        try:
            assert shell.stdout is not None
            assert shell.stdout.readline()
            yield children_of(shell.pid)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
