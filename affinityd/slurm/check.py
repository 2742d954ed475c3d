"""Checks slurmd's GPUs against the node. Pure: entries and topology in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from affinityd.slurm.devices import device_file, naming
from affinityd.slurm.expected import ExpectedNode
from affinityd.slurm.gres_conf import GresConf, links_written
from affinityd.slurm.gres_counts import DRAINED, miscounts
from affinityd.slurm.slurmd import GresEntry, SlurmdGres
from affinityd.text import count, quote
from affinityd.topology.model import Gpu, Topology

NARROW = (
    "Cores= that are a part of a socket give jobs far cores, or drain the node: slurm.conf needs "
    "{settings}; or print lines with --scope socket"
)

#: Slurm numbers GPUs type by type: seen with Slurm 22.05, 24.11 and 26.05.
ALTERNATING = (
    "GPUs of one type are not side by side on the bus: Slurm's gpu numbers, which go type by type, "
    "cannot be CUDA's"
)

#: The files that MultipleFiles= names besides the GPU's own.
MIG_FILES = "/dev/nvidia-caps/"


@dataclass(frozen=True)
class GresFinding:
    """An error in Slurm's configuration."""

    text: str
    gpu: int | None = None  #: its index; None: it is about the node

    def __str__(self) -> str:
        """Return `gpu 3: …`; about the node, only the text."""
        return self.text if self.gpu is None else f"gpu {self.gpu}: {self.text}"


@dataclass(frozen=True)
class GresCheck:
    """slurmd's GPUs of a node, against its topology and slurmctld's configuration.

    `scope`: the domain of the right cores, of `SCOPES`.
    """

    gres: SlurmdGres
    topology: Topology
    scope: str = "node"
    expected: ExpectedNode | None = None  #: None: it is not known

    @cached_property
    def gpus(self) -> Mapping[str, Gpu]:
        """The GPU of each device file that is known."""
        return {file: gpu for gpu in self.topology.gpus if (file := device_file(gpu))}

    @cached_property
    def devices(self) -> list[tuple[str, GresEntry]]:
        """The device files that slurmd has, in the order of Slurm's numbers."""
        return [(file, entry) for entry in self.gres.entries for file in entry.files]

    @cached_property
    def right(self) -> GresConf:
        """The right lines."""
        return GresConf(self.topology, self.scope, self.expected, self.gres.types)

    @property
    def is_judged(self) -> bool:
        """Whether the device file of each GPU is known: else Slurm's cannot be matched."""
        return not self.right.unknown

    @property
    def has_sockets(self) -> bool:
        """Whether slurmctld's sockets are known."""
        return self.expected is not None and self.expected.cores_per_socket is not None

    def findings(self) -> list[GresFinding]:
        """Return all that is wrong: GPU by GPU, then about the node."""
        if not self.gres.is_complete:
            return []  # slurmd has no GPUs: its own messages have the reason
        counts = miscounts(self.expected, self.gres, self.right) if self.expected else ()
        sockets = self._sockets() if self.has_sockets else ()
        of_node = (*self.gres.warnings, *self._strangers(), *self._order(), *counts, *sockets)
        return [
            *(
                GresFinding(text, gpu.index)
                for gpu in self.topology.gpus
                for text in dict.fromkeys(self._gpu(gpu))
            ),
            *map(GresFinding, of_node),
        ]

    def notes(self) -> Iterator[str]:
        """Yield the checks that were not possible, and why."""
        yield from self.gres.notes
        if not self.has_sockets:
            yield from self._sockets()
        runs = self.right.types.runs(self.topology.gpus)
        if len(set(runs)) < len(runs):
            yield ALTERNATING
        if not self.is_judged:
            unknown = count(len(self.right.unknown), "GPU")
            yield f"the device files of {unknown} are not known: not judged"

    def _gpu(self, gpu: Gpu) -> Iterator[str]:
        """Yield the errors of a GPU."""
        file = device_file(gpu)
        entries = [entry for it, entry in self.devices if it == file]
        if file is not None and not entries:
            yield f"Slurm has no {file}; its line is {self.right.line(gpu)}"
        if len(entries) > 1 and not all(entry.is_slice for entry in entries):
            yield f"Slurm has {file} {len(entries)} times"
        for entry in entries:
            yield from self._type(gpu, entry)
            if fault := self.right.affinities[gpu.key].fault(entry.cores):
                yield fault
            links = self.right.links.get(gpu.key)
            if entry.links and links and entry.links != links:
                right = self.right.links_field(gpu) or "no Links="
                yield f"{links_written(entry.links)} is not what NVML counts; right is {right}"

    def _type(self, gpu: Gpu, entry: GresEntry) -> Iterator[str]:
        if entry.name != "gpu":
            yield f"Name={quote(entry.name)} is not gpu: {DRAINED}; write Name=gpu"
        if self.expected is None or not self.expected.types or entry.is_slice:
            return
        right = self.right.types.of.get(gpu.key)
        remedy = f"Type={right}" if right else f"the Type= of {' or '.join(self.expected.types)}"
        if entry.kind not in self.expected.types:
            yield f"Type={entry.kind} is not in {self.expected}: {DRAINED}; right is {remedy}"
        elif right not in {None, entry.kind}:
            yield f"Type={entry.kind}, and it is {quote(gpu.model or '?')}; right is {remedy}"

    def _sockets(self) -> Iterator[str]:
        cores = ((entry.cores or frozenset()) & self.right.cores.all for entry in self.gres.entries)
        settings = self.right.sockets.settings()
        if settings and not all(map(self.right.sockets.fit, cores)):
            yield NARROW.format(settings=settings)

    def _strangers(self) -> Iterator[str]:
        for file, entry in self.devices if self.is_judged else ():
            if file not in self.gpus and not (entry.is_slice and MIG_FILES in file):
                there = ", ".join(self.gpus) or "none"
                yield f"{file} is not a GPU of this node; there are {there}"

    def _order(self) -> Iterator[str]:
        """Yield the GPUs with another number in Slurm than among those of their type."""
        kinds = list(dict.fromkeys(entry.kind for _, entry in self.devices))
        entry_of = dict(self.devices)
        right = [file for file in self.gpus if file in entry_of]
        right.sort(key=lambda file: kinds.index(entry_of[file].kind))
        if len(self.devices) != len(right):  # one is there twice, or is none of the node's
            return
        for number, ((file, _), belongs) in enumerate(zip(self.devices, right, strict=True)):
            gpu = self.gpus[file]
            if file != belongs:
                numbers = f"gpu {number} to Slurm and {gpu.index} to {naming(gpu).runtime}"
                yield f"{file} is {numbers}; {belongs} belongs in its place"
