"""ACS of bridges and the IOMMU, for copies between devices; frequency and idle states of CPUs.

Sources: PCI Express Base Specification, "Access Control Services Extended Capability"; kernel
drivers/pci/p2pdma.c `pci_bridge_has_acs_redir`, kernel-parameters.txt (pci=disable_acs_redir=,
iommu=, iommu.passthrough=), ABI/testing/sysfs-kernel-iommu_groups (type); NCCL's guide,
"Troubleshooting" (PCI Access Control Services); admin-guide/pm/cpufreq.rst, intel_pstate.rst
(energy_performance_preference), cpuidle.rst (stateN/latency, disable); cpupower-idle-set(1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from affinityd.cpuset import several
from affinityd.discovery.pci import DEVICES, is_pci_address
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.tree import Tree, numbered, read_number
from affinityd.doctor.facts import (
    CheckResults,
    NodeFacts,
    NotApplicableError,
    named,
    ok,
    some,
    warn,
)
from affinityd.grouping import grouped
from affinityd.topology.model import LINKS, SYS, Gpu, Topology

#: Where extended capabilities begin in the configuration space, which only root reads so far.
EXTENDED = 0x100
ACS = 0x0D  #: the capability's number; its control register is six bytes behind
REDIRECTS = 0x2C  #: of the register: P2P Request Redirect, Completion Redirect, Egress Control
MOST_CAPABILITIES = 480  #: capabilities that the space has room for


def peer_to_peer(facts: NodeFacts) -> CheckResults:
    """Judge whether bridges or the IOMMU send what devices copy to each other a long way."""
    topology = facts.topology
    users: dict[str, list[Gpu]] = {}  # of each bridge on a way between two devices
    pairs = [(gpu, path) for gpu in facts.some_gpus() for path in _peers(topology, gpu)]
    for gpu, path in pairs:
        for bridge in {*gpu.pci_path[:-1]} ^ {*path[:-1]}:
            if is_pci_address(bridge) and gpu not in users.setdefault(bridge, []):
                users[bridge].append(gpu)
    if not pairs:
        raise NotApplicableError("no GPU has an RDMA device, or a GPU without NVLink, to copy to")
    redirects = {bridge: redirects_p2p(facts.tree, bridge) for bridge in sorted(users)}
    gpus = [*dict.fromkeys(gpu for gpu, _ in pairs)]
    kinds = {gpu: facts.tree.read(f"{DEVICES}/{gpu.pci_bus_id}/iommu_group/type") for gpu in gpus}
    translated = [gpu for gpu, kind in kinds.items() if kind and kind.startswith("DMA")]
    unknown = ""
    if None in redirects.values():
        why = "only root reads" if facts.tree.live else "a captured or built-in machine has not"
        unknown = f"ACS of bridges is not known: {why} their configuration space"
    if unknown and not translated and True not in redirects.values():
        raise NotApplicableError(unknown)
    if not facts.tree.list(DEVICES):
        raise NotApplicableError(f"there is no /{DEVICES} to read")
    if on := [bridge for bridge, is_on in redirects.items() if is_on]:
        yield warn(
            f"ACS of {some(on)} sends what GPUs copy to other devices, and "
            "these to them, up to the root complex: copies are slow, or hang",
            "setpci -s BRIDGE ECAP_ACS+6.w=0000 for each after every boot, or "
            "pci=disable_acs_redir=BRIDGE;BRIDGE on the kernel's command line; it costs "
            "isolation: the devices below can then be given to one virtual machine only",
            sorted(set().union(*(users[bridge] for bridge in on)), key=lambda gpu: gpu.index),
        )
    if translated:
        words = (facts.tree.read("proc/cmdline") or "").split()
        said = " ".join(word for word in words if "iommu" in word.partition("=")[0])
        yield warn(
            f"the IOMMU translates the addresses that {named(translated)} use "
            f"({kinds[translated[0]]}; the kernel's command line has {said or 'no iommu='}): "
            "copies between devices go through the root complex"
            + (f"; {unknown}" if unknown else ""),
            "iommu=pt on the kernel's command line (Arm: iommu.passthrough=1), and boot again; it "
            "costs protection: a faulty device can then write to all memory",
            translated,
        )
    yield ok("neither ACS nor the IOMMU redirects copies between GPUs and other devices")


def _peers(topology: Topology, gpu: Gpu) -> Iterator[tuple[str, ...]]:
    """Yield the paths of devices that a GPU copies to through PCI."""
    links = [(nic, topology.nearness(gpu, nic)) for nic in topology.nics if nic.ports]
    nearest = min((LINKS.index(link) for _, link in links), default=LINKS.index(SYS))
    yield from (nic.pci_path for nic, link in links if SYS != link == LINKS[nearest])
    if gpu.nvlinks == ():  # NVML says that it has none
        yield from (other.pci_path for other in topology.gpus if other != gpu)


def redirects_p2p(tree: Tree, bridge: str) -> bool | None:
    """Return whether a bridge redirects; None: its extended capabilities cannot be read."""
    config = tree.read_bytes(f"{DEVICES}/{bridge}/config") or b""
    if len(config) < EXTENDED:
        return None

    def read(offset: int, size: int) -> int:
        return int.from_bytes(config[offset : offset + size], "little")

    offset = EXTENDED
    for _ in range(MOST_CAPABILITIES):
        header = read(offset, 4)
        if header & 0xFFFF == ACS:
            return bool(read(offset + 6, 2) & REDIRECTS)
        offset = header >> 20
        if offset < EXTENDED:  # the last one
            break
    return False


#: Preferences with which a core is as fast as it can be; a number is as the processor has it.
FAST = ("performance", "0")
DEEP = 100  #: microseconds; from here on a message costs more than the copy it announces


def cpu_power(facts: NodeFacts) -> CheckResults:
    """Judge how fast the CPUs near GPUs are after a pause: their frequency and idle states."""
    facts.some_gpus()
    gpus, cpus = facts.used_by_ranks(facts.topology.online)
    tree = facts.tree
    clocks = dict[int, str]()
    states = dict[int, tuple[int, str]]()
    for cpu in sorted(cpus or facts.topology.online):
        folder = f"{CPUS}/cpu{cpu}"
        governor = tree.read(f"{folder}/cpufreq/scaling_governor")
        preference = tree.read(f"{folder}/cpufreq/energy_performance_preference")
        if governor is not None:
            is_fast = governor == "performance" or preference in FAST
            told = f", energy_performance_preference {preference}" if preference else ""
            clocks[cpu] = "" if is_fast else f"governor {governor}{told}"
        if deepest := max(_idle_states(tree, f"{folder}/cpuidle"), default=None):
            states[cpu] = deepest
    if not clocks and not states:
        raise NotApplicableError("there is no cpufreq and no cpuidle to read, as in a guest")
    for text, slow in grouped(clocks, clocks.__getitem__).items():
        if text:
            yield warn(
                f"{several('CPU', slow)} near GPUs: {text}: after a pause a core is slow at first",
                "cpupower frequency-set -g performance; it costs power, and heat that a rack may "
                "not have room for, also while ranks wait",
                gpus,
            )
    for (latency, name), sleepers in grouped(states, states.__getitem__).items():
        if latency >= DEEP:
            yield warn(
                f"{several('CPU', sleepers)} near GPUs may sleep in {name}, and take {latency} µs "
                "to wake up: ranks that wait for a GPU or a NIC wait longer",
                f"cpupower idle-set -D {DEEP}; it costs power, and the higher clock that busy "
                "cores have while others sleep: measure the job before and after",
                gpus,
            )
    yield ok(f"CPUs near GPUs are fast after a pause: {_deepest(states)}")


def _idle_states(tree: Tree, folder: str) -> Iterator[tuple[int, str]]:
    """Yield the idle states that a CPU may use: its exit latency in µs, and its name."""
    for number in numbered(tree, folder, "state"):
        latency = read_number(tree, f"{folder}/state{number}/latency")
        if latency is not None and tree.read(f"{folder}/state{number}/disable") in {None, "0"}:
            yield latency, tree.read(f"{folder}/state{number}/name") or f"state{number}"


def _deepest(states: Mapping[int, tuple[int, str]]) -> str:
    latency, name = max(states.values(), default=(0, ""))
    return f"the deepest idle state is {name}, of {latency} µs" if name else "no idle state is on"
