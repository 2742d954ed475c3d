"""Planning without a daemon: on the node that it published, else on this machine's files.

NVML is never asked here: it would be asked by every rank at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from affinityd import conffile, machines, nodefile, settings, trust
from affinityd.answer import Reply
from affinityd.discovery import discover, open_tree
from affinityd.errors import UntrustedError, quote
from affinityd.plans import Caller
from affinityd.request import parse_request
from affinityd.service import Node, answer
from affinityd.settings import Settings
from affinityd.snapshot import snapshot_nvml
from affinityd.task import Question, first_answer
from affinityd.topology import Topology


@dataclass(frozen=True)
class Known:
    """A node, and who told of it."""

    node: Node
    source: str  #: "node.json" or "sysfs"
    doubt: str | None = None  #: why what lies beside a socket was not believed
    replayed: str | None = None  #: that settings name another machine than this one


def known_node(sockets: Sequence[str]) -> Known:
    """Return the node that a daemon published beside its socket, else as this machine's files say.

    What somebody replayed beside the default socket is no other's node.

    Raises InvalidRequestError for settings, TreeError for a machine, that cannot be read.
    """
    doubts = []
    for path in sockets:
        try:
            node = _published(Path(path).with_name(nodefile.NAME))
        except UntrustedError as error:
            doubts.append(str(error))
            continue
        except (OSError, ValueError):
            continue
        if not (node.replayed and path in (conffile.SYSTEM_SOCKET, conffile.default_socket())):
            return Known(node, nodefile.NAME)
    chosen = settings.load({}, names=("root", "machine", "node_name", "reserved_cpus"))
    node = Node(_read(chosen), chosen.reserved_cpus, replayed=chosen.replays)
    return Known(node, "sysfs", next(iter(doubts), None), _replayed(chosen))


def _published(path: Path) -> Node:
    """Read what a daemon published. Raises UntrustedError; OSError and ValueError for none."""
    path.lstat()  # what is not there is no doubt, whoever may write to its folder
    trust.check_path(str(path))
    return nodefile.read(path)


def plan_on(node: Node, questions: Iterable[Question], caller: Caller | None = None) -> Reply:
    """Return the answer to the first question that is not refused. Raises AffinityError."""
    return first_answer(
        questions, lambda question: answer(node, parse_request(question.items()), caller)
    )


def _replayed(chosen: Settings) -> str | None:
    """Return that a setting names another machine; None: none does.

    A root that is a folder may be this machine's own, mounted elsewhere.
    """
    if chosen.machine:
        setting = f"{conffile.PREFIX}MACHINE is {quote(chosen.machine)}"
    elif Path(chosen.root).is_file():
        setting = f"{conffile.PREFIX}ROOT is {quote(chosen.root)}"
    else:
        return None
    return f"{setting}: planned on a replayed machine, not on this one"


def _read(chosen: Settings) -> Topology:
    if chosen.machine:
        return machines.load(chosen.machine)
    tree = open_tree(chosen.root, chosen.node_name)
    return discover(tree, None if tree.live else snapshot_nvml(tree))
