"""`affinityd audit`: the processes of each GPU, and whether they may run near it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from shutil import get_terminal_size

from affinityd.audit.auditor import Auditor
from affinityd.audit.demo import Demo
from affinityd.audit.document import document
from affinityd.audit.findings import LOST, ORPHAN, WAITING, findings
from affinityd.audit.gather import owner_of
from affinityd.audit.memory import SECONDS
from affinityd.audit.model import Scan
from affinityd.audit.sources import HolderSources
from affinityd.audit.sources.nics import far_nics, nic_use
from affinityd.cli.console import TROUBLE, give_up_stdout
from affinityd.cli.parser import Parser, add_format, add_settings, duration, load_settings
from affinityd.cli.render import audit
from affinityd.cli.target import this_machine
from affinityd.config.settings import Settings
from affinityd.cpuset import CpuSet
from affinityd.discovery.nvml import ProcessReport
from affinityd.discovery.nvml.query import query_processes
from affinityd.errors import InvalidRequestError, NoSuchGpuError
from affinityd.json_codec import dumps
from affinityd.kubernetes.pods import KubeletPods
from affinityd.machines import BUSY, load
from affinityd.text import one_line
from affinityd.topology.model import Topology
from affinityd.topology.nearness import LOCAL, MASK, MIXED, REMOTE, UNPINNED
from affinityd.topology.rdma import usable_ports

#: Colors of the first line on a terminal, by the worst state: red, amber, green; others are bold.
STATE_COLORS = dict.fromkeys((LOST, REMOTE, MIXED, ORPHAN), "31")
STATE_COLORS |= {WAITING: "33", UNPINNED: "33", LOCAL: "32"}
WATCH_SECONDS = 2.0  #: seconds between two scans
MEMORY_SECONDS = 5.0  #: time limit for sampling memory; the memory of the rest is unknown
CONFIRM = 0.3  #: seconds until a process that the driver lists, but /proc lacks, is looked up again


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.epilog = (
        "exit status: 0: nothing to do; 1: a process is remote, far by its mask, or an orphan; "
        "2: the processes or the place of a GPU are not known"
    )
    parser.add_argument(
        "--watch",
        metavar="TIME",
        type=duration,
        nargs="?",
        const=WATCH_SECONDS,
        help=f"scan repeatedly, for example every 10s or 2m (default: every {WATCH_SECONDS:g}s)",
    )
    add_format(parser, "table", "a JSON document, one line for each scan")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="also a line on the memory of each holder of a GPU, even if all of it is near",
    )
    add_settings(parser, ["pod_resources", "machine"])


def run(arguments: argparse.Namespace) -> int:
    """Print GPUs' processes. Return 1: one is far or an orphan; 2: some are unknown; 0: neither."""
    chosen = load_settings(arguments)
    auditor: Auditor | Demo
    if chosen.machine == BUSY:
        topology = load(BUSY)
        auditor = Demo(BUSY)
    elif arguments.machine is not None:
        raise InvalidRequestError(
            f"{load(arguments.machine).name} is a replayed machine, which has no processes; "
            f"{BUSY} has recorded ones"
        )
    else:
        node = this_machine(f"has no processes ({BUSY} has recorded ones)")
        topology = node.topology
        if not topology.gpus:
            raise NoSuchGpuError(
                f"this node has no GPU; affinityd audit --machine {BUSY} shows an example"
            )
        auditor = auditor_by(chosen, query_processes, node.reserved, MEMORY_SECONDS)
    scan = auditor.scan(topology)
    if auditor.has_unconfirmed:
        time.sleep(CONFIRM)
        scan = auditor.scan(topology)
    try:
        _print(arguments, topology, scan)
        while arguments.watch is not None:
            time.sleep(arguments.watch)
            scan = auditor.scan(topology)
            _print(arguments, topology, scan, is_second=True)
    except BrokenPipeError:  # the reader has ended; the exit code still counts
        give_up_stdout()
    for process in scan.processes:
        is_far = process.placement == REMOTE or process.cause == MASK
        if not process.is_daemon and (is_far or process.orphan is not None):
            return 1
    is_known = all(cpus and key not in scan.unknown for key, cpus in scan.near.items())
    return 0 if is_known else TROUBLE


