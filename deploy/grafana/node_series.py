"""The series of the node view."""

from __future__ import annotations

from deploy.grafana.queries import CHOSEN_NODE, Selector, rate

of = Selector(CHOSEN_NODE)

NAMED = "GPU {{gpu}} {{pci_bus_id}}"  #: a GPU's legend

FAR, BUSY = of("affinityd_gpu_remote_cpu_seconds_total"), of("affinityd_gpu_cpu_seconds_total")
WAITED = of("affinityd_gpu_wait_seconds_total")
FAR_MEMORY = of("affinityd_gpu_host_memory_bytes", 'placement="far"')
MISMATCH = of("affinityd_gpu_numa_mismatch")
PLANNED = of("affinityd_plans_total", 'result="ok",client="job"')
REFUSED = of("affinityd_plans_total", 'result!="ok",client="job"')
BUCKETS = f"sum by (le) ({rate(of('affinityd_plan_duration_seconds_bucket'))})"
