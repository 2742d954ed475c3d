"""Which slurm.conf counts here, what it calls this node, and what slurmctld expects of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from affinityd.errors import InvalidRequestError
from affinityd.slurm.config.expected import Expected, Unknown
from affinityd.slurm.config.gres_files import SLURM_CONF, default
from affinityd.slurm.config.scontrol import show_node
from affinityd.slurm.config.slurm_conf import SlurmConf, read_slurm_conf

NAMED = "SLURMD_NODENAME"  #: what slurmd calls the node, in a job's environment
SETTING = "--node-name or AFFINITYD_NODE_NAME"


@dataclass(frozen=True)
class NodeName:
    """What a node is looked for by, and where that name is from."""

    name: str
    source: str

    def __str__(self) -> str:
        """Return `gpu07 (this host's name)`."""
        return f"{self.name} ({self.source})"


@dataclass(frozen=True)
class Site:
    """What Slurm is told on this machine."""

    is_live: bool  #: it is the machine that we run on: its slurmctld may be asked
    named: Path | None  #: the slurm.conf that --slurm-conf or SLURM_CONF names
    conf: SlurmConf | None  #: None: `why` says why there is none
    why: str = ""

    def node_name(self, host: str, environ: Mapping[str, str]) -> NodeName:
        """Return what the machine is called in slurm.conf. `host`: what affinityd calls it."""
        is_host = self.is_live and host == os.uname().nodename
        if is_host and environ.get(NAMED):
            return NodeName(environ[NAMED], NAMED)
        short = host.partition(".")[0]
        source = (
            "this host's name" if is_host else SETTING if self.is_live else "the machine's name"
        )
        if self.conf is None or self.conf.nodes([short]):
            return NodeName(short, source)
        for name in dict.fromkeys((short, host)):
            called = self.conf.called(name)
            if called is not None:
                return NodeName(called, f"NodeHostname={name} in slurm.conf")
        return NodeName(host if self.conf.nodes([host]) else short, source)

    def expected(self, names: Collection[str]) -> Expected | Unknown:
        """Return what slurmctld was configured with for nodes, which are to be equal.

        By slurm.conf, which slurmd and slurmctld both read; where it names none of them, slurmctld
        is asked about the first. Raises InvalidRequestError for nodes that differ.
        """
        found = self.conf.nodes(names) if self.conf else {}
        whole = list(found.items())
        for name, one in whole[1:]:
            first, other = whole[0]
            if one.counts != other.counts:
                raise InvalidRequestError(
                    f"{first} has {other}, and {name} has {one}: lines for both cannot be equal; "
                    "name nodes that are"
                )
        if whole:
            return whole[0][1]
        first = next(iter(names))
        why = self.why or f"slurm.conf has no node {first}"
        if not self.is_live:
            return Unknown(why)
        told = show_node(first)
        return told if isinstance(told, Expected) else Unknown(f"{why}; {told.why}")


def open_site(root: str | None, named: str | None, environ: Mapping[str, str]) -> Site:
    """Return what Slurm is told. `root`: where the files lie; None: the machine has no files.

    `named`: a slurm.conf; None: that of SLURM_CONF on a live machine, else the first of the usual
    places. Raises InvalidRequestError for a named one that cannot be read.
    """
    is_live = root is not None and os.path.realpath(root) == "/"
    path = named or (environ.get("SLURM_CONF") if is_live else None)
    if root is None and path is None:
        return Site(is_live, None, None, "a shipped machine has no slurm.conf")
    try:
        file = Path(path) if path else default(Path(root or "/"), SLURM_CONF)
        conf = read_slurm_conf(file)
    except InvalidRequestError as error:
        if named:
            raise
        return Site(is_live, Path(path) if path else None, None, str(error).partition(";")[0])
    return Site(is_live, Path(path) if path else None, conf)
