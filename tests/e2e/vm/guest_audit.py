"""Runs in the virtual machine: has processes use its GPUs here and there, and prints what is found.

It judges nothing: what should have been found is said in test_audit.py. NVIDIA's driver is a
folder and a library that answers from facts; processes, masks, cgroups and memory are real.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.vm.holders import RANKS, Rank
from tests.e2e.vm.inside import PCI_FOLDER, bring, cgroup, output, serving, stage
from tests.e2e.vm.mending import FILL
from tests.e2e.vm.warm import affinityd
from tests.support.daemons import Daemon, eventually

FACTS = Path("/tmp/nvml.facts")  # noqa: S108 - nobody else is here
LIBRARY = "/built"  #: the folder of the library
PROGRAMS = Path("/tmp/bin")  # noqa: S108
MIB = 2**20

#: Has a child, as a rank has DataLoader workers.
WITH_CHILD = 'sleep 1000 & exec "$0" 1000'


def main() -> None:
    """Start the ranks, and look at them as they are moved."""
    bring("31", online=True)
    hold_gpus()
    os.environ.update(LD_LIBRARY_PATH=LIBRARY, NVML_FACTS=str(FACTS), AFFINITYD_SCAN_INTERVAL="2")
    with ExitStack() as stack:
        pids = {name: stack.enter_context(started(it)) for name, it in RANKS.items()}
        write_facts(pids)
        stage("the daemon starts")
        daemon = serving()
        report: dict[str, Any] = {"pids": pids}
        report["at first"] = scanned(daemon)
        report["metrics"] = daemon.get("/metrics").text
        stage("the command")
        report["command"] = affinityd("audit", "--json")
        report["table"] = affinityd("audit")
        stage("repinned")
        output("taskset", "-acp", "4-5", f"{pids['masked']}")
        report["repinned"] = scanned(daemon)
        stage("a rank turns, far away")
        with turning("28-29") as pid:
            write_facts({**pids, "near": pid})
            scanned(daemon)
            scanned(daemon)
        report["turned"] = daemon.get("/metrics").text
        stage("memory")
        with filled("8-11") as pid:  # the kernel leaves less of node 0
            output("taskset", "-acp", "12-13", f"{pid}")
            write_facts({**pids, "near": pid})
            report["memory"] = affinityd("audit", "--memory", "--json")
        daemon.stop()
    stage("done")
    json.dump(report, sys.stdout)


def hold_gpus() -> None:
    """Have NVIDIA's driver hold the GPUs: they are its then, whoever made them."""
    output("mount", "-t", "tmpfs", "tmpfs", "/proc/driver")
    for minor, address in enumerate(addresses()):
        folder = Path("/proc/driver/nvidia/gpus", address)
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Device Minor: \t {minor}\n")
    Path("/proc/driver/nvidia/version").write_text("NVRM version: 550.54.15\n")


def addresses() -> list[str]:
    is_gpu = (it.name for it in PCI_FOLDER.iterdir() if (it / "class").read_text() == "0x030000\n")
    return sorted(is_gpu)


def write_facts(pids: Mapping[str, int]) -> None:
    """Have NVML say which process uses which GPU."""
    lines = ["driver 550.54.15"]
    for index, address in enumerate(addresses()):
        lines += ["gpu", f"uuid GPU-{index:08d}", f"pci 0000{address}", f"minor {index}"]
        for name, rank in RANKS.items():
            if rank.gpu == index:
                lines.append(f"process compute {pids[name]} {rank.gpu_mib * MIB}")
    FACTS.write_text("\n".join((*lines, "")))


@contextmanager
def started(rank: Rank) -> Iterator[int]:
    """Run a rank's program in its cgroup, on its CPUs; give its pid."""
    with ExitStack() as stack:
        if rank.keeper:  # what Slurm has beside each step's tasks
            stack.enter_context(running(program("slurmstepd"), group=keeper_group(rank)))
        path = program(rank.program)
        command = ["sh", "-c", WITH_CHILD, path] if rank.has_child else [path, "1000"]
        yield stack.enter_context(running(*command, group=group(rank), cpus=rank.cpus))


@contextmanager
def running(*command: str, group: Path, cpus: str | None = None) -> Iterator[int]:
    words = command if len(command) > 1 else (*command, "1000")
    confine = ("taskset", "-c", cpus) if cpus else ()
    enter = ("sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', os.fspath(group))
    with subprocess.Popen([*enter, *confine, *words]) as process:
        is_there = lambda: Path(words[0]).name in command_line(process.pid)  # noqa: E731
        eventually(is_there, f"{words[0]} runs")
        try:
            yield process.pid
        finally:
            process.kill()


def command_line(pid: int) -> str:
    """Return what runs, once it has become the last of the programs before it."""
    text = Path(f"/proc/{pid}/cmdline").read_text()
    return "" if "taskset" in text or "cgroup.procs" in text else text


def program(name: str) -> str:
    """Return a program of this name that sleeps."""
    PROGRAMS.mkdir(exist_ok=True)
    path = PROGRAMS / name
    if not path.exists():
        shutil.copy("/usr/bin/sleep", path)
    return os.fspath(path)


def group(rank: Rank) -> Path:
    """Make a rank's cgroup, as its scheduler makes it."""
    return nested(rank.group, rank.cpuset)


def keeper_group(rank: Rank) -> Path:
    return nested(rank.group.partition("/user/")[0] + "/slurm", None)


def nested(path: str, cpuset: str | None) -> Path:
    """Make a cgroup and those above it; the last has the cpuset."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        cgroup("/".join(parts[:depth]))
    return cgroup(path, **({"cpus": cpuset} if cpuset else {}))


@contextmanager
def turning(cpus: str) -> Iterator[int]:
    """Run a rank that does nothing but use CPU time."""
    code = 'trap "exit" TERM; while :; do :; done'
    with subprocess.Popen(["taskset", "-c", cpus, "sh", "-c", code]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def filled(cpus: str) -> Iterator[int]:
    """Run a rank that has filled memory where these CPUs are."""
    pipe = subprocess.PIPE
    command = ["taskset", "-c", cpus, *FILL]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the program ended before it was ready"
        try:
            yield process.pid
        finally:
            process.kill()


def scanned(daemon: Daemon) -> Any:  # noqa: ANN401 - a document
    """Return what a scan found that began after this was asked."""
    before = times(daemon)
    eventually(lambda: len(times(daemon) - before) > 0, "a scan")
    first = times(daemon)
    eventually(lambda: len(times(daemon) - first) > 0, "a scan that began since")
    return daemon.get("/audit").json


def times(daemon: Daemon) -> set[str]:
    reply = daemon.get("/audit")
    return {reply.json["time"]} if reply.status == 200 else set()


if __name__ == "__main__":
    main()
