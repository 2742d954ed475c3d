"""The right lines of gres.conf for a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from affinityd.slurm.cores import CoreAffinity, SlurmCores, affinities
from affinityd.slurm.devices import Key, device_file, links, naming
from affinityd.slurm.expected import ExpectedNode, written
from affinityd.slurm.gpu_types import GpuTypes, Present, types
from affinityd.slurm.sockets import Sockets
from affinityd.topology.model import Gpu, Topology

ORDER = "# In this order Slurm's gpu numbers are {runtime}'s: keep it."

#: Slurm numbers GPUs type by type, in the order of Gres=: seen with Slurm 22.05, 24.11 and 26.05.
BY_TYPE = "# In this order, and with Gres={gres}, Slurm's gpu numbers are {runtime}'s: keep it."
ALTERNATING = "# Slurm numbers GPUs type by type, so its gpu numbers cannot be {runtime}'s."

TYPES = "# Type= as in {expected}: any other drains the node."

NODES = """\
# Cores= of NUMA nodes need in slurm.conf:
#   {settings}
# Else jobs get far cores, or Slurm drains the node; or print --scope socket."""

#: Source: src/interfaces/gres.c (_links_str2array).
LINKS = "# Links= have {gpus} numbers: in slurm.conf, a smaller Gres=gpu: makes the node invalid."


@dataclass(frozen=True)
class GresConf:
    """The right lines, by a node's topology and slurmctld's configuration."""

    topology: Topology
    scope: str = "node"  #: the domain of the right cores, of `SCOPES`
    expected: ExpectedNode | None = None  #: None: it is not known
    present: Present = field(default_factory=dict)
    said: tuple[str, ...] = ()  #: the types, as a person names them

    @cached_property
    def types(self) -> GpuTypes:
        """The `Type=` of each GPU. Raises InvalidRequestError for impossible types."""
        return types(self.topology.gpus, self.expected, self.present, self.said)

    @cached_property
    def cores(self) -> SlurmCores:
        """The node's cores."""
        return SlurmCores(self.topology)

    @cached_property
    def affinities(self) -> Mapping[Key, CoreAffinity]:
        """The `Cores=` of each GPU."""
        return affinities(self.cores, self.scope)

    @cached_property
    def links(self) -> Mapping[Key, tuple[int, ...]]:
        """The numbers of each GPU's `Links=`; empty: they are not known."""
        return links(self.topology)

    @cached_property
    def unknown(self) -> list[Gpu]:
        """The GPUs without a known device file, which have no line."""
        return [gpu for gpu in self.topology.gpus if device_file(gpu) is None]

    def lines(self, node_name: str | None = None) -> list[str]:
        """Return comments, then a line for each GPU, in the order of their numbers."""
        lines = [self.line(gpu, node_name) for gpu in self.topology.gpus]
        return [*self._order(), *self._comments(), *lines]

    def line(self, gpu: Gpu, node_name: str | None = None) -> str:
        """Return a GPU's line; a comment, where its device file or type is not known.

        A guess would give jobs a GPU that is another's.
        """
        file, kind = device_file(gpu), self.types.of.get(gpu.key, "?")
        fields = (
            node_name and f"NodeName={node_name}",
            "Name=gpu",
            kind and f"Type={kind}",
            f"File={file or f'{naming(gpu).prefix}?'}",
            self.affinities[gpu.key].field,
            self.links_field(gpu),
        )
        text = " ".join(filter(None, fields))
        if file and gpu.key in self.types.of:
            return text
        why = self.types.why if file else naming(gpu).unknown
        return f"# gpu {gpu.index} ({gpu.pci_bus_id}): {why}: {text}"

    def links_field(self, gpu: Gpu) -> str | None:
        """Return `Links=-1,4,4`; None where it is not known, or no link leads to a GPU."""
        is_useful = any(number > 0 for numbers in self.links.values() for number in numbers)
        return links_written(self.links[gpu.key]) if is_useful else None

    @cached_property
    def sockets(self) -> Sockets:
        """Slurm's sockets."""
        return Sockets(self.cores, self.expected)

    @cached_property
    def settings(self) -> str | None:
        """The settings of slurm.conf that the `Cores=` lack; None: none."""
        rights = [it.right for it in self.affinities.values() if it.right is not None]
        return None if all(map(self.sockets.fit, rights)) else self.sockets.settings()

    def _order(self) -> Iterator[str]:
        """Yield the remedy that makes Slurm's numbers those of a job, if there is one."""
        gpus = self.topology.gpus
        runtimes = {naming(gpu).runtime for gpu in gpus}
        if len(runtimes) == 1:  # of two vendors, each counts from 0 and Slurm goes on
            runs, numbers = self.types.runs(gpus), Counter(self.types.of.values())
            alternates = len(set(runs)) < len(runs)
            text = ALTERNATING if alternates else BY_TYPE if len(runs) > 1 else ORDER
            gres = written({kind: numbers[kind] for kind in runs})
            yield text.format(runtime=runtimes.pop(), gres=gres)

    def _comments(self) -> Iterator[str]:
        gpus = self.topology.gpus
        if gpus and self.expected is not None and self.expected.types:
            yield TYPES.format(expected=self.expected)
        if self.settings is not None:
            yield from NODES.format(settings=self.settings).splitlines()
        if any(map(self.links_field, gpus)):
            yield LINKS.format(gpus=len(gpus))


def links_written(numbers: tuple[int, ...]) -> str:
    """Return `Links=-1,4,4,4`."""
    return f"Links={','.join(map(str, numbers))}"
