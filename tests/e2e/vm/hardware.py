"""The virtual machine's hardware, in options of QEMU.

Two packages have four NUMA nodes each, and each node two cores of two CPUs. One of the nodes has no
memory; a ninth, beside package 0, has only memory. Four PCI host bridges have two GPUs each.
"""

from collections.abc import Iterator, Sequence

NODES = 8  #: the nodes with CPUs
CPUS_PER_NODE = 4
CPUS = NODES * CPUS_PER_NODE
MEMORY_NODE = NODES  #: has no CPUs
BARE_NODE = 5  #: has no memory
MEMORY_MB = 512  #: of each node with memory; the root and the programs take 250

#: The node of each host bridge, in PCI bus order: as odd as a DGX A100's.
BRIDGES = (3, 1, 7, 5)

#: The node of each GPU, in PCI bus order.
GPU_NODES = tuple(node for node in BRIDGES for _ in range(2))

#: A real PCI function: a display of vendor 1002.
GPU = "ati-vga"

#: Emulated on any machine, by one thread: with a thread for each CPU, booting sometimes froze.
ACCELERATOR = "tcg,thread=single,tb-size=256"

#: Has huge caches, x2APIC and a random number generator; TCG does not emulate transactional memory.
CPU_MODEL = "Skylake-Server,hle=off,rtm=off,check=off,enforce=off"


def options() -> list[str]:
    cpus = f"{CPUS},sockets=2,dies={NODES // 2},cores=2,threads=2"  # a die: one LLC
    memory = f"{NODES * MEMORY_MB}M"
    return [
        *("-machine", "q35", "-accel", ACCELERATOR, "-cpu", CPU_MODEL, "-smp", cpus, "-m", memory),
        *("-nodefaults", "-nographic", "-vga", "none"),
        *_nodes(),
        *_distances(),
        *bridges(BRIDGES),
    ]


def cpus_of(node: int) -> str:
    first = node * CPUS_PER_NODE
    return f"{first}-{first + CPUS_PER_NODE - 1}"


def distance(one: int, other: int) -> int:
    """Return a distance in the firmware's SLIT."""
    if one == other:
        return 10
    near, far = (17, 37) if MEMORY_NODE in (one, other) else (12, 32)
    return near if _package(one) == _package(other) else far


def _package(node: int) -> int:
    return 0 if node == MEMORY_NODE else node // (NODES // 2)


def _nodes() -> Iterator[str]:
    for node in range(NODES + 1):
        parts = [f"node,nodeid={node}"]
        if node != MEMORY_NODE:
            parts += [f"cpus={cpus_of(node)}"]
        if node != BARE_NODE:
            parts += [f"memdev=memory{node}"]
            yield from ("-object", f"memory-backend-ram,id=memory{node},size={MEMORY_MB}M")
        yield from ("-numa", ",".join(parts))


def _distances() -> Iterator[str]:
    for one in range(NODES + 1):
        for other in range(NODES + 1):
            yield from ("-numa", f"dist,src={one},dst={other},val={distance(one, other)}")


def bridges(nodes: Sequence[int]) -> Iterator[str]:
    """Yield the options of host bridges, each on a node, with two GPUs."""
    slot = 0
    for number, node in enumerate(nodes):
        bus = 16 + 48 * number
        yield "-device"
        yield f"pxb-pcie,id=host{number},bus=pcie.0,bus_nr={bus},numa_node={node}"
        for _ in range(2):
            slot += 1
            yield "-device"
            yield f"pcie-root-port,id=port{slot},bus=host{number},chassis={slot},slot={slot}"
            yield from ("-device", f"{GPU},bus=port{slot},romfile=")
