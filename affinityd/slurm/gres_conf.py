"""The right lines of gres.conf for a node.

Slurm numbers GPUs type by type, in the order of Gres=: seen with Slurm 22.05, 24.11 and 26.05.

Sources: gres.conf(5); kernel Documentation/admin-guide/devices.txt; Slurm's
src/plugins/gres/gpu/gres_gpu.c (_normalize_sys_gres_types), src/interfaces/gres.c (_get_gres_cnt).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from affinityd.errors import InvalidRequestError
from affinityd.slurm.cores import CoreAffinity, SlurmCores, affinities
from affinityd.text import quote, whole_number
from affinityd.topology.model import Gpu, Topology

GpuKey = tuple[str, int]
TypeCounts = Mapping[str | None, int]  #: type → number of GPUs, in Gres='s order; None: no type


def read_gres(text: str) -> TypeCounts:
    """Return the GPUs in `gpu:a100:2,gpu:v100,shard:8`; a type without a number is one GPU."""
    counts: dict[str | None, int] = {}
    for entry in text.replace(":no_consume", "").split(","):
        name, *words = entry.split(":")
        number = whole_number(words[-1], 999_999) if words else None
        if number is None:
            number = 1
        else:
            words.pop()
        if name == "gpu" and number:
            kind = ":".join(words) or None
            counts[kind] = counts.get(kind, 0) + number
    return counts


def gres_of(counts: TypeCounts) -> str:
    """Return `Gres=gpu:a100:2,gpu:v100:1`."""
    entries = []
    for kind, number in counts.items():
        entries.append(f"gpu:{kind}:{number}" if kind else f"gpu:{number}")
    return f"Gres={','.join(entries) or '(none)'}"


class DeviceNaming(NamedTuple):
    """How a vendor's driver names its device files."""

    prefix: str
    minor: str  #: the field of a GPU that has the device file's number
    source: str  #: what tells that number


NAMINGS = {
    "nvidia": DeviceNaming("/dev/nvidia", "minor", "NVIDIA's driver"),
    "amd": DeviceNaming("/dev/dri/renderD", "render_minor", "KFD"),
}
NO_NAMING = DeviceNaming("", "", "")


def device_file(gpu: Gpu) -> str | None:
    """Return a GPU's device file; None if the machine does not tell which file it is."""
    naming = NAMINGS.get(gpu.vendor, NO_NAMING)
    minor = getattr(gpu, naming.minor, None)
    if minor is None:
        return None
    return f"{naming.prefix}{minor}"


class GpuTypes(NamedTuple):
    """The types of a node's GPUs."""

    of: Mapping[GpuKey, str | None]  #: None: no type; a GPU without an entry is undecided
    why: str | None = None  #: why GPUs are missing


@dataclass(frozen=True)
class GresConf:
    """The right lines of gres.conf for a node's topology and its Gres=."""

    topology: Topology
    scope: str = "node"  #: which cores are right: those of the node or the socket
    gres: TypeCounts | None = None  #: slurmctld's Gres=; None: it is not known
    named: tuple[str, ...] = ()  #: the types of --type: one, or one for each GPU in their order

    @cached_property
    def types(self) -> GpuTypes:
        """The `Type=` of each GPU: as named, else from slurmctld's Gres=.

        Raises InvalidRequestError if the names are neither one nor one for each GPU, and for a type
        that Gres= does not have.
        """
        gpus = self.topology.gpus
        gres = self.gres
        named = self.named
        if len(named) not in {0, 1, len(gpus)}:
            raise InvalidRequestError(
                f"--type names {len(named)} types, and there are {len(gpus)} GPUs; name one for "
                "all, or one for each"
            )
        if gres is not None and (unknown := [kind for kind in named if kind not in gres]):
            raise InvalidRequestError(
                f"--type {quote(unknown[0])} is not in {gres_of(gres)}, and slurmctld drains a "
                "node with other types; change Gres= first, or leave --type out"
            )
        if named:
            if len(named) == 1:
                named *= len(gpus)
            return GpuTypes({gpu.key: kind for gpu, kind in zip(gpus, named, strict=True)})
        if gres and any(gres) and any(gpu.mig for gpu in gpus):
            # The types, such as a100_3g.20gb, are those of the instances.
            why = "MIG instances are GPUs to Slurm, which AutoDetect=nvml in gres.conf finds"
            return GpuTypes({}, why)
        if gres and len(gres) > 1:
            return GpuTypes({}, f"{gres_of(gres)} has several types")
        return GpuTypes({gpu.key: next(iter(gres or ()), None) for gpu in gpus})

    @cached_property
    def cores(self) -> SlurmCores:
        """The node's cores."""
        return SlurmCores(self.topology)

    @cached_property
    def affinities(self) -> Mapping[GpuKey, CoreAffinity]:
        """The `Cores=` of each GPU."""
        return affinities(self.cores, self.scope)

    @cached_property
    def unknown(self) -> list[Gpu]:
        """The GPUs that have no line, as their device file is unknown."""
        return [gpu for gpu in self.topology.gpus if device_file(gpu) is None]

    @property
    def settings(self) -> str | None:
        """The settings that slurm.conf needs if `Cores=` are not whole packages; None: nothing."""
        for affinity in self.affinities.values():
            right = affinity.right
            if right is not None and self.cores.of_packages(right) != right:
                return self.cores.settings()
        return None

    @property
    def has_several_types(self) -> bool:
        """Whether Slurm's order of GPUs differs from the order of the bus."""
        return len({*self.types.of.values(), *(self.gres or ())}) > 1

    def lines(self, node_name: str | None = None) -> list[str]:
        """Return comments, then a line for each GPU, in the order of the GPUs' numbers."""
        gpus = self.topology.gpus
        lines = []
        if gpus:
            lines.append("# Slurm numbers GPUs type by type, in this order: keep it.")
        if gpus and self.gres and any(self.gres):
            lines.append(f"# Type= as in {gres_of(self.gres)}; any other drains the node.")
        if self.settings is not None:
            lines += (
                "# Cores= of NUMA nodes need these settings in slurm.conf:",
                f"#   {self.settings}",
                "# Else jobs get far cores, or Slurm drains the node. --scope socket needs none.",
            )
        return [*lines, *(self.line(gpu, node_name) for gpu in gpus)]

    def line(self, gpu: Gpu, node_name: str | None = None) -> str:
        """Return a GPU's line; or a comment, if a guess could give jobs each other's GPUs."""
        file = device_file(gpu)
        kind = self.types.of.get(gpu.key, "?")
        naming = NAMINGS.get(gpu.vendor, NO_NAMING)
        fields = ["Name=gpu"]
        if node_name:
            fields.insert(0, f"NodeName={node_name}")
        if kind:
            fields.append(f"Type={kind}")
        fields.append(f"File={file or f'{naming.prefix}?'}")
        cores = self.affinities[gpu.key].field
        if cores:
            fields.append(cores)
        text = " ".join(fields)
        if file and gpu.key in self.types.of:
            return text
        why = self.types.why
        if not file and naming.source:
            why = f"its minor is not known ({naming.source} would tell it)"
        elif not file:
            why = f"how the device files of vendor {gpu.vendor} are numbered is not known"
        return f"# gpu {gpu.index} ({gpu.pci_bus_id}): {why}: {text}"
