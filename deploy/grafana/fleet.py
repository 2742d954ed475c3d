"""The fleet view: who runs far from its GPU, why, since when, and what it costs."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import looks
from deploy.grafana.fleet_series import (
    BUSY,
    BY_CAUSE,
    FAR,
    MISMATCHED,
    PLANNED,
    RATE_BUSY,
    RATE_FAR,
    REFUSED,
    of,
)
from deploy.grafana.fleet_tables import JOBS, NODES, NODES_OF_JOBS, PLACED_FAR, UNSEEN
from deploy.grafana.frame import ANY, FLEET, dashboard_of, nodes_of, variable_of
from deploy.grafana.panels import graph_of, stat_of, words_of
from deploy.grafana.queries import UP, Query, or_none, rate, share
from deploy.grafana.remedies import MARKDOWN

NOW = [
    stat_of(
        "GPUs that run far from their CPUs",
        Query(or_none(f"sum({MISMATCHED})"), "far"),
        Query(f"sum({of('affinityd_gpus')})", "of"),
        about="GPUs with a process that is remote, mixed or unpinned now. The tables below have "
        "their nodes and jobs.",
    ),
    stat_of(
        "CPU time far from the GPU",
        Query(share(FAR, BUSY)),
        about="Share of the CPU time of the GPUs' processes that far CPUs spent, in the time range "
        "above. From a far CPU, each access to the GPU crosses the link between NUMA nodes.",
        unit=looks.SHARE,
        levels=looks.SHARE_LEVELS,
    ),
    stat_of(
        "CPU-hours a day far from the GPU",
        Query(f"sum({FAR}) * 24"),
        about="CPU time of far CPUs in 24 hours, at the average rate of the time range above.",
        unit=looks.HOURS,
    ),
    stat_of(
        "Nodes with a GPU that runs far",
        Query(or_none(f"count(sum by (node) ({MISMATCHED}) > 0)"), "far"),
        Query(f"count(count by (node) ({of('affinityd_gpus')}))", "of"),
        about="Many nodes with one cause: look at the scheduler's settings. A few nodes: look at "
        "their gres.conf and firmware.",
    ),
    stat_of(
        "Processes of no living job",
        Query(or_none(f"sum({of('affinityd_gpu_orphan_processes')})")),
        about="Orphans hold a GPU, and no job owns them: the next job finds the GPU's "
        "memory taken. `affinityd audit --watch` on the node says which to end.",
        levels=looks.NONE_IS_GOOD,
    ),
    stat_of(
        "GPUs whose processes are not known",
        Query(or_none(f"count({of('affinityd_gpu_audited')} == 0)")),
        about="Work on the driver is under way, NVML does not answer, or the daemon lacks a "
        "privilege. The table of nodes that cannot be seen, below, names them.",
        levels=looks.NONE_IS_BETTER,
    ),
]

WHY = [
    graph_of(
        "Why are GPUs far from their CPUs?",
        Query(f"sum by (cause) ({of(BY_CAUSE)})", "{{cause}}"),
        about="GPUs with a process that may run on far CPUs, by cause. A GPU may have two causes. "
        "The table beside it has the remedies.",
        unit=looks.COUNT,
        colors={"allocation": looks.RED, "mask": looks.ORANGE, "unpinned": looks.YELLOW},
    ),
    words_of("What to do", MARKDOWN),
    graph_of(
        "How many CPUs work for GPUs, near and far?",
        Query(f"sum({RATE_FAR})", "far"),
        Query(f"sum({RATE_BUSY}) - sum({RATE_FAR})", "near"),
        about="CPU seconds per second. A thread's time counts for its last CPU.",
        unit=looks.CPUS,
        stacked=True,
        colors={"far": looks.RED, "near": looks.GREEN},
    ),
    graph_of(
        "Which plans did jobs get?",
        Query(f"sum by (locality) ({rate(PLANNED)})", "{{locality}}"),
        about="Plans by the worst locality of any rank. Remote: the job's cpuset had no CPU near "
        "its GPU; correct the scheduler's settings.",
        unit=looks.REQUESTS_PER_SECOND,
        stacked=True,
        colors={"local": looks.GREEN, "remote": looks.RED, "unknown": looks.GREY},
    ),
]

SIGHT = [
    UNSEEN,
    stat_of(
        "Daemons that answer",
        Query(f"sum({of(UP)})", "answer"),
        Query(
            or_none(
                f"count({of('affinityd_build_info')} unless on (job, instance) "
                f"{of('affinityd_topology_generation')})"
            ),
            "not ready",
        ),
        about="Not ready: the daemon runs and could not read its machine. Its log says why.",
        width=4,
    ),
    stat_of(
        "Versions",
        Query(f"count by (version) ({of('affinityd_build_info')})", "{{version}}"),
        about="Daemons of each release.",
    ),
]

PLANS = [
    graph_of(
        "In which mode are plans made?",
        Query(f"sum by (mode) ({rate(PLANNED)})", "{{mode}}"),
        about="Without AFFINITYD_MODE, jobs ask for `node`. A request that names no mode gets "
        "`unique_contiguous`.",
        unit=looks.REQUESTS_PER_SECOND,
        stacked=True,
    ),
    graph_of(
        "What is refused?",
        Query(f"sum by (result) ({rate(REFUSED)})", "{{result}}"),
        about="Requests for a plan by HTTP status. 404: no such GPU. 409: cannot be satisfied. "
        "422: malformed. 503: not ready. The jobs' logs have the error message.",
        unit=looks.REQUESTS_PER_SECOND,
        stacked=True,
    ),
]


def fleet() -> Dashboard:
    """Return the dashboard."""
    jobs = f"label_values({of('affinityd_job_gpus')}, job_id)"
    return dashboard_of(
        FLEET,
        {
            "How bad is it?": NOW,
            "Where, and since when?": [NODES, PLACED_FAR, JOBS, NODES_OF_JOBS],
            "Why?": WHY,
            "Can all nodes be seen?": SIGHT,
            "Plans": PLANS,
        },
        [
            nodes_of(several=True),
            variable_of("job_id", "Job", jobs, several=True, everything=ANY),
        ],
        title="affinityd: fleet",
        about="Which nodes and jobs run far from their GPUs, why, since when, and what it costs.",
        since="now-24h",
    )
