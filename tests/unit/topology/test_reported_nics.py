"""The links and the nearest NICs of real machines, as `nvidia-smi topo -m` said them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pytest

from affinityd.topology.model import LINKS, Core, Gpu, Nic, NumaNode, RdmaPort, Topology
from affinityd.topology.rdma import nics_of_gpus
from tests.support.paths import REPOSITORY

LETTERS = dict(zip("PXHNS", LINKS, strict=True))

#: (GPU, NIC) → their link.
Matrix = Mapping[tuple[str, str], str]


def reported() -> Iterator[object]:
    text = (REPOSITORY / "tests/data/reported_nics.tsv").read_text()
    for line in text.splitlines():
        if not line.startswith("#"):
            source, nics, gpus = line.split("\t")
            links = {
                (number, nic): LETTERS[letter]
                for number, _, letters in (gpu.partition(":") for gpu in gpus.split())
                for nic, letter in zip(nics.split(","), letters, strict=True)
            }
            yield pytest.param(links, id=source)


def joined(links: Matrix, nearest: Iterable[str]) -> dict[str, str]:
    """Return device → the name of its group: devices that these links join are in one."""
    group = {device: device for pair in links for device in pair}
    for (gpu, nic), link in links.items():
        if link in nearest:
            old, new = group[nic], group[gpu]
            group = {device: new if its == old else its for device, its in group.items()}
    return group


def built(links: Matrix) -> Topology:
    """Return a machine whose PCI tree and nodes have these links."""
    bridge, switch, host, node = (joined(links, LINKS[: last + 1]) for last in range(4))
    numbers = {name: number for number, name in enumerate(sorted({*node.values()}))}

    def path(device: str) -> tuple[str, ...]:
        parts = (f"pci{host[device]}", switch[device], f"bridge {bridge[device]}", f"port {device}")
        return (*parts, device)

    gpus = sorted({gpu for gpu, _ in links}, key=int)
    nics = dict.fromkeys(nic for _, nic in links)
    return Topology(
        "reported",
        tuple(Core((number,), number, 0, None, number) for number in numbers.values()),
        tuple(NumaNode(number) for number in numbers.values()),
        tuple(Gpu(int(gpu), "nvidia", gpu, numbers[node[gpu]], pci_path=path(gpu)) for gpu in gpus),
        tuple(
            Nic(
                nic,
                numbers[node[nic]],
                "infiniband",
                (nic,),
                path(nic),
                ports=(RdmaPort(nic, 1, is_active=True, gbps=400),),
            )
            for nic in nics
        ),
    )


@pytest.mark.parametrize("links", list(reported()))
def test_links_and_nearest_devices_are_those_that_were_reported(links: Matrix) -> None:
    machine = built(links)
    found = {
        (gpu.pci_bus_id, nic.pci_bus_id): machine.nearness(gpu, nic)
        for gpu in machine.gpus
        for nic in machine.nics
    }
    assert found == links
    for gpu in machine.gpus:
        of_gpu = {nic: link for (index, nic), link in links.items() if index == gpu.pci_bus_id}
        best = min(of_gpu.values(), key=LINKS.index)
        nearest = nics_of_gpus(machine)[gpu.key].nearest
        assert {it.link for it in nearest} == {best}
        assert {it.port.device for it in nearest} == {n for n, it in of_gpu.items() if it == best}
