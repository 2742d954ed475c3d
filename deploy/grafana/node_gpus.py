"""The node view's rows of GPUs: where their processes run, and what that costs."""

from __future__ import annotations

from deploy.grafana import looks
from deploy.grafana.dcgm import IDLE_GPUS, WAITING_GPUS
from deploy.grafana.node_series import BUSY, FAR, FAR_MEMORY, MISMATCH, NAMED, WAITED, of
from deploy.grafana.panels import graph_of, timeline_of
from deploy.grafana.queries import CLUSTER, GPU, Query, increase, rate, share, worst_placement
from deploy.grafana.tables import Column, table_of

GPUS = [
    timeline_of(
        "Where do the processes of each GPU run?",
        Query(worst_placement(of), NAMED),
        mapping=looks.WORST,
        about="The worst placement of its processes. Local: near CPUs only. Mixed: near and far. "
        "Remote: far only. Unpinned: all CPUs. Unknown: the GPU's NUMA node is not known. A gap: "
        "its processes are not known.",
        height=10,
    ),
    timeline_of(
        "Why are they far?",
        Query(f"max by ({GPU}, cause) ({MISMATCH}) == 1", f"{NAMED}: {{{{cause}}}}"),
        mapping=looks.words({1: ("far", looks.ORANGE)}),
        about="Empty: no GPU is far. Allocation: the scheduler gave the job no near CPU. Mask: "
        "near CPUs are allowed, but the mask leaves them out. Unpinned: there is no pin. The "
        "fleet dashboard has the remedies.",
        height=10,
    ),
    table_of(
        "GPUs, and their processes",
        {"gpu": "GPU", "pci_bus_id": "PCI bus id", "uuid": "UUID"},
        [
            Column("NUMA node", f"max by ({GPU}) ({of('affinityd_gpu_numa_node')})"),
            Column(
                "Processes known",
                f"max by ({GPU}) ({of('affinityd_gpu_audited')})",
                levels=looks.Levels([(None, looks.YELLOW), (1, looks.GREEN)]),
            ),
            Column("Processes", f"sum by ({GPU}) ({of('affinityd_gpu_processes')})"),
            Column("Threads", f"sum by ({GPU}) ({of('affinityd_gpu_threads')})"),
            Column(
                "Orphans",
                f"sum by ({GPU}) ({of('affinityd_gpu_orphan_processes')})",
                levels=looks.NONE_IS_GOOD,
            ),
            Column(
                "CPU time far",
                share(increase(FAR, "$__range"), increase(BUSY, "$__range"), GPU),
                looks.SHARE,
                looks.SHARE_LEVELS,
            ),
            Column(
                "Far since",
                f"min by ({GPU}) "
                f"({of('affinityd_gpu_numa_mismatch_start_timestamp_seconds')}) * 1000",
                looks.AGO,
            ),
        ],
        about="`affinityd audit` on the node lists the processes. Processes known: 1 if they are, "
        "else 0. No NUMA node: the machine does not say where the GPU is, so its processes "
        "cannot be judged.",
        sort="CPU time far",
    ),
]


def _infiniband(direction: str) -> str:
    """Return what each RDMA port carries, by node_exporter; only `instance` may name its node.

    Its largest value counts: two jobs may scrape one node_exporter.
    """
    name = f"node_infiniband_port_data_{direction}_bytes_total"
    named, other = (rate(f'{name}{{{CLUSTER},node{sign}""}}') for sign in ("!=", "="))
    by_instance = f'label_replace({other}, "node", "$1", "instance", "(.+?)(?::[0-9]+)?")'
    return f"max by (node, device, port) ({named} or {by_instance})"


def _carried(direction: str) -> str:
    nics = of("affinityd_gpu_nic_info")
    joined = f"{nics} * on (node, device, port) group_left () {_infiniband(direction)}"
    return f"sum by ({GPU}) ({joined})"


NICS = [
    graph_of(
        "What do the NICs of each GPU carry?",
        Query(_carried("received"), f"{NAMED} received"),
        Query(_carried("transmitted"), f"{NAMED} sent"),
        about="Traffic of the RDMA ports that plans give the GPU, by node_exporter's infiniband "
        "collector. A port that GPUs share counts for each. Empty: the node has no such port, "
        "Prometheus scrapes no node_exporter there, or its label node differs.",
        unit=looks.BYTES_PER_SECOND,
    ),
]

WAITS = [
    graph_of(
        "What do the processes of the GPUs wait for?",
        Query(f"sum by (cause) ({rate(WAITED)})", "{{cause}}"),
        about="Seconds in a second that threads could run and did not. Throttled: the CPU limit. "
        "Own threads: the job has more than CPUs. Neighbor: another job's. System: daemons and the "
        "kernel. Steal: the hypervisor. `affinityd why PID` on the node measures one process. "
        "Empty: the kernel does not count it.",
        unit=looks.CPUS,
        stacked=True,
    ),
    graph_of(
        "How long do the processes of each GPU wait?",
        Query(f"sum by ({GPU}) ({rate(WAITED)})", NAMED),
        about="Seconds in a second, of all threads together.",
        unit=looks.CPUS,
    ),
    WAITING_GPUS,
]

COST = [
    IDLE_GPUS,
    graph_of(
        "What share of each GPU's CPU time is far?",
        Query(share(rate(FAR), rate(BUSY), GPU), NAMED),
        about="A thread's time counts for the CPU on which a scan last saw it.",
        unit=looks.SHARE,
    ),
    graph_of(
        "How much host memory is far from each GPU?",
        Query(f"sum by ({GPU}) ({FAR_MEMORY})", NAMED),
        Query(f"sum({of('affinityd_gpu_host_memory_pinned_far_bytes')})", "likely pinned"),
        about="Resident memory of its processes on far NUMA nodes, by a sample of its pages. "
        "Likely pinned: of processes with pages that a driver pinned, which do not move. "
        "`affinityd audit` on the node names the processes, why, and what helps. Empty or 0 as "
        "well where the daemon may not look: it takes CAP_SYS_PTRACE.",
        unit=looks.BYTES,
    ),
    graph_of(
        "How many CPUs work for each GPU?",
        Query(f"sum by ({GPU}) ({rate(BUSY)})", NAMED),
        about="CPU seconds per second of its processes and their descendants, such as DataLoader "
        "workers.",
        unit=looks.CPUS,
        stacked=True,
    ),
    graph_of(
        "Where may the threads of the GPUs' processes run?",
        Query(f"sum by (placement) ({of('affinityd_gpu_threads')})", "{{placement}}"),
        about="Threads by placement. Those that a library such as NCCL or OpenMP has pinned count "
        "here, but are no mismatch.",
        unit=looks.COUNT,
        stacked=True,
        colors=looks.PLACEMENTS,
    ),
    graph_of(
        "Orphans and overlaps",
        Query(f"sum({of('affinityd_gpu_orphan_processes')})", "processes of no living job"),
        Query(f"max({of('affinityd_pin_overlap_cpus')})", "CPUs to which two jobs are pinned"),
        about="Both should be 0.",
        unit=looks.COUNT,
    ),
]
