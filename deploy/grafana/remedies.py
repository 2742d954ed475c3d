"""What causes and reasons mean, for a reader who has only the dashboard."""

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

#: Why enforcement leaves a process alone → what to do; REASONS of affinityd.enforce.model
REASONS = {
    "allocation": (
        "its job was given no CPU near its GPU",
        "`affinityd enforce` names the line of `gres.conf` or the setting of kubelet",
    ),
    "given_up": (
        "its pin was reset or refused again and again",
        "find what binds it: `KMP_AFFINITY`, `OMP_PROC_BIND`, its launcher; or leave it by a rule",
    ),
    "on_purpose": ("it was pinned on purpose", "nothing, if that is intended"),
    "no_plan": ("its mode has no CPUs for it", "`affinityd enforce` says what to change"),
    "no_job": ("it is in no job", "nothing; to pin it, name its `cgroup` in a rule"),
    "no_policy": ("no policy could be read yet", "correct the file: the log says where"),
    "policy": ("a rule of the policy leaves it alone", "nothing, if that is intended"),
    "opted_out": ("its environment has `AFFINITYD=off`", "nothing, if that is intended"),
    "orphan": ("no job owns it", "end it: the next job finds the GPU's memory taken"),
    "unknown_place": ("its GPU's NUMA node is not known", "`affinityd doctor` on the node"),
    "unknown_cpuset": (
        "its cpuset is not known",
        "in a pod: `hostPID: true`; on Slurm: `ConstrainCores=yes` in `cgroup.conf`",
    ),
    "young": ("it has run for less than 10 s", "nothing: the next scan judges it"),
    "waiting": ("its pin was reset or refused", "nothing: it is pinned again later"),
    "daemon": ("it is a known system daemon", "nothing"),
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
