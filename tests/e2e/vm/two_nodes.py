"""The hardware of a common GPU server, as QEMU options: here tasks have CPUs of their own.

Two NUMA nodes of eight cores of two CPUs; GPUs 0 to 3 are on node 1, GPUs 4 to 7 on node 0.
"""

from tests.e2e.vm.hardware import CPU_MODEL, bridges

CPUS_PER_NODE = 16
BRIDGES = (1, 1, 0, 0)  #: the node of each host bridge, in PCI bus order

#: The node of each GPU, in PCI bus order.
GPU_NODES = tuple(node for node in BRIDGES for _ in range(2))

#: A thread for each CPU: a step's tasks run at once, and wait for locks of the kernel.
ACCELERATOR = "tcg,thread=multi,tb-size=512"

#: Memory of each node: the roots of two releases must fit, twice while the kernel unpacks them.
MEMORY_MB = 2048


def options() -> list[str]:
    words = ["-machine", "q35", "-accel", ACCELERATOR, "-cpu", CPU_MODEL]
    words += ["-smp", f"{2 * CPUS_PER_NODE},sockets=2,cores=8,threads=2", "-m", f"{2 * MEMORY_MB}M"]
    words += ["-nodefaults", "-nographic", "-vga", "none"]
    for node in (0, 1):
        words += ["-object", f"memory-backend-ram,id=memory{node},size={MEMORY_MB}M"]
        words += ["-numa", f"node,nodeid={node},cpus={cpus_of(node)},memdev=memory{node}"]
    words += ["-numa", "dist,src=0,dst=1,val=21", "-numa", "dist,src=1,dst=0,val=21"]
    return [*words, *bridges(BRIDGES)]


def cpus_of(node: int) -> str:
    first = node * CPUS_PER_NODE
    return f"{first}-{first + CPUS_PER_NODE - 1}"
