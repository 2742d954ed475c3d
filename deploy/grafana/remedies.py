"""What the causes of a mismatch mean, for whoever sees a dashboard and nothing else."""

from __future__ import annotations

#: cause → what it says of the process, and what mends it; CAUSES of affinityd.audit.model
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
        "has near CPUs, and is held to others",
        (
            "look at its binding: `--cpu-bind`, `numactl`, `taskset`, `OMP_PLACES`. Start it by "
            "the TaskProlog, `affinityd exec` or `/affinity/run`"
        ),
    ),
    "unpinned": (
        "may run on the whole machine, so on the far side too",
        "start it by the TaskProlog, `affinityd exec` or `/affinity/run`",
    ),
}

_ROWS = [f"| **{cause}** | {what} | {remedy} |" for cause, (what, remedy) in REMEDIES.items()]

MARKDOWN = "\n".join(
    [
        "| cause | the process | what mends it |",
        "| --- | --- | --- |",
        *_ROWS,
        "",
        "`affinityd audit` on the node names the processes, each with its remedy.",
    ]
)
