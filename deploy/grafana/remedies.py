"""What causes mean, for a reader who has only the dashboard."""

from __future__ import annotations

#: cause → its meaning for the process, and its remedy; CAUSES of affinityd.topology.nearness
REMEDIES = {
    "allocation": (
        "was given no CPU near its GPU; no pin can help",
        (
            "Slurm: `affinityd slurm check` on the node, then the `Cores=` of `gres.conf`. "
            "Kubernetes: CPU Manager `static` and a Topology Manager policy (`best-effort`, "
            "`restricted`, `single-numa-node`)"
        ),
    ),
    "mask": (
        "may use near CPUs, but its mask leaves them out",
        (
            "find what binds it: `--cpu-bind`, `numactl`, `taskset`, `OMP_PLACES`. Start it by "
            "the TaskProlog, `affinityd exec` or `/affinity/run`"
        ),
    ),
    "unpinned": (
        "has no pin, and may run on far CPUs",
        "start it by the TaskProlog, `affinityd exec` or `/affinity/run`",
    ),
}

_ROWS = [f"| **{cause}** | {what} | {remedy} |" for cause, (what, remedy) in REMEDIES.items()]

MARKDOWN = "\n".join(
    [
        "| cause | the process | remedy |",
        "| --- | --- | --- |",
        *_ROWS,
        "",
        "`affinityd audit` on the node names the processes, each with its remedy.",
    ]
)
