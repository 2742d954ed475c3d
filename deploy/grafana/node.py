"""The node view: each GPU's processes over time, what they cost, and the daemon itself."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import looks
from deploy.grafana.frame import NODE, dashboard_of, nodes_of
from deploy.grafana.node_gpus import COST, GPUS, NICS, WAITS
from deploy.grafana.node_series import BUCKETS, BUSY, FAR, MISMATCH, PLANNED, REFUSED, of
from deploy.grafana.panels import graph_of, stat_of
from deploy.grafana.queries import GPU, Query, increase, or_none, rate, share

NOW = [
    stat_of(
        "GPUs that run far from their CPUs",
        Query(or_none(f"sum(max by ({GPU}) ({MISMATCH}))"), "far"),
        Query(f"sum({of('affinityd_gpus')})", "of"),
        about="GPUs with a process that is remote, mixed or unpinned now.",
    ),
    stat_of(
        "CPU time far from the GPU",
        Query(share(increase(FAR, "$__range"), increase(BUSY, "$__range"))),
        about="Share of the CPU time of the GPUs' processes that far CPUs spent, in the time range "
        "above.",
        unit=looks.SHARE,
        levels=looks.SHARE_LEVELS,
    ),
    stat_of(
        "Processes of no living job",
        Query(or_none(f"sum({of('affinityd_gpu_orphan_processes')})")),
        about="Orphans hold a GPU, and no job owns them: the next job finds the GPU's "
        "memory taken. `affinityd audit --watch` on the node says which to end.",
        levels=looks.NONE_IS_GOOD,
    ),
    stat_of(
        "CPUs to which two jobs are pinned",
        Query(f"max({of('affinityd_pin_overlap_cpus')})"),
        about="Each job is pinned as if these CPUs were its own, and slows the others down. "
        "`affinityd audit` on the node names the jobs. AFFINITYD_SHARE=node keeps plans apart.",
        levels=looks.NONE_IS_GOOD,
    ),
    stat_of(
        "Automatic NUMA balancing",
        Query(f"max({of('affinityd_numa_balancing')})"),
        about="On: the kernel unmaps pages to see which CPUs use them, which stalls GPU programs. "
        "To turn it off: `sysctl -w kernel.numa_balancing=0`, and a file in /etc/sysctl.d.",
        mapping=looks.BALANCING,
        levels=looks.NONE_IS_GOOD,
    ),
    stat_of(
        "Last scan",
        Query(f"max({of('affinityd_scan_age_seconds')})"),
        about="The age of the last scan, and so of these panels. If it is more than a few times "
        "--scan-interval (15 s), a scan hangs or fails: the daemon's log says which.",
        unit=looks.SECONDS,
        levels=looks.Levels([(None, looks.GREEN), (75, looks.YELLOW), (300, looks.RED)]),
    ),
]

DAEMON = [
    graph_of(
        "What does a scan cost, and how old is the last?",
        Query(f"max({of('affinityd_scan_duration_seconds')})", "duration"),
        Query(f"max({of('affinityd_scan_age_seconds')})", "age"),
        about="If the age only grows, a scan hangs or fails: look at the daemon's log.",
        unit=looks.SECONDS,
    ),
    graph_of(
        "How many processes were left out?",
        Query(f"max({of('affinityd_scan_skipped_processes')})", "skipped"),
        about="Skipped: a scan did not reach them within its time limit, and no other panel counts "
        "them.",
        unit=looks.COUNT,
    ),
    graph_of(
        "Which plans did jobs get?",
        Query(f"sum by (locality) ({rate(PLANNED)})", "{{locality}}"),
        Query(f"sum by (result) ({rate(REFUSED)})", "refused: {{result}}"),
        about="Plans by the worst locality of any rank; refusals by HTTP status.",
        unit=looks.REQUESTS_PER_SECOND,
        stacked=True,
        colors={"local": looks.GREEN, "remote": looks.RED, "unknown": looks.GREY},
    ),
    graph_of(
        "How long does a plan take?",
        Query(f"histogram_quantile(0.5, {BUCKETS})", "median"),
        Query(f"histogram_quantile(0.99, {BUCKETS})", "99 %"),
        about="Remembered answers are not planned again, and are not counted here.",
        unit=looks.SECONDS,
    ),
    graph_of(
        "CPUs",
        Query(f"sum by (state) ({of('affinityd_cpus')})", "{{state}}"),
        about="CPUs of the node. Possible but not online: offline. Reserved: no plan uses them.",
        unit=looks.COUNT,
    ),
    graph_of(
        "Has the topology changed?",
        Query(f"max(changes({of('affinityd_topology_generation')}[$__rate_interval]))", "changes"),
        about="How often a new reading differed: CPUs, GPUs or a driver came or went.",
        unit=looks.COUNT,
    ),
]


def node() -> Dashboard:
    """Return the dashboard."""
    return dashboard_of(
        NODE,
        {
            "Now": NOW,
            "GPUs": GPUS,
            "What it costs": COST,
            "Why GPUs wait": WAITS,
            "NICs": NICS,
            "The daemon": DAEMON,
        },
        [nodes_of(several=False)],
        title="affinityd: node",
        about="Where the processes of each GPU run, which are far, and how the daemon works.",
        since="now-6h",
    )