def _print(
    arguments: argparse.Namespace, topology: Topology, scan: Scan, *, is_second: bool = False
) -> None:
    nics: Mapping[int, Sequence[str]] = {}
    owners: Mapping[int, str] = {}
    if scan.demo is None:  # the demo's pids belong to no process here
        nics = _far_nics(topology, scan)
        owners = _mask_owners(scan)
    if arguments.format == "json":
        whole = vars(document(topology, scan, names_all=True))
        processes = [
            {**vars(process), "far_nics": nics.get(process.pid, ())}
            for process in whole["processes"]
        ]
        for process in processes:
            process["cpus_set_by"] = owners.get(process["pid"])
        for process in processes if arguments.memory else ():
            memory = scan.memory.get(process["pid"])
            process["memory"] = memory.resident.by_node if memory else None
        print(dumps({**whole, "processes": processes}), flush=True)
        return
    names = {process.facts.pid: audit.process_name(process.facts) for process in scan.processes}
    said = [(pid, f"CPUs set by {owner}") for pid, owner in owners.items()]
    for pid, texts in nics.items():
        said += [(pid, text) for text in texts]
    found = list(findings(topology, scan))
    is_terminal = sys.stdout.isatty()
    width = get_terminal_size().columns if is_terminal else audit.PIPE_WIDTH
    table = audit.table(topology, scan, all_memory=arguments.memory, width=width)
    state = one_line("; ".join(finding.text for finding in found))
    if scan.demo is not None:
        state = f"demo: {scan.demo}, with made-up processes: {state}"
    lines = [*map(one_line, (*table, *audit.once(said, names)))]
    takes_colors = os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")
    if is_terminal and takes_colors:
        state = f"\x1b[{STATE_COLORS.get(found[0].state, '1')}m{state}\x1b[0m"
        lines = [*map(audit.colored, lines)]
    print("\n".join(["", state, *lines] if is_second else [state, *lines]), flush=True)


def _far_nics(topology: Topology, scan: Scan) -> Mapping[int, Sequence[str]]:
    """Return pid → sentences about RDMA devices far from its GPUs, for processes that hold GPUs."""
    if not usable_ports(topology.nics):  # without a usable port, no process's files are read
        return {}
    gpus = {gpu.key: gpu for gpu in topology.gpus}
    sentences = {}
    for process in scan.processes:
        facts = process.facts
        if facts.holding and not process.is_daemon:
            its_gpus = [gpus[key] for key in facts.gpus]
            sentences[facts.pid] = list(far_nics(topology, its_gpus, nic_use(facts.pid)))
    return sentences


def _mask_owners(scan: Scan) -> Mapping[int, str]:
    """Return pid → what set its mask, for holders that are far or whose threads were moved."""
    owners = {}
    for process in scan.processes:
        if not process.facts.holding or not process.facts.threads:
            continue
        if process.is_mismatch or any(placed.pinned_itself for placed in process.threads):
            owner = owner_of(process.facts)
            if owner is not None:
                owners[process.facts.pid] = owner
    return owners


def auditor_by(
    chosen: Settings,
    query: Callable[[float], ProcessReport],
    reserved: CpuSet,
    memory_seconds: float = SECONDS,
) -> Auditor:
    """Return the auditor. `query` asks NVML for processes; `reserved`: CPUs that no plan uses."""
    names_pods = chosen.pod_resources or chosen.nri
    return Auditor(
        HolderSources(query).held,
        reserved=reserved,
        name_pods=KubeletPods(chosen.pod_resources).name if names_pods else None,
        memory_seconds=memory_seconds,
    )
