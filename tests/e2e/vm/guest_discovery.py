"""Runs in the virtual machine: uses affinityd there, and prints what it saw as one JSON document.

It judges nothing: what should have been seen is said in test_discovery.py.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.vm.inside import (
    AFFINITYD,
    PCI_FOLDER,
    SOCKET,
    bring,
    output,
    stage,
)
from tests.e2e.vm.troubles import clock, storm
from tests.e2e.vm.warm import serving
from tests.support.daemons import Daemon, eventually

SNAPSHOT = Path("/tmp/node.tar.xz")  # noqa: S108 - nobody else is here

#: What the daemon is asked: mode by mode, on CPUs that are all online.
QUERIES = (
    *("mode=node", "gpus=0,1", "gpus=0&mode=all&scope=socket"),
    *("gpus=0,1&scope=socket&share=requested", "gpus=all&mode=even"),
    *("gpus=0,1,2&mode=core_complex", "gpus=0&cpuset=16-19"),
)

#: What is asked before and after CPUs come and go: of GPU 0 and 1 (node 3), of GPU 4 (node 7).
HOTPLUG_QUERIES = ("gpus=0,1&mode=node", "gpus=4&mode=node")

#: Plans that are made here, and again from the snapshot.
REPLAYED = (("--mode", "node"), ("--gpus", "0,1"), ("--gpus", "all", "--mode", "even"))


def main() -> None:
    """See everything, in the order in which the machine is changed."""
    report: dict[str, Any] = {"as booted": look()}
    stage("the daemon starts")
    daemon = serving()
    stage("CPUs come and go")
    report["hotplug"] = hotplug(daemon)
    stage("plans")
    report["plans"] = {query: ask(daemon, query) for query in QUERIES}
    report["socket"] = [oct(path.stat().st_mode & 0o777) for path in (SOCKET, SOCKET.parent)]
    report["whole"] = look()
    stage("a storm")
    report["storm"] = storm(daemon)
    stage("the clock jumps")
    report["clock"] = clock(daemon)
    stage("a snapshot")
    report["snapshot"] = snapshot()
    stage("signals")
    report["signals"] = signals(daemon)
    stage("done")
    json.dump(report, sys.stdout)


def look() -> dict[str, Any]:
    """Return what affinityd, lscpu, numactl and hwloc say of the machine."""
    return {
        "affinityd": topology(),
        "lscpu": output("lscpu", "-p=CPU,CORE,SOCKET,NODE"),
        "numactl": output("numactl", "-H"),
        "lstopo": {
            kind: output("lstopo", "--only", kind, "--cpuset")
            for kind in ("core", "package", "numanode", "l3")
        },
    }


def hotplug(daemon: Daemon) -> dict[str, Any]:
    """Return the answers, and what node.json says, after each change of the online CPUs."""
    seen = {"one offline since boot": moment(daemon)}
    bring("31", online=True)
    seen["all online"] = moment(daemon)
    seen["all online, remembered"] = moment(daemon)
    bring("12", online=False)
    seen["one taken offline"] = moment(daemon)
    bring("13", "14", "15", online=False)
    seen["a node taken offline"] = moment(daemon)
    bring("12", "13", "14", "15", online=True)
    seen["all back online"] = moment(daemon)
    return seen


def moment(daemon: Daemon) -> dict[str, Any]:
    answers = {query: ask(daemon, query) for query in HOTPLUG_QUERIES}
    generation = daemon.get("/topology").json["generation"]
    eventually(lambda: daemon.node_file["generation"] == generation, "the reading is published")
    return {"answers": answers, "node file": daemon.node_file}


def snapshot() -> dict[str, Any]:
    """Return a snapshot, and what it is compared with when it is replayed elsewhere."""
    output(*AFFINITYD, "snapshot", "-o", os.fspath(SNAPSHOT))
    return {
        "archive": base64.b64encode(SNAPSHOT.read_bytes()).decode(),
        "topology": topology(),
        "plans": [[arguments, plan(arguments)] for arguments in REPLAYED],
        "addresses": [
            path.read_text().strip() for path in sorted(PCI_FOLDER.glob("*/net/*/address"))
        ],
    }


def signals(daemon: Daemon) -> dict[str, Any]:
    """Change two GPUs, and return what is answered before and after SIGHUP, and SIGTERM.

    The last is taken out of the machine; of the one before it, the kernel no longer knows the node.
    """
    *_, homeless, last = (PCI_FOLDER / gpu["pci_bus_id"] for gpu in topology()["gpus"])
    (last / "remove").write_text("1")
    (homeless / "numa_node").write_text("-1")
    seen: dict[str, Any] = {"before": ask(daemon, "mode=node")}
    generation = daemon.node_file["generation"]
    daemon.signal(signal.SIGHUP)
    eventually(lambda: daemon.node_file["generation"] != generation, "the machine is read anew")
    seen["after SIGHUP"] = ask(daemon, "mode=node")
    seen["status"] = daemon.stop()
    seen["left"] = sorted(path.name for path in SOCKET.parent.iterdir())
    return seen


def ask(daemon: Daemon, query: str) -> dict[str, Any]:
    reply = daemon.get(f"/plan?{query}")
    return {"status": reply.status, "text": reply.text}


def topology() -> dict[str, Any]:
    return dict(json.loads(output(*AFFINITYD, "topology", "--format", "json")))


def plan(arguments: Sequence[str]) -> dict[str, Any]:
    return dict(json.loads(output(*AFFINITYD, "plan", *arguments, "--format", "json")))
