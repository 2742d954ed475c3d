"""The RDMA devices of each GPU, by NCCL's published rule and `nvidia-smi topo -m`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from affinityd.request import parameters
from affinityd.topology.model import Core, Gpu, Nic, NumaNode, RdmaPort, Topology
from affinityd.topology.rdma import nics_of_gpus


def made(gpus: Mapping[int, str], nics: Sequence[Nic]) -> Topology:
    """Return a machine of two nodes; `gpus`: number → its bridges, host bridge first."""
    return Topology(
        "made",
        tuple(Core((cpu,), cpu, cpu, None, cpu) for cpu in (0, 1)),
        (NumaNode(0), NumaNode(1)),
        tuple(
            Gpu(number, "nvidia", f"gpu{number}", 0, pci_path=(*path.split("/"), f"gpu{number}"))
            for number, path in gpus.items()
        ),
        tuple(nics),
    )


def nic(name: str, path: str, gbps: int | None = 400, **facts: object) -> Nic:
    """Return an adapter with a device of one port; `facts` are of the port or of the adapter."""
    of_port = {key: facts.pop(key) for key in ("is_active", "netdev") if key in facts}
    port = replace(RdmaPort(name, 1, is_active=True, gbps=gbps), **of_port)  # type: ignore[arg-type]
    bus = f"bus-{name}"
    made_nic = Nic(bus, 0, "infiniband", (name,), (*path.split("/"), bus), ports=(port,))
    return replace(made_nic, **facts)  # type: ignore[arg-type]


def first(topology: Topology, number: int | None = None) -> dict[int, list[str]]:
    """Return GPU → the names of its devices."""
    return {
        index: [it.port.device for it in found.best(number)]
        for (_, index), found in nics_of_gpus(topology).items()
    }


@pytest.mark.parametrize(
    ("gpus", "number", "expected"),
    [
        ("0 1", 2, "a b"),  # NCCL's topology files: Azure NDv4, DGX A100
        ("2 3", 1, "a a"),  # AWS p4d and p4de
        ("6", 4, "abcd"),  # AWS p5
        ("0 1 2 3", 4, "a c b d"),
        ("0 1", 4, "ab cd"),
        ("0 1 2 3", 2, "a b a b"),
        ("1 2", 2, "b a"),
        ("0 3 6", 3, "a b c"),  # NCCL begins at GPU modulo 3: always at a
        ("0 1", 3, "ab bc"),
        ("0 1 2", 4, "ab cd bc"),
        ("0 1 2 3", 8, "ab ef cd gh"),
    ],
)
def test_gpus_on_one_switch_share_its_devices_as_nccl_does(
    gpus: str, number: int, expected: str
) -> None:
    of_switch = {int(gpu): "host/switch/gpus" for gpu in gpus.split()}
    nics = [nic(name, "host/switch/nics") for name in "abcdefgh"[:number]]
    chosen = first(made(of_switch, nics))
    assert " ".join("".join(chosen[gpu]) for gpu in of_switch) == expected


@pytest.mark.parametrize(
    ("bound", "expected"), [("", "b"), ("1", "b"), ("3", "ba"), ("all", "ba"), ("none", "")]
)
def test_a_request_may_limit_the_number_of_nearest_devices(bound: str, expected: str) -> None:
    near = [nic("a", "host/switch/nics"), nic("b", "host/switch/nics"), nic("far", "other")]
    both = made({0: "host/switch/gpus", 1: "host/switch/gpus"}, near)
    request = parameters.parse_request([("nics", bound)] if bound else [])
    assert "".join(first(both, request.nics)[1]) == expected


@pytest.mark.parametrize(
    ("other", "chosen"),
    [
        (nic("near", "host/switch/nics", is_active=False), "far"),
        (nic("near", "host/switch/nics", gbps=100), "far"),  # management: less than half the speed
        (nic("near", "host/switch/nics", gbps=200), "near"),
        (nic("near", "host/switch/nics", gbps=None), "near"),
        (nic("near", "host/switch/nics", physical="bus-far"), "far"),
        (nic("near", "host/switch/nics", physical="gone"), "near"),
        (nic("near", "host/switch/nics", physical="bus-down"), "far"),
        (nic("near", "host/switch/nics", bond="bond0"), "far"),
        (nic("near", "host/switch/nics", bond="bridge"), "near"),
        (nic("near_bond_0", "host/switch/nics", bond="bond0"), "near_bond_0"),
        (nic("near", "host/switch/nics", bond="bond0", netdev="bond0"), "near"),
    ],
)
def test_idle_slow_virtual_and_bonded_devices_do_not_count(other: Nic, chosen: str) -> None:
    far = nic("far", "elsewhere", gbps=400, bond="bond0", netdev="bond0")
    down = nic("down", "host/switch/nics", is_active=False)
    assert first(made({0: "host/switch/gpus"}, [far, other, down])) == {0: [chosen]}


def test_only_the_nearest_devices_are_named_and_the_fastest_come_first() -> None:
    nics = [nic("slow", "host/switch/nics", 200), nic("fast", "host/switch/nics", 400)]
    machine = made({0: "host/switch/gpus"}, [*nics, nic("faster", "host", 400)])
    assert first(machine) == {0: ["fast"]}
    assert first(machine, 99) == {0: ["fast", "slow"]}
