"""What slurmctld was configured with for nodes, and what they are called: scontrol(1)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from affinityd.errors import InvalidRequestError
from affinityd.slurm.config.commands import LocalSlurm
from affinityd.slurm.config.expected import ExpectedNode, UnknownNode, expected
from affinityd.slurm.config.slurm_conf import read_node_lines
from affinityd.text import one_line

SECONDS = 5.0  #: that slurmctld may take to answer
INVALID = "INVALID_REG"  #: of a state: scontrol shows what registered, not what was configured

_PAIR = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S+)", re.ASCII)


def node_name(slurm: LocalSlurm, host: str) -> str:
    """Return what slurm.conf calls a host: its NodeHostname= may differ, and has no domain."""
    named = os.environ.get("SLURMD_NODENAME")
    if named and host == os.uname().nodename:
        return named
    short = host.partition(".")[0]
    try:
        aliases = slurm.run("scontrol", "show", "aliases", short, seconds=SECONDS).out.split()
    except InvalidRequestError:
        return short
    return aliases[0] if aliases and short not in aliases else short


def expected_node(slurm: LocalSlurm, names: str) -> ExpectedNode | UnknownNode:
    """Return what slurmctld expects of nodes, a hostlist, which are to be equal.

    Gres= is slurm.conf's, and where that has no such node slurmctld's. Raises InvalidRequestError
    for nodes whose Gres= differ.
    """
    command = f"scontrol show node {names}"
    shown, why = _show_nodes(slurm, names)
    lines = read_node_lines(slurm.conf)
    nodes: dict[str, ExpectedNode] = {}
    for name, values in (shown or {names: {"state": INVALID}}).items():
        gres = lines.gres_of(name)
        if gres is not None:
            nodes[name] = expected(f"{slurm.conf}", {**values, "gres": gres})
        elif INVALID not in values.get("state", ""):
            nodes[name] = expected(command, values)
    if not nodes:
        return UnknownNode(f"{command}: {why or 'the node is INVALID_REG'}")
    (first, one), *others = nodes.items()
    for name, other in others:
        if other.counts != one.counts:
            raise InvalidRequestError(
                f"{first} has {one}, and {name} has {other}: lines for both cannot be equal; name "
                "nodes that are"
            )
    return one


def _show_nodes(slurm: LocalSlurm, names: str) -> tuple[Mapping[str, Mapping[str, str]], str]:
    """Return the values of each node, and why there are none."""
    try:
        told = slurm.run("scontrol", "--oneliner", "show", "node", names, seconds=SECONDS)
    except InvalidRequestError as error:
        return {}, str(error)
    found = [_values(line) for line in told.out.splitlines()]
    nodes = {values["nodename"]: values for values in found if "nodename" in values}
    said = one_line((told.err or told.out).strip().split("\n")[-1])
    return (nodes if told.succeeded else {}), said or "no answer"


def _values(line: str) -> Mapping[str, str]:
    return {key.lower(): value for key, value in _PAIR.findall(line)}
