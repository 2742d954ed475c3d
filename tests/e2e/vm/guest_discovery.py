"""Runs in the virtual machine: uses affinityd there, and reports what it saw."""

import json
from collections.abc import Sequence
from typing import Any

from tests.e2e.vm.inside import AFFINITYD, Document, bring, output, stage
from tests.e2e.vm.warm import serving
from tests.support.daemons import Daemon, eventually

EVERY = "mode=node"

#: What is asked before and after CPUs come and go: of GPU 0 and 1 (node 3), of GPU 4 (node 7).
HOTPLUG_QUERIES = ("gpus=0,1&mode=node", "gpus=4&mode=node")

#: How CPUs come and go, one moment after the other; then the CPUs of GPU 0 and 1, of GPU 4, and all
#: that are online.
MOMENTS: dict[str, tuple[Sequence[int], bool, list[str], list[str], str]] = {
    "one offline since boot": ([], True, ["12-15", "12-15"], ["28-30"], "0-30"),
    "all online": ([31], True, ["12-15", "12-15"], ["28-31"], "0-31"),
    "one taken offline": ([12], False, ["13-15", "13-15"], ["28-31"], "0-11,13-31"),
    "a node taken offline": ([13, 14, 15], False, ["0-3", "4-7"], ["28-31"], "0-11,16-31"),
    "all back online": ([*range(12, 16)], True, ["12-15", "12-15"], ["28-31"], "0-31"),
}


def main() -> Document:
    machine = dict(json.loads(output(*AFFINITYD, "topology", "--format", "json")))
    report: Document = {"machine": machine, "numactl": output("numactl", "-H")}
    stage("the daemon starts")
    daemon = serving()
    stage("CPUs come and go")
    report["hotplug"] = {name: moment(daemon, name) for name in MOMENTS}
    report["every"] = daemon.plan(EVERY)
    daemon.stop()
    return report


def moment(daemon: Daemon, name: str) -> dict[str, Any]:
    """Change the online CPUs; return the answers, and what node.json says."""
    cpus, online, *_ = MOMENTS[name]
    bring(*map(str, cpus), online=online)
    answers = [daemon.plan(query) for query in HOTPLUG_QUERIES]
    generation = daemon.get("/topology").json["generation"]
    eventually(lambda: daemon.node_file["generation"] == generation, "the reading is published")
    return {"answers": answers, "node file": daemon.node_file}
