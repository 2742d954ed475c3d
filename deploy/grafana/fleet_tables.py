"""The tables of the fleet view: nodes and jobs, costliest first, and nodes that are not seen."""

from __future__ import annotations

from deploy.grafana import looks
from deploy.grafana.fleet_series import (
    BUSY,
    CAUSES,
    FAR,
    HELD,
    HELD_FAR,
    JOB_BUSY,
    JOB_FAR,
    MISMATCHED,
    WHOSE,
    gpu_hours,
    of,
    of_job,
)
from deploy.grafana.frame import FLEET, NODE, SAME_TIME, way_to
from deploy.grafana.queries import UP, share
from deploy.grafana.tables import Column, Link, table_of

NO_RULES = "no rows: load the rules of rules/affinityd.yaml"
NO_JOBS = "no jobs, or the daemons run without --job-series (in the chart: settings.jobSeries)"

TO_NODE = Link("Look at this node", way_to(NODE, "var-node=${__value.raw}", SAME_TIME))
TO_JOB = Link("Where does it run?", way_to(FLEET, "var-job_id=${__value.raw}", SAME_TIME))

NODES = table_of(
    "Which nodes run far from their GPUs, and what does it cost?",
    {"node": "Node"},
    [
        Column("GPUs far", f"sum by (node) ({MISMATCHED})", levels=looks.NONE_IS_BETTER),
        Column("of", f"sum by (node) ({of('affinityd_gpus')})"),
        *(
            Column(f"by {cause}", f"sum by (node) ({mismatched} > 0)")
            for cause, mismatched in CAUSES.items()
        ),
        Column("CPU time far", share(FAR, BUSY, "node"), looks.SHARE, looks.SHARE_LEVELS),
        Column("CPU-hours a day", f"sum by (node) ({FAR}) * 24", looks.HOURS),
        Column(
            "Since",
            f"min by (node) ({of('affinityd_gpu_numa_mismatch_start_timestamp_seconds')}) * 1000",
            looks.AGO,
        ),
    ],
    about="GPUs are of now; CPU time and CPU-hours are of the time range above. Since: the oldest "
    "mismatch that still holds, at most as old as the daemon. A click on a node shows its GPUs.",
    sort="CPU-hours a day",
    links={"Node": TO_NODE},
    empty=NO_RULES,
)

JOBS = table_of(
    "Which jobs run far from their GPUs, and what does it cost?",
    {"job_id": "Job", "scheduler": "Scheduler"},
    [
        Column(
            "GPUs far",
            f"sum by (job_id, scheduler) ({of_job('affinityd_job_mismatched_gpus')})",
            levels=looks.NONE_IS_BETTER,
        ),
        Column("of", f"sum by (job_id, scheduler) ({of_job('affinityd_job_gpus')})"),
        Column(
            "CPU time far",
            share(JOB_FAR, JOB_BUSY, "job_id, scheduler"),
            looks.SHARE,
            looks.SHARE_LEVELS,
        ),
        Column("CPU-hours far", f"sum by (job_id, scheduler) ({JOB_FAR}) / 3600", looks.HOURS),
        Column(
            "Since",
            "min by (job_id, scheduler) "
            f"({of_job('affinityd_job_numa_mismatch_start_timestamp_seconds')}) * 1000",
            looks.AGO,
        ),
    ],
    about="Jobs of the time range above, also those that have ended. A pod is named by its uid: "
    "kube_pod_info has its name. `other`: all jobs beyond the N of --job-series.",
    sort="CPU-hours far",
    links={"Job": TO_JOB},
    empty=NO_JOBS,
    width=14,
)

FAR_HOURS = gpu_hours(HELD_FAR, f"{WHOSE}, cause")

PLACED_FAR = table_of(
    "Which jobs were placed far, why, and for how many GPU-hours?",
    {name: name.capitalize() for name in ("namespace", "pod", "container")}
    | {"job_id": "Job", "scheduler": "Scheduler", "cause": "Cause"},
    [
        Column("GPU-hours far", f"{FAR_HOURS} > 0", looks.HOURS),
        Column(
            "of its GPU-hours",
            f"{FAR_HOURS} / on ({WHOSE}) group_left () ({gpu_hours(HELD, WHOSE)} > 0)",
            looks.SHARE,
            looks.SHARE_LEVELS,
        ),
        Column(
            "Nodes",
            f"count by ({WHOSE}, cause) (count by ({WHOSE}, cause, node) "
            f"(last_over_time({of_job(HELD_FAR)}[$__range])))",
        ),
    ],
    about="Jobs of the time range above, also those that have ended. A GPU counts once, by its "
    "first cause. allocation: by kubelet or Slurm; mask: by the job's own mask; unpinned: by no "
    'pin at all. The panel "What to do" has the remedies. Without --pod-resources pods have no '
    "names.",
    sort="GPU-hours far",
    links={"Job": TO_JOB},
    empty=f"none, or {NO_JOBS}, or {NO_RULES.removeprefix('no rows: ')}",
)

NODES_OF_JOBS = table_of(
    "On which nodes do these jobs run?",
    {"node": "Node", "job_id": "Job"},
    [
        Column(
            "GPUs far",
            f"sum by (node, job_id) ({of_job('affinityd_job_mismatched_gpus')})",
            levels=looks.NONE_IS_BETTER,
        ),
        Column("of", f"sum by (node, job_id) ({of_job('affinityd_job_gpus')})"),
    ],
    about="Jobs that run now. A click on a job in the table beside it shows only that job here.",
    sort="GPUs far",
    links={"Node": TO_NODE},
    empty=NO_JOBS,
    width=10,
)

UNSEEN = table_of(
    "Which nodes cannot be seen, and why?",
    {"node": "Node"},
    [
        Column("Daemons down", f"sum by (node) ({of(UP)} == bool 0) > 0"),
        Column(
            "No audit",
            f"count by (node) ({of('affinityd_gpus')} unless on (job, instance) "
            f"{of('affinityd_gpu_audited')})",
        ),
        Column(
            "GPUs not known",
            f"sum by (node) ({of('affinityd_gpu_audited')} == bool 0) > 0",
        ),
        Column(
            "Processes skipped", f"sum by (node) ({of('affinityd_scan_skipped_processes')}) > 0"
        ),
        Column(
            "Last scan",
            f"max by (node) ({of('affinityd_scan_age_seconds')} > "
            f"clamp_min(5 * {of('affinityd_scan_interval_seconds')}, 60))",
            looks.SECONDS,
        ),
    ],
    about="No audit: the daemon does not scan (--scan-interval off; in the chart audit.enabled: "
    "false). GPUs not known: work on the driver, a file /run/affinityd/hold, no NVML (in a pod: "
    "runtimeClassName: nvidia), or no privilege; `affinityd audit` on the node says which. "
    "Last scan: its age, if it is too old.",
    sort="GPUs not known",
    links={"Node": TO_NODE},
    empty="all nodes are seen",
    width=16,
    height=8,
)
