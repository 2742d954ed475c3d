"""Planning without a daemon: by its node.json, else by this machine's files.

NVML is never called here: every rank would call it at once. Imports here delay the start of a
rank that finds no daemon: no re, json, dataclasses or pathlib, unless there is a file to read.
"""

# ruff: noqa: PTH113, PTH118, PTH120, PLC0415

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from affinityd.client import trust
from affinityd.config import file, settings
from affinityd.config.settings import Settings
from affinityd.discovery import discover, open_tree
from affinityd.discovery.recorded_nvml import snapshot_nvml
from affinityd.errors import REFUSALS, AffinityError, UntrustedError
from affinityd.request import formats
from affinityd.request.environment import first_answer
from affinityd.request.parameters import parse_request
from affinityd.request.reply import Reply
from affinityd.request.resolve import Caller, answer
from affinityd.text import one_line, quote
from affinityd.topology.model import Node, Topology

if TYPE_CHECKING:
    from affinityd.request.environment import Question


@dataclass(frozen=True)
class SourcedNode:
    """A node, and where it was read."""

    node: Node
    source: str  #: "node.json" or "sysfs"
    doubt: str | None = None  #: why the file beside a socket was not trusted
    replayed: str | None = None  #: that settings name another machine than this one


def find_node(sockets: Sequence[str]) -> SourcedNode:
    """Return the node in a daemon's node.json beside its socket, else by this machine's files.

    A replayed machine that was published beside the default socket is passed over.

    Raises InvalidRequestError for settings, TreeError for a machine, that cannot be read.
    """
    doubt = None
    for path in sockets:
        try:
            node = published_node(_beside(path))
        except UntrustedError as error:
            doubt = doubt or str(error)
            continue
        except (OSError, ValueError):
            continue
        return SourcedNode(node, file.NODE_FILE)
    chosen = settings.load({}, names=("root", "machine", "node_name", "reserved_cpus"))
    node = Node(_read(chosen), chosen.reserved_cpus, replayed=chosen.replays)
    return SourcedNode(node, "sysfs", doubt, _replayed(chosen))


def _beside(path: str) -> str:
    return os.path.join(os.path.dirname(path), file.NODE_FILE)


def published_node(published: str) -> Node:
    """Return the node in a daemon's node.json.

    Raises UntrustedError; OSError; ValueError if it is no node, or one that was replayed and
    published beside a default socket.
    """
    os.lstat(published)  # a missing file is no reason for distrust
    trust.check_path(published)
    from pathlib import Path

    from affinityd.topology import node_file

    path = Path(published)  # two of them are equal, however many slashes a setting has
    node = node_file.read(path)
    usual = (Path(it).parent for it in (file.SYSTEM_SOCKET, file.default_socket()))
    if node.replayed and path.parent in usual:
        raise ValueError(f"{published} is another machine's, which was replayed")
    return node


def answer_query(published: Path, pairs: Iterable[tuple[str, str]]) -> str:
    """Return a daemon's answer to the query of a plan, a refusal too, from its node.json."""
    from affinityd.request.query import parse_query

    try:
        requests = parse_query(pairs)
        node = published_node(str(published))
        reply = first_answer(requests, lambda request: answer(node, request))
        return formats.render(reply, requests[0].format or "json")
    except REFUSALS as error:
        return f"{error.title}: {error}\n"
    except (AffinityError, OSError, ValueError) as error:
        return f"{one_line(str(error))}\n"


def plan_on_node(node: Node, questions: Iterable[Question], caller: Caller | None = None) -> Reply:
    """Return the answer to the first question that is not refused. Raises AffinityError."""
    return first_answer(
        questions, lambda question: answer(node, parse_request(question.items()), caller)
    )


def _replayed(chosen: Settings) -> str | None:
    """Return the setting that names another machine; None: none does.

    A root that is a folder may be this machine's own, mounted elsewhere.
    """
    if chosen.machine:
        setting = f"{file.PREFIX}MACHINE is {quote(chosen.machine)}"
    elif os.path.isfile(chosen.root):
        setting = f"{file.PREFIX}ROOT is {quote(chosen.root)}"
    else:
        return None
    return f"{setting}: planned on a replayed machine, not on this one"


def _read(chosen: Settings) -> Topology:
    if chosen.machine:
        from affinityd import machines

        return machines.load(chosen.machine)
    tree = open_tree(chosen.root, chosen.node_name)
    return discover(tree, None if tree.live else snapshot_nvml(tree))
