"""The series of the fleet view."""

from __future__ import annotations

from deploy.grafana.queries import CHOSEN_NODES, Selector, increase
from deploy.grafana.remedies import REMEDIES

of = Selector(CHOSEN_NODES)
of_job = Selector(f'{CHOSEN_NODES},job_id=~"$job_id"')

#: Recorded by rules/affinityd.yaml: a day of every GPU's counters is too much for each refresh.
MISMATCHED = of("node:affinityd_gpu_numa_mismatch:sum_max")
BY_CAUSE = "node_cause:affinityd_gpu_numa_mismatch:sum"
CAUSES = {it: of(BY_CAUSE, f'cause="{it}"') for it in REMEDIES}
RATE_FAR = of("node:affinityd_gpu_remote_cpu_seconds:rate5m")
RATE_BUSY = of("node:affinityd_gpu_cpu_seconds:rate5m")
FAR, BUSY = f"avg_over_time({RATE_FAR}[$__range])", f"avg_over_time({RATE_BUSY}[$__range])"

JOB_FAR = increase(of_job("affinityd_job_remote_cpu_seconds_total"), "$__range")
JOB_BUSY = increase(of_job("affinityd_job_cpu_seconds_total"), "$__range")


def gpu_hours(record: str, by: str) -> str:
    """Return the GPU-hours of jobs in the time range: the records are rates of 5 minutes."""
    return f"sum by ({by}) (sum_over_time({of_job(record)}[$__range:5m])) / 12"


WHOSE = "namespace, pod, container, job_id, scheduler"  #: the labels of a job
HELD = "node_job:affinityd_job_gpu_seconds:rate5m"
HELD_FAR = "node_job_cause:affinityd_job_mismatched_gpu_seconds:rate5m"

PLANNED = of("affinityd_plans_total", 'result="ok",client="job"')
REFUSED = of("affinityd_plans_total", 'result!="ok",client="job"')
