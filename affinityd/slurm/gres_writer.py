"""A node's lines of gres.conf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from affinityd.slurm.config.expected import ExpectedNode, are_whole_sockets, written
from affinityd.slurm.config.gpu_types import GpuTypes
from affinityd.slurm.machine.core_affinity import CoreAffinity, SlurmCores, affinities
from affinityd.slurm.machine.device_files import device_file, runtime, unknown_file
from affinityd.slurm.machine.nvlinks import LinkCounts, links
from affinityd.topology.model import Gpu, Topology

ORDER = "# In this order Slurm's gpu numbers are {runtime}'s: keep it."

#: Slurm numbers GPUs type by type, in the order of Gres=: seen with Slurm 22.05, 24.11 and 26.05.
BY_TYPE = "# In this order, and with Gres={gres}, Slurm's gpu numbers are {runtime}'s: keep it."
ALTERNATING = "# Slurm numbers GPUs type by type, so its gpu numbers cannot be {runtime}'s."

TYPES = "# Type= as in {expected}: any other drains the node."

NODES = (
    "# Cores= of NUMA nodes need SlurmdParameters=numa_node_as_socket in slurm.conf. Else Slurm",
    "# takes a whole package's cores, and drains the node from 24.11 on; or print --scope socket.",
)

#: Source: src/interfaces/gres.c (_links_str2array).
LINKS = "# Links= have {gpus} numbers: in slurm.conf, a smaller Gres=gpu: makes the node invalid."


def write(
    topology: Topology,
    *,
    scope: str = "node",
    node_name: str | None = None,
    types: GpuTypes | None = None,
    expected: ExpectedNode | None = None,
) -> list[str]:
    """Return the lines: comments, then one for each GPU, in the order of their numbers.

    A GPU whose device file or type is not known has a comment instead: a guess would give jobs a
    GPU that is another's. `scope`: whose cores, of `SCOPES`. `types`: None: the GPUs have none.
    `expected`: what slurmctld was configured with; None: it is not known.
    """
    kinds = types or GpuTypes({gpu.key: None for gpu in topology.gpus})
    cores = SlurmCores(topology)
    found = affinities(cores, scope)
    linked = links(topology)
    lines = [line(gpu, found[gpu.key], linked, kinds, node_name) for gpu in topology.gpus]
    comments = _comments(cores, list(found.values()), linked, expected)
    return [*_order(topology, kinds), *comments, *lines]


def unknown(topology: Topology) -> list[Gpu]:
    """Return the GPUs whose device files are not known, for which there is no line."""
    return [gpu for gpu in topology.gpus if device_file(gpu) is None]


def line(
    gpu: Gpu,
    affinity: CoreAffinity,
    linked: LinkCounts,
    types: GpuTypes,
    node_name: str | None = None,
) -> str:
    """Return a GPU's line; a comment, where its device file or type is not known."""
    file = device_file(gpu)
    why, pattern = unknown_file(gpu)
    if file and gpu.key not in types.of:
        why = types.why or "its type is not known"
    node = None if node_name is None else f"NodeName={node_name}"
    device = f"File={file or pattern}"
    fields = (node, "Name=gpu", types.field(gpu), device, affinity.field, linked.field(gpu))
    text = " ".join(filter(None, fields))
    is_whole = file is not None and gpu.key in types.of
    return text if is_whole else f"# gpu {gpu.index} ({gpu.pci_bus_id}): {why}: {text}"


def _order(topology: Topology, types: GpuTypes) -> Iterator[str]:
    """Yield what makes Slurm's numbers those of a job, if anything does."""
    gpus = topology.gpus
    runtimes = {runtime(gpu) for gpu in gpus}
    if len(runtimes) == 1:  # of two vendors, each counts from 0 and Slurm goes on
        runs, numbers = types.runs(gpus), Counter(types.of.values())
        text = ALTERNATING if len(set(runs)) < len(runs) else BY_TYPE if len(runs) > 1 else ORDER
        gres = written({kind: numbers[kind] for kind in runs})
        yield text.format(runtime=runtimes.pop(), gres=gres)


def _comments(
    cores: SlurmCores, found: list[CoreAffinity], linked: LinkCounts, expected: ExpectedNode | None
) -> Iterator[str]:
    gpus = cores.topology.gpus
    if gpus and expected is not None and expected.types:
        yield TYPES.format(expected=expected)
    rights = [it.right for it in found if it.right is not None]
    if not all(are_whole_sockets(right, cores, expected) for right in rights):
        yield from NODES
    if any(map(linked.field, gpus)):
        yield LINKS.format(gpus=len(gpus))
