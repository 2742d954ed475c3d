"""Slurm's commands on this machine: the GPUs that slurmd reads, and the nodes of slurmctld.

`slurmd -G` merges gres.conf with Gres= of slurm.conf, or with the GPUs AutoDetect= finds, in the
order of Slurm's GPU numbers. It leaves out GPUs that do not fit Gres=. All its output is on stderr:
a line for each device, and errors: seen with Slurm 22.05, 24.11 and 26.05. From 24.11 on munged
must run. `slurmd -G` opens slurmd's log and rewrites hwloc's file in the spool folder; as root,
26.05 lifts the memory limit of its own cgroup.

Source: scontrol(1).
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

from affinityd.cpuset import format_list, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.linux.children import ChildError, run_program
from affinityd.slurm.cores import CoreNumbers
from affinityd.slurm.gres_conf import GresConf, TypeCounts, device_file, gres_of, read_gres
from affinityd.text import one_line, whole_number
from affinityd.topology.model import Gpu

#: Folders of slurm.conf: Slurm's own, an old one of Debian, and that of configless Slurm.
CONF_FOLDERS = ("/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf")
SBIN = ("/usr/sbin", "/usr/local/sbin", "/opt/slurm/sbin")  #: a user's PATH may lack these

_PAIR = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S+)")


class SlurmError(InvalidRequestError):
    """A Slurm command cannot be run, or fails."""


@dataclass(frozen=True)
class ShownNode:
    """A node, as `scontrol show node` describes it."""

    name: str
    state: str  #: such as IDLE+DRAIN
    gres: TypeCounts
    threads: int  #: threads of a core, at least 1
    restricts_cores: bool = False  #: RestrictedCoresPerGPU= reserves cores for jobs with GPUs

    @property
    def configured(self) -> TypeCounts | None:
        """The node's Gres= in slurm.conf; None: slurmctld shows only what the node registered."""
        if "INVALID_REG" in self.state:  # the node registered with fewer GPUs of a type
            return None
        return self.gres


class GresEntry(NamedTuple):
    """GPUs that slurmd knows: those of one line of gres.conf, or a detected GPU."""

    name: str  #: gpu, lower case only, as Slurm requires
    kind: str | None  #: Type=, case-sensitive; None: no type
    files: tuple[str, ...]  #: (): no file is named
    cores: CoreNumbers | None  #: None: no Cores=
    is_slice: bool  #: whether it is a MIG instance: one GPU may have several

    def __str__(self) -> str:
        """Return the entry as a line of gres.conf."""
        line = f"Name={self.name}"
        if self.kind:
            line += f" Type={self.kind}"
        line += f" File={','.join(self.files)}"
        if self.cores is not None:
            line += f" Cores={format_list(self.cores)}"
        return line


class SlurmdGres(NamedTuple):
    """The GPUs of one node, and slurmd's messages about them."""

    entries: tuple[GresEntry, ...]  #: in Slurm's order
    messages: tuple[str, ...] = ()  #: errors and warnings
    is_complete: bool = True  #: slurmd read gres.conf to its end


