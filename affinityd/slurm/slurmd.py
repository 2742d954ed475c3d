"""slurmd's reading of gres.conf for a node: `slurmd -G`, as of Slurm 22.05, 24.11 and 26.05.

It merges gres.conf with Gres= of slurm.conf, or with the GPUs AutoDetect= finds, in the order of
Slurm's GPU numbers. It leaves out GPUs that do not fit Gres=. All its output is on stderr: a line
a device, and errors. From 24.11 on munged must run. It opens slurmd's log and rewrites
hwloc's file in the spool folder; 26.05 lifts the memory limit of its own cgroup, as root.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from affinityd.cpuset import parse_list
from affinityd.errors import InvalidRequestError
from affinityd.slurm.commands import NOT_STARTED, LocalSlurm
from affinityd.slurm.cores import CoreNumbers
from affinityd.text import quote

#: slurmd waits 20 s for a device file that is missing; NVML takes a few to wake GPUs up.
SECONDS = 40.0

_DEVICE = "Gres Name="
_PREFIX = re.compile(r"(?:\[[^\]]*\]|slurmd\S*:)\s*")
_LEVEL = re.compile(r"(error|fatal|warning): ", re.IGNORECASE)
_PAIR = re.compile(r"([A-Za-z]+)=(\S+)", re.ASCII)
_FILE = re.compile(r"([^,\[\]]+)(?:\[([^\]]*)\])?(?:,|$)")
_LINKS = re.compile(r"-?\d{1,4}(?:,-?\d{1,4}){0,1023}", re.ASCII)

#: Of 22.05, which gives no reason if slurm.conf does not have the node.
FAILED = "slurmd -G failed; --node-name names the node as slurm.conf has it"

#: Words of a message about GPUs, and not about slurmd's log or cgroups.
_ABOUT_GPUS = re.compile(r"gres|gpu|autodetect|functionality", re.IGNORECASE)


@dataclass(frozen=True)
class GresEntry:
    """GPUs that slurmd has: those of one line of gres.conf, or a detected one."""

    name: str  #: Slurm's is gpu, and no other case
    kind: str | None  #: Type=, of which case counts; None: there is none
    files: tuple[str, ...]  #: (): none is named
    cores: CoreNumbers | None  #: None: no Cores=
    links: tuple[int, ...] | None  #: None: no Links=
    is_slice: bool  #: a MIG instance: one GPU may have several


@dataclass(frozen=True)
class SlurmdGres:
    """The GPUs of one node, and slurmd's messages about them."""

    entries: tuple[GresEntry, ...]  #: in Slurm's order
    faults: tuple[str, ...] = ()  #: why slurmd does not start, or which value is no value
    warnings: tuple[str, ...] = ()  #: the lines it does not accept as written
    notes: tuple[str, ...] = ()
    is_complete: bool = True  #: slurmd read gres.conf to its end

    @cached_property
    def types(self) -> Mapping[str, str | None]:
        """The type of each device file, without those of MIG instances."""
        whole = [entry for entry in self.entries if not entry.is_slice]
        return {file: entry.kind for entry in whole for file in entry.files}


def ask(slurm: LocalSlurm, node: str) -> SlurmdGres:
    """Return slurmd's GPUs of a node. Raises InvalidRequestError if there is no slurmd."""
    told = slurm.run("slurmd", "-G", "-N", node, "-f", f"{slurm.conf}", seconds=SECONDS)
    if told.returncode == NOT_STARTED:
        raise InvalidRequestError(told.stderr)
    own, named = slurm.conf.with_name("gres.conf"), slurm.gres_conf
    text = told.stderr if named is None else told.stderr.replace(f"{own}", f"{named}")
    return parse(text, is_complete=told.returncode == 0)


def parse(text: str, *, is_complete: bool = True) -> SlurmdGres:
    """Read slurmd's output. `is_complete`: it ended with success."""
    lines = [_PREFIX.sub("", line, count=1).strip() for line in text.splitlines()]
    faults: list[str] = []
    entries = [
        _entry({key: value for key, value in values.items() if value != "(null)"}, faults)
        for line in lines
        if line.startswith(_DEVICE)
        and (values := dict(_PAIR.findall(line)))["Name"].lower() == "gpu"
    ]
    messages = [line for line in dict.fromkeys(lines) if line and not line.startswith(_DEVICE)]
    warnings = [line for line in messages if _LEVEL.match(line)]
    if not is_complete:
        faults += warnings or [FAILED]
    return SlurmdGres(
        tuple(entries),
        tuple(faults),
        warnings=tuple(filter(_ABOUT_GPUS.search, warnings)) if is_complete else (),
        notes=tuple(it for it in messages if it not in warnings and _ABOUT_GPUS.search(it)),
        is_complete=is_complete,
    )


def _entry(values: Mapping[str, str], faults: list[str]) -> GresEntry:
    """Return a device's entry; a value that is none is as if it were not there, and a fault."""
    cores, links = _numbers(values.get("Cores", "")), _LINKS.fullmatch(values.get("Links", ""))
    if "Cores" in values and cores is None:
        text = quote(values["Cores"])
        faults.append(f"Cores={text} is not a list of core numbers; write it like 0-3,8,10-11")
    files = _files(values.get("File", ""))
    return GresEntry(
        name=values["Name"],
        kind=values.get("Type"),
        files=files,
        cores=cores if "Cores" in values else None,
        links=tuple(map(int, links[0].split(","))) if links else None,
        is_slice=len(files) > 1 and values.get("Count") == "1",
    )


def _files(text: str) -> tuple[str, ...]:
    """Return the files of `/dev/nvidia[0-3]`, or of `/dev/nvidia0,/dev/nvidia-caps/cap[21-22]`."""
    found: list[str] = []
    for name, numbers in _FILE.findall(text):
        found += (f"{name}{it}" for it in sorted(_numbers(numbers) or ())) if numbers else (name,)
    return tuple(found)


def _numbers(text: str) -> CoreNumbers | None:
    try:
        return parse_list(text)
    except ValueError:
        return None
