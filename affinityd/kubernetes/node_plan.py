"""The plan of a whole node, for a pod: from the node's daemon, else made here.

`affinityd init` writes the plan for a pod, with scripts that pin.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from shlex import quote

from affinityd import config
from affinityd.client import ask_daemon, local_plan
from affinityd.config import ON
from affinityd.errors import AffinityError, DaemonError, NoDaemonError, OutputError
from affinityd.json_codec import loads
from affinityd.linux.children import run
from affinityd.linux.files import EXECUTABLE, READABLE, write_whole
from affinityd.planner.modes import MODES
from affinityd.request.document import PlanDocument, document
from affinityd.request.environment import Pairs
from affinityd.request.formats import render

#: Conditions on a container's plan, which the plan of the whole node need not meet.
CONTAINER_CONDITIONS = {"strict", "min_physical_cores", config.CPUS}

#: Source → address of a daemon: a socket's path or a URL.
Addresses = Mapping[str, str]


@dataclass(frozen=True)
class NodePlan:
    """The plan of a whole node."""

    text: str  #: the document, in the format `json`
    document: PlanDocument
    source: str
    answered: Addresses = field(default_factory=dict)  #: the daemon's addresses, with numeric hosts

    @property
    def switch(self) -> str:
        """The node's AFFINITYD."""
        return config.read_switch_or_off(self.document.switch or "")


def node_query(chosen: Mapping[str, str]) -> Pairs:
    """Return the request for every GPU of the node; a mode that divides gives each GPU a block."""
    parameters = {"whose": "node"}
    mode = MODES.get(chosen.get("mode", "node").replace("-", "_"))
    if mode and mode.shares_node:
        parameters["share"] = "node"
    parameters |= {name: chosen[name] for name in chosen if name not in CONTAINER_CONDITIONS}
    return tuple(parameters.items())


def find(asked: Pairs, addresses: Addresses, deadline: float) -> NodePlan:
    """Return the plan of the first daemon that answers before `deadline`, of time.monotonic.

    After the deadline the plan is made from this node's own files, with the reason why no daemon
    made it. Raises DaemonError if the files show no GPU, and the errors of a daemon's refusals.
    """
    trouble = DaemonError("there was no time to ask a daemon")
    names = cycle(addresses)
    while (left := deadline - time.monotonic()) > 0:
        name = next(names)
        try:
            return _of_daemon(asked, name, addresses[name], deadline)
        except DaemonError as error:
            trouble = error
            time.sleep(min(0.2, left))
    try:
        node = local_plan.find_node(list(addresses.values()))
        reply = local_plan.plan_on_node(node.node, asked)
    except AffinityError:
        raise trouble from None
    return NodePlan(render(reply, "json"), document(reply), f"{node.source}: {trouble}")


def _of_daemon(asked: Pairs, name: str, address: str, deadline: float) -> NodePlan:
    """Ask for the whole node: the pod's other containers have other CPUs and GPUs."""
    address = numeric(address, deadline)
    text = ask_daemon.ask_plan(address, asked, deadline, "json")
    try:
        plan = loads(PlanDocument, text, "its plan")
    except ValueError as error:
        raise DaemonError(f"the server at {address} is not affinityd: {error}") from None
    return NodePlan(text, plan, f"the daemon at {address}", {name: address})


def numeric(address: str, deadline: float) -> str:
    """Return an address with a numeric host: http://NAME:PORT is looked up, a socket's path stays.

    A child looks the name up, as the resolver may take many seconds, and Python cannot cut it short
    at `deadline`, of time.monotonic. Raises DaemonError; NoDaemonError for an unknown name.
    """
    if not address.startswith(ask_daemon.HTTP):
        return address
    try:
        return run(lambda: _looked_up(address).encode(), deadline).decode()
    except TimeoutError:
        raise DaemonError(f"the daemon at {address} was not found in time") from None


def _looked_up(address: str) -> str:
    name, _, port = address.removeprefix(ask_daemon.HTTP).rpartition(":")
    try:
        answers = socket.getaddrinfo(name.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NoDaemonError(f"no daemon at {address}: {error}") from None
    host = str(answers[0][4][0])
    if ":" in host:  # of IPv6
        host = f"[{host}]"
    return f"{ask_daemon.HTTP}{host}:{port}"


def write_scripts(folder: Path) -> None:
    """Write the script `run`, and the file it sources. Raises OutputError."""
    scripts = files("affinityd.kubernetes") / "files"
    _write(folder / "run", (scripts / "run.sh").read_text(encoding="utf-8"), EXECUTABLE)
    _write(folder / "pinning.sh", (scripts / "pinning.sh").read_text(encoding="utf-8"))


def write_settings(folder: Path, settings: Mapping[str, str], switch: str = ON) -> None:
    """Write default values of variables for `run`, and the switch. Raises OutputError."""
    lines = ""
    for name, text in settings.items():
        lines += f'[ -n "${{{name}-}}" ] || {name}={quote(text)}\n'
    if switch != ON:
        lines += f"heed {switch}\n"
    _write(folder / "settings", lines)


def write_plan(folder: Path, plan: NodePlan) -> None:
    """Write a plan, and for `run` each GPU name's CPUs and locality. Raises OutputError."""
    for rank in plan.document.ranks:
        for name in (f"{rank.gpu.index}", *(rank.gpu.names or ())):
            if name.isprintable() and not name.startswith("."):
                path = folder / "gpu" / name.replace("/", "_")
                _write(path, f"{rank.cpulist} {rank.locality}\n")
    _write(folder / "plan.json", plan.text)


def _write(path: Path, text: str, mode: int = READABLE) -> None:
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(EXECUTABLE)
        write_whole(path, text.encode(), mode)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