@dataclass(frozen=True)
class LocalSlurm:
    """The Slurm of this machine, by its slurm.conf."""

    conf: Path

    def nodes(self, names: str) -> list[ShownNode]:
        """Return the nodes of a hostlist, as slurmctld has them. Raises SlurmError."""
        lines = self.scontrol("--oneliner", "show", "node", names).splitlines()
        nodes = [_shown(line) for line in lines if "NodeName=" in line]
        if not nodes:
            raise SlurmError("scontrol shows no node; slurm.conf must name one with GPUs")
        return nodes

    def node_name(self, host: str) -> str:
        """Return a host's NodeName= in slurm.conf, by the host's name without its domain."""
        short = host.partition(".")[0]
        aliases = []
        with suppress(SlurmError):
            aliases = self.scontrol("show", "aliases", short).split()
        if aliases and short not in aliases:
            return aliases[0]
        return short

    def configured(self, hosts: str) -> TypeCounts:
        """Return the Gres= of the nodes of a hostlist, which must be equal.

        Raises SlurmError if no Gres= is known, and InvalidRequestError if the nodes differ.
        """
        known = [node for node in self.nodes(hosts) if node.configured is not None]
        if not known:
            raise SlurmError(
                "slurmctld refuses the node (INVALID_REG) and shows what the node registered"
            )
        first = known[0]
        for node in known:
            if node.gres != first.gres:
                raise InvalidRequestError(
                    f"{first.name} has {gres_of(first.gres)}, and {node.name} has "
                    f"{gres_of(node.gres)}; lines for both cannot be equal: name equal nodes"
                )
        return first.gres

    def slurmd_gres(self, node: str) -> SlurmdGres:
        """Return slurmd's GPUs of a node. Raises SlurmError if there is no slurmd."""
        # slurmd waits 20 s for a missing device file; NVML takes a few seconds to wake up GPUs.
        answer = self._run("slurmd", "-G", "-N", node, "-f", f"{self.conf}", seconds=40.0)
        return parse(answer.stderr.decode(errors="replace"), is_complete=answer.returncode == 0)

    def scontrol(self, *words: str) -> str:
        """Return the output of scontrol. Raises SlurmError with its last line."""
        answer = self._run("scontrol", *words, seconds=10.0)
        if answer.returncode:
            said = (answer.stderr or answer.stdout).decode(errors="replace").strip()
            why = one_line(said.split("\n")[-1]) or "no answer"
            command = " ".join(word for word in words if not word.startswith("-"))
            raise SlurmError(
                f"scontrol {command}: {why}; {self.conf} must name a slurmctld that runs, and "
                "--node-name a node that it knows"
            )
        return answer.stdout.decode(errors="replace")

    def _run(self, program: str, *words: str, seconds: float) -> CompletedProcess[bytes]:
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SBIN))
        file = shutil.which(program, path=path)
        if file is None:
            raise SlurmError(
                f"there is no {program} on this machine; it is part of Slurm: add its folder to "
                "PATH"
            )
        environ = dict(os.environ)
        if self.conf.exists():
            environ["SLURM_CONF"] = os.fspath(self.conf)
        try:
            return run_program((file, *words), seconds, environ)
        except TimeoutError:
            why = f"no answer within {seconds:g} s; is its slurmctld, or munged, hung?"
        except ChildError as error:
            why = str(error)
        raise SlurmError(f"{file}: {why}")


def find_slurm(named: str | None, *, is_live: bool) -> LocalSlurm | None:
    """Return this machine's Slurm; None if no slurm.conf is found.

    `named`: its slurm.conf; None: that of $SLURM_CONF, else the first of the usual paths, both only
    for this machine. Raises InvalidRequestError for a named file that does not exist.
    """
    path = named or None
    if path is None and is_live:
        path = os.environ.get("SLURM_CONF")
    if path is not None and not Path(path).is_file():
        raise InvalidRequestError(f"{path} is not a file; name a slurm.conf")
    if path:
        return LocalSlurm(Path(path))
    if is_live:
        for folder in CONF_FOLDERS:
            conf = Path(folder, "slurm.conf")
            if conf.is_file():
                return LocalSlurm(conf)
    return None


def _shown(line: str) -> ShownNode:
    values = dict(_PAIR.findall(line))
    gres = re.sub(r"\([^()]*\)", "", values.get("Gres", ""))  # also (null), or (S:0-1) for sockets
    return ShownNode(
        name=values["NodeName"],
        state=values.get("State", ""),
        gres=read_gres(gres),
        threads=whole_number(values.get("ThreadsPerCore"), 1024) or 1,
        restricts_cores="RestrictedCoresPerGPU" in values,
    )


