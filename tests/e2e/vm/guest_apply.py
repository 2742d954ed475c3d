"""Runs in the virtual machine: applies plans there, and reports the results."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.vm import inside
from tests.e2e.vm.hardware import BARE_NODE, GPU_NODES, NODES, distance
from tests.e2e.vm.inside import Document, Ended, bring, cgroup, program, ran, running, stage
from tests.e2e.vm.warm import affinityd, serving

FIRST_GPU = ("--gpus", "0")  #: on node 3

#: The ranks whose plan is made from each source.
RANKS = {"sysfs": (0, 3, 7), "daemon": range(len(GPU_NODES)), "node.json": (0, 3, 7)}
MODES = ("node", "unique_contiguous")

#: A command that prints its mask, and the environment with which it was started.
LOOK = ("cat", "/proc/self/status", "/proc/self/environ")

#: Fills memory, after numactl has printed the policy of get_mempolicy(2).
SHOW_AND_FILL = ("sh", "-c", 'numactl --show && exec "$0" "$@"', *inside.FILL)

MANY = ("--gpus", "0,2,4", "--memory")
BARE = ("--gpus", "6")  #: on the node without memory
NEAR_BARE = " ".join(f"{node}" for node in range(NODES) if distance(BARE_NODE, node) == 12)
OUTSIDE = "bind, outside Mems_allowed"  #: Mems_allowed is node 2

#: Ranks that fill memory → the options of `affinityd exec`, the policy and its nodes by
#: get_mempolicy(2), the policy by numa_maps, and the nodes on which the rank's pages may be.
FILLERS: dict[str, tuple[Sequence[str], str, str, str, str]] = {
    "no policy": (FIRST_GPU, "default", "", "default", "3"),
    "local": ((*FIRST_GPU, "--memory", "local"), "local", "", "local", "3"),
    "preferred": ((*FIRST_GPU, "--memory", "preferred"), "preferred", "3", "prefer:3", "3"),
    "bind": ((*FIRST_GPU, "--memory", "bind"), "bind", "3", "bind:3", "3"),
    OUTSIDE: ((*FIRST_GPU, "--memory", "bind"), "default", "", "default", "2"),
    "several": ((*MANY, "preferred"), "preferred-many", "1 3 7", "prefer (many):1,3,7", "1 3 7"),
    "interleave": ((*MANY, "interleave"), "interleave", "1 3 7", "interleave:1,3,7", "1 3 7"),
    "interleave, one rank": (
        *(("--rank", "0", "--memory", "interleave"), "interleave", "1 3 4 7"),
        *("interleave:1,3-4,7", "1 3 4 7"),  # node 4 is near the GPUs on node 5, without memory
    ),
    "no policy, no memory near": (BARE, "default", "", "default", NEAR_BARE),
    "bind, no memory near": ((*BARE, "--memory", "bind"), "bind", "4", "bind:4", "4"),
}


#: The cpuset of a rank → a command, then the rank's mask, and the command's status and output.
SHRINKING = {
    "8-15": ("verify", "12-15", 0, ""),
    "8-9": ("verify", "8-9", 1, "GPU 0 is on node 3, and its cpuset, 8-9, has no CPU there"),
    "8-9, pinned": ("pin", "8-9", 0, "remote_home: rank 0 has CPUs away from NUMA node 3"),
    "8-15, pinned": ("pin", "12-15", 0, "1 thread pinned to CPUs 12-15\n"),
}


def main() -> Document:
    report: Document = {}
    bring("31", online=True)
    stage("ranks, by sysfs")
    report["ranks"] = {"sysfs": ranks("sysfs")}
    stage("the daemon starts")
    daemon = serving()
    stage("ranks, by the daemon")
    report["ranks"]["daemon"] = ranks("daemon")
    stage("a CPU goes and comes")
    bring("12", online=False)
    without = daemon.plan("gpus=0&mode=node")["cpulist"]
    bring("12", online=True)
    report["hotplug"] = [without, daemon.plan("gpus=0&mode=node")["cpulist"]]
    stage("callers")
    report["callers"] = callers()
    stage("memory")
    groups = {OUTSIDE: cgroup("mems", mems="2")}
    report["memory"] = {
        name: memory_of(exec_(options, SHOW_AND_FILL, group=groups.get(name)))
        for name, (options, *_) in FILLERS.items()
    }
    stage("cpusets")
    cgroup("site", cpus="8-15")
    for name, group in {"far": cgroup("far", cpus="16-19"), "below": cgroup("site/job")}.items():
        report[name] = place(exec_(FIRST_GPU, LOOK, group=group))
    report["shrinking"] = shrinking()
    stage("ranks, by node.json")
    daemon.stop()
    last = inside.addresses()[-1]  # node.json still has this GPU
    (inside.PCI_FOLDER / last / "remove").write_text("1")
    report["ranks"]["node.json"] = ranks("node.json")
    return report


def ranks(source: str) -> dict[str, Any]:
    size = {"LOCAL_WORLD_SIZE": f"{len(GPU_NODES)}"}
    envs = [{"LOCAL_RANK": f"{rank}", **size} for rank in RANKS[source]]
    return {mode: [place(exec_(("--mode", mode), LOOK, env=env)) for env in envs] for mode in MODES}


def callers() -> dict[str, Any]:
    """Return the CPUs that the daemon allows processes in cgroups v2, and their `within`."""
    group = cgroup("caller", cpus="5-9")
    below = group / "step"
    below.mkdir(exist_ok=True)  # without the controller, it has no cpuset of its own
    return {
        "a request beyond the cpuset": allowed(group, "cpuset=0-31"),
        "a mask in a child cgroup": allowed(below, "whose=caller", "taskset", "-c", "6-7"),
    }


def allowed(group: Path, query: str, *before: str) -> Any:  # noqa: ANN401 - of a document
    url = f"http://localhost/plan?mode=node&gpus=0&{query}"
    into = f'echo 0 >{group}/cgroup.procs; exec "$@"'
    curl = ("curl", "-s", "--unix-socket", f"{inside.SOCKET}", url)
    asked = ran(["sh", "-c", into, "sh", *before, *curl])
    return json.loads(asked["stdout"])["allowed"] if asked["stdout"] else asked


def exec_(
    options: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    group: Path | None = None,
) -> Ended:
    return affinityd("exec", *options, "--", *command, env=env, group=group)


def place(ended: Ended) -> dict[str, str]:
    """Return a command's CPUs, its variables without the prefix, and its stderr.

    The command printed its /proc/self/status, and then its environment.
    """
    status, _, environ = ended["stdout"].rpartition("\n")
    mask = re.findall(r"^Cpus_allowed_list:\t(.*)$", status, re.MULTILINE)
    variables = dict(re.findall(r"(?:^|\0)AFFINITYD_(\w+)=([^\0]*)", environ))
    variables.pop("PINNED_FOR", None)  # it repeats the test's own variables
    variables.pop("TIMEOUT", None)  # set by the test
    return {"mask": "".join(mask), **variables, "said": ended["stderr"]}


def memory_of(ended: Ended) -> dict[str, Any]:
    """Return a command's memory policy by numactl and by numa_maps, and its pages by node.

    The command printed `numactl --show`, and last the line of its largest mapping: numa(7).
    """
    shown, _, line = ended["stdout"].rstrip("\n").rpartition("\n")
    by_numactl = dict(re.findall(r"^(policy|preferred): ?(.*?) *$", shown, re.MULTILINE))
    policy, _, pages = line.partition(" ")[2].partition(" anon=")
    nodes = {node: int(count) for node, count in re.findall(r" N(\d+)=(\d+)", pages)}
    complaints = ended["stderr"].splitlines()
    return {
        **by_numactl,
        "maps": policy,
        "pages": nodes,
        "said": complaints,
        "status": ended["status"],
    }


def shrinking() -> dict[str, Any]:
    """Return a rank's mask, and the findings about the rank, as its cpuset shrinks and grows."""
    group = cgroup("job", cpus="8-15")
    with running(program("rank"), group=group, cpus="12-15") as pid:

        def moment(command: str, name: str) -> list[Any]:
            cgroup("job", cpus=name.partition(",")[0])
            ended = affinityd(command, f"{pid}", *FIRST_GPU)
            return [inside.thread_masks(pid), ended["status"], ended["stdout"] + ended["stderr"]]

        return {name: moment(command, name) for name, (command, *_) in SHRINKING.items()}
