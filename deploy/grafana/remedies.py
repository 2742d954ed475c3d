"""What causes and reasons mean, for a reader who has only the dashboard."""

from __future__ import annotations

#: cause → its meaning for the process, and its remedy; CAUSES of affinityd.audit.model
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

#: Why enforcement leaves a process alone → what to do; REASONS of affinityd.enforce.model
REASONS = {
    "allocation": (
        "its job was given no CPU near its GPU",
        "as for the cause `allocation`; `affinityd enforce` has the line or the setting",
    ),
    "given_up": (
        "it was reset again and again",
        "find who binds it: `KMP_AFFINITY`, `OMP_PROC_BIND`, its launcher; or a rule to leave it",
    ),
    "on_purpose": ("it was pinned on purpose", "nothing, if that is so"),
    "no_plan": ("there is no plan for it", "`affinityd enforce` says why; other settings"),
    "no_job": ("it is in no job", "a rule with its `cgroup`, if it is one"),
    "no_policy": ("the policy has never been readable", "correct the file: the log says where"),
    "policy": ("a rule leaves it", "nothing, if that is so"),
    "opted_out": ("its environment has `AFFINITYD=off`", "nothing, if that is so"),
    "orphan": ("its job is over", "end it: the next job finds the GPU's memory taken"),
    "unknown_place": ("its GPU's NUMA node is not known", "`affinityd doctor` on the node"),
    "unknown_cpuset": ("its cgroup cannot be read", "in a pod: `hostPID`, which brings cgroups"),
    "young": ("it has just started", "nothing: it is looked at again"),
    "waiting": ("it was reset lately", "nothing: it is pinned again later"),
    "daemon": ("it is known to run on every node", "nothing"),
}

_ROWS = [f"| **{cause}** | {what} | {remedy} |" for cause, (what, remedy) in REMEDIES.items()]

LEFT_ALONE = "\n".join(
    [
        "| reason | the process | what to do |",
        "| --- | --- | --- |",
        *(f"| **{reason}** | {what} | {remedy} |" for reason, (what, remedy) in REASONS.items()),
    ]
)

MARKDOWN = "\n".join(
    [
        "| cause | the process | remedy |",
        "| --- | --- | --- |",
        *_ROWS,
        "",
        "`affinityd audit` on the node names the processes, each with its remedy.",
    ]
)
