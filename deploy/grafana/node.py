"""The node view: each GPU's processes over time, what they cost, and the daemon itself."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import looks
from deploy.grafana.enforce import pinning
from deploy.grafana.frame import NODE, dashboard_of, nodes_of
from deploy.grafana.node_gpus import COST, GPUS, NICS
from deploy.grafana.node_series import BUCKETS, BUSY, FAR, MISMATCH, PLANNED, REFUSED, of
from deploy.grafana.panels import graph_of, stat_of
from deploy.grafana.queries import GPU, Query, increase, or_none, rate, share

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
        about="On: the kernel unmaps pages to see which CPUs use them, which stalls GPU programs. "
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

DAEMON = [
    graph_of(
        "What does a scan cost, and how old is the last?",
        Query(f"max({of('affinityd_scan_duration_seconds')})", "duration"),
        Query(f"max({of('affinityd_enforce_duration_seconds')})", "pinning after it"),
        Query(f"max({of('affinityd_scan_age_seconds')})", "age"),
        about="An age that only grows is a scan that hangs: look at the daemon's log.",
        unit=looks.SECONDS,
    ),
    graph_of(
        "How many processes were left out?",
        Query(f"max({of('affinityd_scan_skipped_processes')})", "skipped"),
        Query(f"max({of('affinityd_enforce_unreached_processes')})", "not pinned in time"),
        about="A scan ends after five seconds; what it did not reach is counted here and nowhere. "
        "What was not pinned in time is pinned after the next.",
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
    return dashboard_of(
        NODE,
        {
            "How is it?": NOW,
            "GPUs": GPUS,
            "What it costs": COST,
            "NICs": NICS,
            "Enforcement": pinning(of),
            "The daemon": DAEMON,
        },
        [nodes_of(several=False)],
        title="affinityd: node",
        about="Where the processes of each GPU run, what is far, and how the daemon does.",
        since="now-6h",
    )
