"""Slurm's commands on this machine, which read its slurm.conf and gres.conf.

Source: scontrol(1).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

from affinityd.errors import InvalidRequestError
from affinityd.slurm.expected import (
    ExpectedNode,
    expected,
    gres_of,
    node_lines,
    slurmd_parameters,
)
from affinityd.text import one_line

#: Folders of slurm.conf: Slurm's own, Debian's old one, that of configless Slurm.
FOLDERS = ("/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf")

#: Folders that a user's PATH may lack.
SBIN = ("/usr/sbin", "/usr/local/sbin", "/opt/slurm/sbin")

SECONDS = 5.0  #: that slurmctld may take to answer
NOT_STARTED = 127  #: the status of a program that was not
INVALID = "INVALID_REG"  #: of a state: scontrol shows what registered, not what was configured

_PAIR = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S+)", re.ASCII)


@dataclass(frozen=True)
class LocalSlurm:
    """The Slurm of this machine, by its slurm.conf."""

    conf: Path
    gres_conf: Path | None = None  #: the file that stands for its own beside `conf`

    def run(self, program: str, *arguments: str, seconds: float) -> CompletedProcess[str]:
        """Run one of Slurm's programs; its status is NOT_STARTED where it cannot be started."""
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SBIN))
        found = shutil.which(program, path=path)
        if found is None:
            fault = f"there is no {program} on this machine; it is part of Slurm"
            return CompletedProcess(arguments, NOT_STARTED, stdout="", stderr=fault)
        try:
            return subprocess.run(  # noqa: S603 - one of Slurm's programs; no argument is a shell's
                (found, *arguments),
                check=False,
                capture_output=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=seconds,
                env={**os.environ, "SLURM_CONF": os.fspath(self.conf)},
            )
        except subprocess.TimeoutExpired as error:  # whose texts are bytes all the same
            so_far = (error.stderr or b"").decode(errors="replace")
            fault = f"{so_far}\nfatal: no answer within {seconds:g} s"
            return CompletedProcess(arguments, 1, stdout="", stderr=fault)
        except OSError as error:
            fault = f"{found} cannot be run: {error.strerror}"
            return CompletedProcess(arguments, NOT_STARTED, stdout="", stderr=fault)

    @contextmanager
    def with_gres_conf(self, file: Path | None) -> Iterator[LocalSlurm]:
        """Give the same Slurm with another gres.conf; None: its own. Raises InvalidRequestError."""
        if file is None:
            yield self
            return
        if not file.is_file():
            raise InvalidRequestError(f"{file} is not a file; name a gres.conf")
        with TemporaryDirectory(prefix="affinityd-") as name:
            folder = Path(name)
            for beside in self.conf.absolute().parent.iterdir():
                (folder / beside.name).symlink_to(beside)
            (folder / "gres.conf").unlink(missing_ok=True)
            (folder / "gres.conf").symlink_to(file.absolute())
            yield LocalSlurm(folder / self.conf.name, file)


def find_slurm(named: str | None, *, is_live: bool) -> LocalSlurm | None:
    """Return this machine's Slurm; None where no slurm.conf is found.

    `named`: its slurm.conf; None: that of $SLURM_CONF, else the first of the usual places, both
    only for this machine. Raises InvalidRequestError for a named file that does not exist.
    """
    path = named or (os.environ.get("SLURM_CONF") if is_live else None)
    if path is not None and not Path(path).is_file():
        raise InvalidRequestError(f"{path} is not a file; name a slurm.conf")
    usual = [f"{folder}/slurm.conf" for folder in FOLDERS] if is_live else []
    found = path or next(filter(os.path.isfile, usual), None)
    return LocalSlurm(Path(found)) if found else None


def node_name(slurm: LocalSlurm, host: str) -> str:
    """Return a host's name in slurm.conf: its NodeHostname= may differ, and has no domain."""
    short = host.partition(".")[0]
    aliases = slurm.run("scontrol", "show", "aliases", short, seconds=SECONDS).stdout.split()
    return aliases[0] if aliases and short not in aliases else short


def expected_node(slurm: LocalSlurm, names: str) -> tuple[ExpectedNode | None, str]:
    """Return slurmctld's configuration of nodes, a hostlist, or None and why it is unknown.

    The nodes must be equal: raises InvalidRequestError if their Gres= differ. Gres= is
    slurm.conf's, and where that has no such node slurmctld's.
    """
    command = f"scontrol show node {names}"
    shown, why = _show_nodes(slurm, names)
    lines = node_lines(slurm.conf)
    nodes: dict[str, ExpectedNode] = {}
    parameters = slurmd_parameters(slurm.conf)
    for name, told in (shown or {names: {"state": INVALID}}).items():
        values = {"slurmdparameters": parameters, **told}
        gres = gres_of(name, lines)
        if gres is not None:
            nodes[name] = expected(f"{slurm.conf}", {**values, "gres": gres})
        elif INVALID not in values.get("state", ""):
            nodes[name] = expected(command, values)
    if not nodes:
        return None, f"{command}: {f'the node is {INVALID}' if shown else why}"
    (first, one), *others = nodes.items()
    for name, other in others:
        if other.counts != one.counts:
            raise InvalidRequestError(
                f"{first} has {one}, and {name} has {other}: lines for both cannot be equal; name "
                "nodes that are"
            )
    return one, ""


def _show_nodes(slurm: LocalSlurm, names: str) -> tuple[Mapping[str, Mapping[str, str]], str]:
    """Return the values of each node, and why there are none."""
    told = slurm.run("scontrol", "--oneliner", "show", "node", names, seconds=SECONDS)
    why = one_line((told.stderr or told.stdout).strip().split("\n")[-1]) or "no answer"
    found = [
        {key.lower(): value for key, value in _PAIR.findall(line)}
        for line in ([] if told.returncode else told.stdout.splitlines())
    ]
    return {values["nodename"]: values for values in found if "nodename" in values}, why
