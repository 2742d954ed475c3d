"""The node view: each GPU's processes over time, what they cost, and the daemon itself."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import looks
from deploy.grafana.frame import NODE, dashboard_of, variable_of
from deploy.grafana.panels import graph_of, stat_of, timeline_of
from deploy.grafana.queries import (
    CHOSEN_NODE,
    GPU,
    JOB,
    Query,
    Selector,
    increase,
    or_none,
    rate,
    share,
    worst_placement,
)
from deploy.grafana.tables import Column, table_of

of = Selector(CHOSEN_NODE)

NAMED = "GPU {{gpu}} {{pci_bus_id}}"  #: a GPU's legend

FAR, BUSY = of("affinityd_gpu_remote_cpu_seconds_total"), of("affinityd_gpu_cpu_seconds_total")
MISMATCH = of("affinityd_gpu_numa_mismatch")
PLANNED = of("affinityd_plans_total", 'result="ok"')
REFUSED = of("affinityd_plans_total", 'result!="ok"')
BUCKETS = f"sum by (le) ({rate(of('affinityd_plan_duration_seconds_bucket'))})"

NOW = [
    stat_of(
        "GPUs that run far from their CPUs",
        Query(or_none(f"sum(max by ({GPU}) ({MISMATCH}))"), "far"),
        Query(f"sum({of('affinityd_gpus')})", "of"),
        about="A process of theirs is remote, mixed or unpinned now.",
    ),
    stat_of(
        "CPU time far from the GPU",
        Query(share(increase(FAR, "$__range"), increase(BUSY, "$__range"))),
        about="Share of the CPU time of the GPUs' processes, in the time range above.",
        unit=looks.SHARE,
        levels=looks.SHARE_LEVELS,
    ),
    stat_of(
        "Processes of no living job",
        Query(or_none(f"sum({of('affinityd_gpu_orphan_processes')})")),
        about="They hold a GPU's memory, and who started them is gone. `affinityd audit` here "
        "names them; end them before the next job does not fit.",
        levels=looks.NONE_IS_GOOD,
    ),
    stat_of(
        "CPUs to which two jobs are pinned",
        Query(f"max({of('affinityd_pin_overlap_cpus')})"),
        about="Each believes that they are its own, and they halve each other. "
        "`affinityd audit` names the jobs; AFFINITYD_SHARE=node keeps them apart.",
        levels=looks.NONE_IS_GOOD,
    ),
    stat_of(
        "Automatic NUMA balancing",
        Query(f"max({of('affinityd_numa_balancing')})"),
        about="On: the kernel unmaps pages to see who uses them, which stalls GPU programs. "
        "`sysctl kernel.numa_balancing=0`, and a file in /etc/sysctl.d.",
        mapping=looks.BALANCING,
        levels=looks.NONE_IS_GOOD,
    ),
    stat_of(
        "Last scan",
        Query(f"max({of('affinityd_scan_age_seconds')})"),
        about="How old all of this is. More than a few --scan-interval (15 s): a scan hangs, or "
        "fails; the daemon's log says which.",
        unit=looks.SECONDS,
        levels=looks.Levels([(None, looks.GREEN), (75, looks.YELLOW), (300, looks.RED)]),
    ),
]

GPUS = [
    timeline_of(
        "Where do the processes of each GPU run?",
        Query(worst_placement(of), NAMED),
        mapping=looks.WORST,
        about="The worst of its processes. Local: near its GPU alone. Mixed: near and far. Remote: "
        "far alone. Unpinned: on the whole machine. A gap: nobody could see.",
        height=10,
    ),
    timeline_of(
        "Why are they far?",
        Query(f"max by ({GPU}, cause) ({MISMATCH}) == 1", f"{NAMED}: {{{{cause}}}}"),
        mapping=looks.words({1: ("far", looks.ORANGE)}),
        about="Empty is good. Allocation: the scheduler gave the job no near CPU. Mask: it has "
        "near CPUs and is held to others. Unpinned: nobody pinned it. The fleet view says what "
        "to do.",
        height=10,
    ),
    table_of(
        "GPUs, and who uses them",
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

COST = [
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

DAEMON = [
    graph_of(
        "What does a scan cost, and how old is the last?",
        Query(f"max({of('affinityd_scan_duration_seconds')})", "duration"),
        Query(f"max({of('affinityd_scan_age_seconds')})", "age"),
        about="An age that only grows is a scan that hangs: look at the daemon's log.",
        unit=looks.SECONDS,
    ),
    graph_of(
        "How many processes were left out?",
        Query(f"max({of('affinityd_scan_skipped_processes')})", "skipped"),
        about="A scan ends after five seconds; what it did not reach is counted here and nowhere.",
        unit=looks.COUNT,
    ),
    graph_of(
        "What did jobs get that asked for a plan?",
        Query(f"sum by (locality) ({rate(PLANNED)})", "{{locality}}"),
        Query(f"sum by (result) ({rate(REFUSED)})", "refused: {{result}}"),
        about="The worst locality of any rank; refusals by their HTTP status.",
        unit=looks.REQUESTS_PER_SECOND,
        stacked=True,
        colors={"local": looks.GREEN, "remote": looks.RED, "unknown": looks.GREY},
    ),
    graph_of(
        "How long does a plan take?",
        Query(f"histogram_quantile(0.5, {BUCKETS})", "median"),
        Query(f"histogram_quantile(0.99, {BUCKETS})", "99 %"),
        about="A remembered answer is not planned again and not counted here.",
        unit=looks.SECONDS,
    ),
    graph_of(
        "CPUs",
        Query(f"sum by (state) ({of('affinityd_cpus')})", "{{state}}"),
        about="Possible and not online: taken offline. Reserved: given to no rank.",
        unit=looks.COUNT,
    ),
    graph_of(
        "Has the topology changed?",
        Query(f"max(changes({of('affinityd_topology_generation')}[$__rate_interval]))", "changes"),
        about="Readings that differed from the one before: CPUs, GPUs or a driver came or went.",
        unit=looks.COUNT,
    ),
]


def node() -> Dashboard:
    """Return the dashboard."""
    nodes = f"label_values(affinityd_build_info{{{JOB}}}, node)"
    return dashboard_of(
        NODE,
        {"How is it?": NOW, "GPUs": GPUS, "What it costs": COST, "The daemon": DAEMON},
        [variable_of("node", "Node", nodes, several=False)],
        title="affinityd: node",
        about="Where the processes of each GPU run, what is far, and how the daemon does.",
        since="now-6h",
    )
