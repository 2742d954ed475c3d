"""Whether the RDMA devices work at full speed, and are near the GPUs.

Source: kernel Documentation/ABI/stable/sysfs-class-infiniband (ports/N/state, rate).
"""

from __future__ import annotations

from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResults, NotApplicableError, named, ok, warn
from affinityd.grouping import grouped
from affinityd.text import count
from affinityd.topology.model import ON_SWITCH, SYS, RdmaPort
from affinityd.topology.rdma import nics_of_gpus, usable_ports


def rdma_ports(facts: NodeFacts) -> CheckResults:
    """Judge whether ports are down, or slower than those of adapters of the same kind."""
    ports = _ports(facts)
    down = [port for port in ports if not port.is_active]
    if down:
        yield warn(
            f"not ACTIVE, and so in no plan: {_devices(down)}",
            "look at the cable, the switch port and the subnet manager (ibstat, rdma link); "
            "nothing, if the port is not meant to be used",
        )
    rated = [port for port in ports if port.is_active and port.gbps is not None]
    for alike in grouped(rated, lambda port: port.link_layer).values():
        most = max(port.gbps or 0 for port in alike)
        for slow in (port for port in alike if port.gbps != most):
            yield warn(
                f"{slow.device} runs at {slow.gbps} Gb/s, others at {most}",
                "look at its cable and switch port; nothing, if it is another model",
            )
    yield ok(f"{count(len(ports) - len(down), 'port')} ACTIVE, all equally fast")


def gpu_nics(facts: NodeFacts) -> CheckResults:
    """Judge whether each GPU has an RDMA device near it, and each device a GPU."""
    topology, gpus = facts.topology, facts.some_gpus()
    usable = usable_ports(topology.nics)
    if _ports(facts) and not usable:
        raise NotApplicableError("no port of an RDMA device is ACTIVE")
    nics = nics_of_gpus(topology)
    links = {gpu.key: nics[gpu.key].nearest[0].link for gpu in gpus}
    far = [gpu for gpu in gpus if links[gpu.key] not in ON_SWITCH]
    lone = [it for nic, it in usable if all(topology.nearness(gpu, nic) == SYS for gpu in gpus)]
    if lone and far:  # where each GPU has a near one, the others are for storage
        yield warn(
            f"on another NUMA node than every GPU: {_devices(lone)}",
            "move the adapter to a slot of a node with GPUs; nothing, if it is for storage",
        )
    if far and len(far) < len(gpus):
        yield warn(
            f"no RDMA device is on the PCI switch of {named(far)}; other GPUs have one there",
            "put a NIC into a slot of that switch, or give ranks that communicate most other GPUs",
            far,
        )
    near = ", ".join(sorted({*links.values()}))
    yield ok(f"every GPU has an RDMA device as near as others have ({near})")


def _ports(facts: NodeFacts) -> list[RdmaPort]:
    """Return the ports of the machine. Raises NotApplicableError for none."""
    ports = [port for nic in facts.topology.nics for port in nic.ports]
    if not ports:
        raise NotApplicableError("this node has no RDMA device")
    return ports


def _devices(ports: list[RdmaPort]) -> str:
    return ", ".join(f"{port.device} port {port.number}" for port in ports)
