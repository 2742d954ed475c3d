"""NVLinks between the GPUs of a machine, written as `nvidia-smi topo -m` shows them."""

from dataclasses import replace

from hypothesis import strategies as st

from affinityd.topology.model import NvLinks, Topology
from tests.support.machines.facts import machine
from tests.support.machines.strategies import machines

#: A hybrid cube mesh, six links a GPU. Source: as tests/data/machines/dgx-1v.json.
DGX_1V_LINKS = """\
X 1 1 2 2 0 0 0
1 X 2 1 0 2 0 0
1 2 X 2 0 0 1 0
2 1 2 X 0 0 0 1
2 0 0 0 X 1 1 2
0 2 0 0 1 X 2 1
0 0 1 0 1 2 X 2
0 0 0 1 2 1 2 X
"""

SWITCH = "0000:c8:00.0"  #: where an NVSwitch is


def with_nvlinks(topology: Topology, matrix: str) -> Topology:
    """Return a machine whose NVML tells the minors of its GPUs, and these links between them."""
    addresses = [gpu.pci_bus_id for gpu in topology.gpus]
    gpus = (
        replace(
            gpu,
            minor=gpu.index,
            nvlinks=tuple(
                NvLinks(end, int(links))
                for end, links in zip(addresses, row.split(), strict=True)
                if links not in {"X", "0"}
            ),
        )
        for gpu, row in zip(topology.gpus, matrix.splitlines(), strict=True)
    )
    return replace(topology, gpus=tuple(gpus))


def dgx_1v() -> Topology:
    return with_nvlinks(machine("dgx-1v"), DGX_1V_LINKS)


@st.composite
def linked_machines(draw: st.DrawFn) -> Topology:
    """Return a random machine whose GPUs have any links: to each other, themselves, a switch."""
    topology = draw(machines())
    ends = st.sampled_from([SWITCH, *(gpu.pci_bus_id for gpu in topology.gpus)])
    links = st.builds(NvLinks, ends, st.integers(1, 18))
    nvlinks = st.lists(links, unique_by=lambda it: it.pci_bus_id).map(tuple)
    gpus = (replace(gpu, nvlinks=draw(nvlinks)) for gpu in topology.gpus)
    return replace(topology, gpus=tuple(gpus))
