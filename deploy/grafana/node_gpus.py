"""The node view's rows of GPUs: where their processes run, and what that costs."""

from __future__ import annotations

from deploy.grafana import looks
from deploy.grafana.dcgm import IDLE_GPUS
from deploy.grafana.node_series import BUSY, FAR, MISMATCH, NAMED, of
from deploy.grafana.panels import graph_of, timeline_of
from deploy.grafana.queries import GPU, Query, increase, rate, share, worst_placement
from deploy.grafana.tables import Column, table_of

GPUS = [
    timeline_of(
        "Where do the processes of each GPU run?",
        Query(worst_placement(of), NAMED),
        mapping=looks.WORST,
        about="The worst of its processes. Local: near its GPU alone. Mixed: near and far. Remote: "
        "far alone. Unpinned: on the whole machine. A gap: not known.",
        height=10,
    ),
    timeline_of(
        "Why are they far?",
        Query(f"max by ({GPU}, cause) ({MISMATCH}) == 1", f"{NAMED}: {{{{cause}}}}"),
        mapping=looks.words({1: ("far", looks.ORANGE)}),
        about="Empty is good. Allocation: the scheduler gave the job no near CPU. Mask: it has "
        "near CPUs and is held to others. Unpinned: there is no pin. The fleet view says what "
        "to do.",
        height=10,
    ),
    table_of(
        "GPUs, and their processes",
        {"gpu": "GPU", "pci_bus_id": "PCI bus id", "uuid": "UUID"},
        [
            Column("NUMA node", f"max by ({GPU}) ({of('affinityd_gpu_numa_node')})"),
            Column(
                "Seen into",
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
        about="`affinityd audit` on the node has the processes themselves. No NUMA node: the "
        "machine does not say where the GPU is, and nothing about it can be judged.",
        sort="CPU time far",
    ),
]


def _infiniband(direction: str) -> str:
    """Return what each RDMA port carries, by node_exporter; its node may be in `instance` alone."""
    name = f"node_infiniband_port_data_{direction}_bytes_total"
    named, other = (rate(f'{name}{{node{sign}""}}') for sign in ("!=", "="))
    by_instance = f'label_replace({other}, "node", "$1", "instance", "(.+?)(?::[0-9]+)?")'
    return f"sum by (node, device, port) ({named} or {by_instance})"


def _carried(direction: str) -> str:
    nics = of("affinityd_gpu_nic_info")
    joined = f"{nics} * on (node, device, port) group_left () {_infiniband(direction)}"
    return f"sum by ({GPU}) ({joined})"


NICS = [
    graph_of(
        "What do the NICs of each GPU carry?",
        Query(_carried("received"), f"{NAMED} received"),
        Query(_carried("transmitted"), f"{NAMED} sent"),
        about="By node_exporter's infiniband collector, of the RDMA ports that plans give the GPU. "
        "A port that GPUs share counts for each. Empty: there are none, or Prometheus scrapes no "
        "node_exporter.",
        unit=looks.BYTES_PER_SECOND,
    ),
]

COST = [
    IDLE_GPUS,
    graph_of(
        "What share of each GPU's CPU time is far?",
        Query(share(rate(FAR), rate(BUSY), GPU), NAMED),
        about="By the CPU on which each thread was last seen, every scan.",
        unit=looks.SHARE,
    ),
    graph_of(
        "How many CPUs work for each GPU?",
        Query(f"sum by ({GPU}) ({rate(BUSY)})", NAMED),
        about="Of its processes and their descendants, DataLoader workers too.",
        unit=looks.CPUS,
        stacked=True,
    ),
    graph_of(
        "Where may their threads run?",
        Query(f"sum by (placement) ({of('affinityd_gpu_threads')})", "{{placement}}"),
        about="Threads that a library pinned itself, as NCCL and OpenMP do, are among them and "
        "make no mismatch.",
        unit=looks.COUNT,
        stacked=True,
        colors=looks.PLACEMENTS,
    ),
    graph_of(
        "Orphans and overlaps",
        Query(f"sum({of('affinityd_gpu_orphan_processes')})", "processes of no living job"),
        Query(f"max({of('affinityd_pin_overlap_cpus')})", "CPUs to which two jobs are pinned"),
        about="Both are 0 on a node that is well.",
        unit=looks.COUNT,
    ),
]