def parse(text: str, *, is_complete: bool = True) -> SlurmdGres:
    """Parse the output of `slurmd -G`. `is_complete`: its exit status was 0."""
    entries = []
    messages = []
    for printed in text.splitlines():
        line = re.sub(r"(?:\[[^\]]*\]|slurmd\S*:)\s*", "", printed, count=1).strip()
        if line.lower().startswith("gres name=gpu "):
            entries.append(_entry(line))
        is_message = re.match(r"(error|fatal|warning): ", line, re.IGNORECASE)
        if is_message and line not in messages:
            messages.append(line)
    if is_complete:
        # Messages about GPUs, not about slurmd's log or cgroups.
        about_gpus = re.compile(r"gres|gpu|autodetect|functionality", re.IGNORECASE)
        messages = [line for line in messages if about_gpus.search(line)]
    elif not messages:
        # Slurm 22.05 gives no reason if slurm.conf does not have the node.
        messages = ["slurmd -G failed; --node-name names the node as slurm.conf has it"]
    return SlurmdGres(tuple(entries), tuple(messages), is_complete)


def _entry(line: str) -> GresEntry:
    values = {key: value for key, value in _PAIR.findall(line) if value != "(null)"}
    files: list[str] = []  # from `/dev/nvidia[0-3]`, or `/dev/nvidia0,/dev/nvidia-caps/cap[21-22]`
    for name, numbers in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?(?:,|$)", values.get("File", "")):
        if numbers:
            files += [f"{name}{number}" for number in sorted(_numbers(numbers))]
        else:
            files.append(name)
    cores = None
    if "Cores" in values:
        cores = _numbers(values["Cores"])
    return GresEntry(
        name=values["Name"],
        kind=values.get("Type"),
        files=tuple(files),
        cores=cores,
        is_slice=len(files) > 1 and values.get("Count") == "1",
    )


def _numbers(text: str) -> CoreNumbers:
    try:
        return parse_list(text)
    except ValueError:  # slurmd reports the error, too
        return frozenset()


def differences(conf: GresConf, slurmd: SlurmdGres) -> list[str]:
    """Return a unified diff from slurmd's lines to the printed lines; empty: they are equal.

    Each line of slurmd is for one device file. Device files are not compared if the printed lines
    lack some.
    """
    files = {}
    for gpu in conf.topology.gpus:
        file = device_file(gpu)
        if file:
            files[file] = gpu
    printed = [conf.line(gpu) for gpu in files.values()]
    slurms: list[str] = []
    for entry in slurmd.entries:
        for file in entry.files:
            line = str(entry._replace(files=(file,)))
            if file not in files:
                # A MIG instance may have other files than its GPU's, by MultipleFiles=.
                is_of_slice = entry.is_slice and "/dev/nvidia-caps/" in file
                if not conf.unknown and not is_of_slice:
                    slurms.append(line)
                continue
            if _fits(conf, files[file], entry):
                line = conf.line(files[file])
            if not (entry.is_slice and line in slurms):  # one GPU may have several instances
                slurms.append(line)
    if conf.has_several_types:  # then Slurm orders GPUs by type
        slurms.sort()
        printed.sort()
    diff = difflib.unified_diff(
        slurms, printed, "slurmd -G", "affinityd slurm gres-conf", lineterm="", n=len(printed)
    )
    return list(diff)


def _fits(conf: GresConf, gpu: Gpu, entry: GresEntry) -> bool:
    """Whether an entry fits a GPU's line; it may also have the cores of the GPU's package.

    If Gres= has no types, slurmd drops types of lines, and says so. For a GPU whose NUMA node is
    unknown, any cores fit.
    """
    if entry.name != "gpu":
        return False
    if any(conf.gres or conf.named) and not entry.is_slice:
        kind = conf.types.of.get(gpu.key, entry.kind)
        if entry.kind != kind:
            return False
    affinity = conf.affinities[gpu.key]
    return not affinity.near or entry.cores in {affinity.right, *affinity.near}
