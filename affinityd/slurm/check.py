"""Does a gres.conf fit its node? Pure: lines and topology in, what is wrong out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from affinityd.slurm import gres_writer
from affinityd.slurm.agreement import Agreement
from affinityd.slurm.config.expected import Expected, are_whole_sockets
from affinityd.slurm.config.gpu_types import Types, types
from affinityd.slurm.config.node_config import Configured, GpuLine
from affinityd.slurm.machine.core_affinity import Affinity, Cores, affinities
from affinityd.slurm.machine.core_mismatch import misplaced
from affinityd.slurm.machine.device_files import NAMINGS, device_file, runtime
from affinityd.slurm.machine.nvlinks import ITSELF, Links, links, written
from affinityd.text import quote
from affinityd.topology.model import Gpu, Topology

#: What AutoDetect= means for this check.
DETECTED = "Slurm finds GPUs, cores and links itself; no line is to be checked, but jobs are"
DETECTED_WITH_LINES = (
    "Slurm finds GPUs, cores and links itself, and ignores a GPU whose line says otherwise"
)

#: Source: src/interfaces/gres.c (_check_core_range_matches_sock).
NARROW = (
    "Cores= of less than a package need SlurmdParameters=numa_node_as_socket in slurm.conf: else "
    "Slurm takes the whole package's cores, and drains the node from 24.11 on"
)

#: Slurm numbers GPUs type by type: seen with Slurm 22.05, 24.11 and 26.05.
ALTERNATING = (
    "GPUs of one type are not side by side on the bus: Slurm's gpu numbers, which go type by type, "
    "cannot be CUDA's"
)

#: What MultipleFiles= names besides the GPU's own file.
MIG_FILES = "/dev/nvidia-caps/"


@dataclass(frozen=True)
class Finding:
    """Something that is wrong."""

    place: str | None  #: file:line; None: it is of no line
    text: str


@dataclass(frozen=True)
class Device:
    """A device file of a line."""

    line: GpuLine
    file: str


@dataclass(frozen=True)
class Check:
    """One node's lines against its topology, and what slurmctld was configured with.

    `scope`: whose cores are right, of `SCOPES`.
    """

    configured: Configured
    topology: Topology
    scope: str = "node"
    expected: Expected | None = None  #: None: it is not known

    @cached_property
    def gpus(self) -> Mapping[str, Gpu]:
        """The GPU of each device file that is known."""
        return {file: gpu for gpu in self.topology.gpus if (file := device_file(gpu))}

    @cached_property
    def devices(self) -> list[Device]:
        """What the lines name, in Slurm's order: type by type, as Gres= has them."""
        lines = sorted(self.configured.gpus, key=lambda line: self._rank(line.kind))
        return [Device(line, file) for line in lines for file in line.files]

    def _rank(self, kind: str | None) -> int:
        """Return the place of a type in Gres=; one that is not there comes last."""
        kinds = self.expected.types if self.expected else ()
        return kinds.index(kind) if kind in kinds else len(kinds)

    @cached_property
    def types(self) -> Types:
        """What the `Type=` of each GPU should be."""
        return types(self.topology.gpus, self.expected, self.configured.types)

    @cached_property
    def agreement(self) -> Agreement:
        """The lines beside what slurmctld was configured with."""
        return Agreement(self.configured, self.expected, self.topology, self.gpus, self.types)

    @cached_property
    def cores(self) -> Cores:
        """The node's cores."""
        return Cores(self.topology)

    @cached_property
    def affinities(self) -> Mapping[tuple[str, int], Affinity]:
        """What the `Cores=` of each GPU should be."""
        return affinities(self.cores, self.scope)

    @cached_property
    def links(self) -> Links:
        """What the `Links=` of each GPU should be."""
        return links(self.topology)

    @cached_property
    def unjudged(self) -> list[str]:
        """The device files that may be of a GPU, but the machine does not tell of which."""
        prefixes = tuple(
            NAMINGS[gpu.vendor].prefix if gpu.vendor in NAMINGS else "/dev/"
            for gpu in self.topology.gpus
            if device_file(gpu) is None
        )
        return [
            device.file
            for device in self.devices
            if device.file not in self.gpus and device.file.startswith(prefixes)
        ]

    def findings(self) -> list[Finding]:
        """Return all that is wrong, line by line, then what is of no line."""
        lines = self.configured.gpus
        firsts = accumulate((len(line.files) for line in lines), initial=0)
        found = [
            *(
                (line, text)
                for line, at in zip(lines, firsts, strict=False)
                for text in self._line(line, at)
            ),
            *self.agreement.of_lines(),
            *self._strangers(),
            *self._repeated(),
            *self._cores(),
            *self._order(),
        ]
        order = {line.place: number for number, line in enumerate(lines)}
        found.sort(key=lambda pair: order[pair[0].place])
        of_lines = [Finding(line.place, text) for line, text in found]
        place = self.expected.place if self.expected else None
        return [
            *of_lines,
            *(Finding(place, text) for text in self.agreement.of_node()),
            *(Finding(None, text) for text in self._missing()),
        ]

    def notes(self, node: str) -> Iterator[str]:
        """Yield what could not be judged, and why. `node`: its name in the lines."""
        if self.configured.others and not self.configured.gpus:
            others = quote(", ".join(dict.fromkeys(self.configured.others)))
            yield f"the lines of GPUs are for {others}, not for {node}; --node-name names another"
        if self.configured.detector:
            lines = DETECTED_WITH_LINES if self.configured.gpus else DETECTED
            yield f"AutoDetect={self.configured.detector}: {lines}"
        if any(map(self._is_narrow, self.configured.gpus)):
            yield NARROW
        runs = self.types.runs(self.topology.gpus)
        if len(set(runs)) < len(runs) and not self.configured.detector:
            yield ALTERNATING
        if self.unjudged:
            files = ", ".join(self.unjudged)
            yield f"the machine does not tell which GPU is {files}: not judged"

    def _is_narrow(self, line: GpuLine) -> bool:
        """Whether a line has some cores of a socket, and not all."""
        cores = (line.cores or frozenset()) & self.cores.all
        return not are_whole_sockets(cores, self.cores, self.expected)

    def _line(self, line: GpuLine, number: int) -> Iterator[str]:
        """Yield what is wrong about a line, whatever the GPUs are. `number`: that of its first."""
        devices = 1 if line.is_slice else len(line.files)
        if not line.files and not self.configured.detector:
            yield "the line has no File=, which every GPU needs"
        elif line.files and line.count not in {None, str(devices)}:
            yield f"Count={quote(line.count)} is not {devices}, as the files are; leave it out"
        if line.links is not None and not line.is_slice:
            yield from self._links(line, line.links, number)

    def _links(self, line: GpuLine, said: tuple[int, ...], number: int) -> Iterator[str]:
        gpu = self.gpus.get("".join(line.files))
        if len(line.files) > 1:
            files = len(line.files)
            yield f"{written(said)} is for one GPU, and File= names {files}; write a line each"
        elif gpu and self.links.counts:
            fault = self.links.misstated(gpu, said)
            if fault:
                yield f"gpu {gpu.index}: {fault}"
        else:
            yield from self._impossible_links(said, number)

    def _impossible_links(self, said: tuple[int, ...], number: int) -> Iterator[str]:
        """Yield what is wrong about `Links=`, however many links there are."""
        text = written(said)
        gpus = len(self.topology.gpus)
        itself = [place for place, count in enumerate(said) if count == ITSELF]
        if len(said) != gpus:
            yield f"{text} has {len(said)} numbers; one for each of {gpus} GPUs is right"
        elif not self.configured.detector and itself != [number]:
            yield f"{text} is not -1 at the GPU itself, which is gpu {number}, and only there"

    def _strangers(self) -> Iterator[tuple[GpuLine, str]]:
        known = ", ".join(self.gpus) or "none that are known"
        of_gpus = {*self.gpus, *self.unjudged}
        for device in self.devices:
            is_of_slice = device.line.is_slice and MIG_FILES in device.file
            if device.file not in of_gpus and not is_of_slice:
                yield device.line, f"{device.file} is no GPU of this node; there are {known}"

    def _repeated(self) -> Iterator[tuple[GpuLine, str]]:
        first: dict[str, str] = {}
        for device in self.devices:
            if device.file in first and not device.line.is_slice:
                yield device.line, f"{device.file} is named already, in {first[device.file]}"
            first.setdefault(device.file, device.line.place)

    def _cores(self) -> Iterator[tuple[GpuLine, str]]:
        for device in self.devices:
            gpu = self.gpus.get(device.file)
            fault = gpu and misplaced(self.cores, gpu, self.affinities[gpu.key], device.line.cores)
            if gpu and fault:
                yield device.line, f"gpu {gpu.index}: {fault}"

    def _order(self) -> Iterator[tuple[GpuLine, str]]:
        """Yield the lines that change a GPU's number; detected GPUs Slurm sorts itself."""
        files = [device.file for device in self.devices]
        right = [file for file in self.gpus if file in files]
        right.sort(key=lambda file: self._rank(self.configured.types.get(file)))
        if self.configured.detector or len(files) != len(right):  # repeated or strange ones
            return
        for number, (device, file) in enumerate(zip(self.devices, right, strict=True)):
            gpu = self.gpus[device.file]
            if device.file != file:
                numbers = f"gpu {number} to Slurm and {gpu.index} to {runtime(gpu)}"
                yield device.line, f"{device.file} is {numbers}; {file} belongs in its place"

    def _missing(self) -> Iterator[str]:
        files = {device.file for device in self.devices}
        if self.configured.detector:
            return
        for file, gpu in self.gpus.items():
            if file not in files:
                add = gres_writer.line(gpu, self.affinities[gpu.key], self.links, self.types)
                yield f"gpu {gpu.index}: no line has it; add {add}"
        unknown = () if self.unjudged else self.topology.gpus
        for gpu in unknown:
            if device_file(gpu) is None:
                yield f"gpu {gpu.index}: no line has it, and its device file is not known here"
