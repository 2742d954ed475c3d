"""Planning without a daemon: by the node.json of a daemon, else by this machine's files.

NVML is called only for a MIG instance, which no file names: otherwise every rank would call it at
once. Modules that few ranks need are imported in functions, so other ranks do not wait.
"""

# ruff: noqa: PLC0415, PTH110, PTH118, PTH120 - importing pathlib is slow, too

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from affinityd import config
from affinityd.config import settings
from affinityd.discovery import discover, open_tree, snapshot_nvml
from affinityd.errors import REFUSAL_ERRORS, AffinityError, NoSuchGpuError
from affinityd.request import formats
from affinityd.request.environment import Pairs
from affinityd.request.parameters import Request, parse_query
from affinityd.request.process_plan import REPLAYED_MACHINE, ProcessPlan
from affinityd.request.resolve import Caller, Reply, answer, process_plan
from affinityd.request.task import names_unknown_mig
from affinityd.text import one_line
from affinityd.topology.model import Node

if TYPE_CHECKING:
    from pathlib import Path


class SourcedNode(NamedTuple):
    """A node, and the source from which it was read."""

    node: Node
    source: str  #: "node.json" or "sysfs"


def find_node(sockets: Sequence[str]) -> SourcedNode:
    """Return the node from a daemon's node.json beside its socket, else from this machine's files.

    Raises InvalidRequestError for wrong settings, TreeError if the machine cannot be read.
    """
    for path in sockets:
        published = os.path.join(os.path.dirname(path), config.NODE_FILE)
        try:
            return SourcedNode(published_node(published), config.NODE_FILE)
        except (OSError, ValueError):
            continue
    chosen = settings.load({}, names=("root", "machine", "node_name", "reserved_cpus"))
    if chosen.machine:
        from affinityd import machines

        topology = machines.load(chosen.machine)
    else:
        tree = open_tree(chosen.root, chosen.node_name)
        topology = discover(tree, None if tree.live else snapshot_nvml(tree))
    return SourcedNode(Node(topology, chosen.reserved_cpus, replayed=chosen.replays), "sysfs")


def published_node(published: str) -> Node:
    """Return the node from a daemon's node.json.

    Raises OSError; ValueError for no node, and for a replayed machine beside a default socket.
    """
    if not os.path.exists(published):  # the usual case, which needs no import
        raise FileNotFoundError("No such file or directory")
    from pathlib import Path

    from affinityd.topology.document import read_node

    path = Path(published)  # equal paths compare equal, however many slashes a setting has
    node = read_node(path)
    usual = (Path(socket).parent for socket in (config.SYSTEM_SOCKET, config.default_socket()))
    if node.replayed and path.parent in usual:
        raise ValueError(f"{published} is another machine's, which was replayed")
    return node


def answer_query(published: Path, pairs: Iterable[tuple[str, str]]) -> str:
    """Return the answer or refusal that the daemon with this node.json would give to a query."""
    try:
        request = parse_query(pairs)
        reply = answer(published_node(str(published)), request)
        return formats.render(reply, request.format or "json")
    except REFUSAL_ERRORS as error:
        return f"{error.title}: {error}\n"
    except (AffinityError, OSError, ValueError) as error:
        return f"{one_line(str(error))}\n"


def plan_process(query: Pairs, sockets: Sequence[str], trouble: str | None) -> ProcessPlan:
    """Return a process's plan. Raises AffinityError, whose message ends with `trouble`."""
    found = find_node(sockets)
    try:
        reply = plan_on_node(found.node, query)
    except AffinityError as error:
        problems = [str(error)]
        if trouble is not None:
            problems.append(trouble)
        if found.node.replayed:
            problems.append(REPLAYED_MACHINE)
        raise type(error)("; ".join(problems)) from None
    plan = process_plan(reply)
    plan.source, plan.trouble = found.source, trouble
    return plan


def plan_on_node(node: Node, query: Pairs, caller: Caller | None = None) -> Reply:
    """Return the answer of a daemon to a query, computed here. Raises AffinityError."""
    return plan_request(node, parse_query(query), caller)


def plan_request(node: Node, request: Request, caller: Caller | None = None) -> Reply:
    """Return the answer of a daemon to a request, computed here. Raises AffinityError."""
    if not node.replayed and names_unknown_mig(node.topology, request.task):
        node = _with_instances(node)
    return answer(node, request, caller)


def _with_instances(node: Node) -> Node:
    """Return this machine's node with NVML's MIG instances. Raises NoSuchGpuError without NVML."""
    from affinityd.discovery.machine import Machine

    machine = Machine(settings.load({}, names=("root", "machine", "node_name")))
    machine.query_drivers()
    if machine.report and machine.report.error:
        raise NoSuchGpuError(f"only NVML knows MIG instances: {machine.report.said}")
    return replace(node, topology=machine.read())
