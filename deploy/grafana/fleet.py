"""The fleet view: who runs far from its GPU, why, since when, and what it costs."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import looks
from deploy.grafana.enforce import pinning
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
from deploy.grafana.fleet_tables import HINDERED, JOBS, NODES, NODES_OF_JOBS, UNSEEN
from deploy.grafana.frame import ANY, FLEET, dashboard_of, nodes_of, variable_of
from deploy.grafana.panels import graph_of, stat_of, words_of
from deploy.grafana.queries import UP, Query, or_none, rate, share
from deploy.grafana.remedies import MARKDOWN

NOW = [
    stat_of(
        "GPUs that run far from their CPUs",
        Query(or_none(f"sum({MISMATCHED})"), "far"),
        Query(f"sum({of('affinityd_gpus')})", "of"),
        about="A process of theirs is remote, mixed or unpinned now. The tables below say where.",
    ),
    stat_of(
        "CPU time far from the GPU",
        Query(share(FAR, BUSY)),
        about="Share of the CPU time of the GPUs' processes, in the time range above. Each such "
        "access to memory or GPU crosses the interconnect between the sockets.",
        unit=looks.SHARE,
        levels=looks.SHARE_LEVELS,
    ),
    stat_of(
        "CPU-hours a day far from the GPU",
        Query(f"sum({FAR}) * 24"),
        about="At the pace of the time range above.",
        unit=looks.HOURS,
    ),
    stat_of(
        "Nodes with such a GPU",
        Query(or_none(f"count(sum by (node) ({MISMATCHED}) > 0)"), "far"),
        Query(f"count(count by (node) ({of('affinityd_gpus')}))", "of"),
        about="Many nodes and one cause: the scheduler. A few nodes: their gres.conf or BIOS.",
    ),
    stat_of(
        "Processes of no living job",
        Query(or_none(f"sum({of('affinityd_gpu_orphan_processes')})")),
        about="They hold a GPU's memory, and who started them is gone: the next job finds it full. "
        "`affinityd audit` on the node names them; end them there.",
        levels=looks.NONE_IS_GOOD,
    ),
    stat_of(
        "GPUs whose processes are not known",
        Query(or_none(f"count({of('affinityd_gpu_audited')} == 0)")),
        about="The driver is being worked on, NVML is missing, or "
        "the daemon lacks the right. The table below has the nodes.",
        levels=looks.NONE_IS_BETTER,
    ),
]

WHY = [
    graph_of(
        "Why are GPUs far from their CPUs?",
        Query(f"sum by (cause) ({of(BY_CAUSE)})", "{{cause}}"),
        about="GPUs with a process that runs far away, by cause; beside it is what to do. A GPU "
        "may have two.",
        unit=looks.COUNT,
        colors={"allocation": looks.RED, "mask": looks.ORANGE, "unpinned": looks.YELLOW},
    ),
    words_of("What to do", MARKDOWN),
    graph_of(
        "How many CPUs work for GPUs, near and far?",
        Query(f"sum({RATE_FAR})", "far"),
        Query(f"sum({RATE_BUSY}) - sum({RATE_FAR})", "near"),
        about="CPU seconds a second, by the CPU on which each thread was last seen.",
        unit=looks.CPUS,
        stacked=True,
        colors={"far": looks.RED, "near": looks.GREEN},
    ),
    graph_of(
        "What did jobs get that asked for a plan?",
        Query(f"sum by (locality) ({rate(PLANNED)})", "{{locality}}"),
        about="The worst locality of any rank. Remote: the job's cpuset had no CPU near its GPU, "
        "which is the scheduler's to fix.",
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
        about="Not ready: they run and could not read their machine; their log says why.",
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
        about="Sites that leave AFFINITYD_MODE alone see `node`.",
        unit=looks.REQUESTS_PER_SECOND,
        stacked=True,
    ),
    graph_of(
        "What is refused?",
        Query(f"sum by (result) ({rate(REFUSED)})", "{{result}}"),
        about="422 malformed, 404 no such GPU, 409 cannot be satisfied, 503 not ready. The jobs' "
        "own logs have the sentence.",
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
            "Where, and since when?": [NODES, JOBS, NODES_OF_JOBS],
            "Why?": WHY,
            "Enforcement": [*pinning(of), HINDERED],
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
