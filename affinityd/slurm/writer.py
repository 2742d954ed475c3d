"""A node's lines of gres.conf."""

from __future__ import annotations

from collections.abc import Iterator

from affinityd.slurm.affinity import Affinity, Cores, affinities
from affinityd.slurm.files import device_file, runtime, unknown_file
from affinityd.slurm.links import Links, links
from affinityd.topology import Gpu, Topology

ORDER = "# In this order Slurm's gpu numbers are {runtime}'s: keep it."

NODES = (
    "# Cores= of NUMA nodes need SlurmdParameters=numa_node_as_socket in slurm.conf. Else Slurm",
    "# takes a whole package's cores, and drains the node from 24.11 on; or print --scope socket.",
)

#: Source: src/interfaces/gres.c (_links_str2array).
LINKS = "# Links= have {gpus} numbers: in slurm.conf, a smaller Gres=gpu: makes the node invalid."


def write(topology: Topology, *, scope: str = "node", node_name: str | None = None) -> list[str]:
    """Return the lines: comments, then one for each GPU, in the order of their numbers.

    A GPU whose device file is not known has a comment instead: a guess would give jobs a GPU that
    is another's. `scope`: whose cores, of `SCOPES`.
    """
    cores = Cores(topology)
    found = affinities(cores, scope)
    linked = links(topology)
    lines = [line(gpu, found[gpu.key], linked, node_name) for gpu in topology.gpus]
    return [*_comments(cores, list(found.values()), linked), *lines]


def unknown(topology: Topology) -> list[Gpu]:
    """Return the GPUs for which there is no line."""
    return [gpu for gpu in topology.gpus if device_file(gpu) is None]


def line(gpu: Gpu, affinity: Affinity, linked: Links, node_name: str | None = None) -> str:
    """Return a GPU's line; a comment, where its device file is not known."""
    file = device_file(gpu)
    why, pattern = unknown_file(gpu)
    node = None if node_name is None else f"NodeName={node_name}"
    device = f"File={file or pattern}"
    text = " ".join(filter(None, (node, "Name=gpu", device, affinity.field, linked.field(gpu))))
    return text if file else f"# gpu {gpu.index} ({gpu.pci_bus_id}): {why}: {text}"


def _comments(cores: Cores, found: list[Affinity], linked: Links) -> Iterator[str]:
    gpus = cores.topology.gpus
    runtimes = {runtime(gpu) for gpu in gpus}
    if len(runtimes) == 1:  # of two vendors, each counts from 0 and Slurm goes on
        yield ORDER.format(runtime=runtimes.pop())
    written = [it.right for it in found if it.right is not None]
    if any(cores.of_packages(right) != right for right in written):
        yield from NODES
    if any(map(linked.field, gpus)):
        yield LINKS.format(gpus=len(gpus))
