"""Runs in the virtual machine: applies plans there, and prints what came of it as JSON.

It judges nothing: what should have come of it is said in test_apply.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from affinityd.daemon.peers.connection import has_peer_pidfd
from tests.e2e.vm import mending
from tests.e2e.vm.driver import addresses
from tests.e2e.vm.hardware import GPU_NODES
from tests.e2e.vm.inside import AFFINITYD, PCI_FOLDER, SOCKET, Ended, bring, cgroup, ran, stage
from tests.e2e.vm.mending import FILL, FIRST_GPU
from tests.e2e.vm.reading import filled, place
from tests.e2e.vm.warm import HASTELESS, affinityd, serving

RANKS = range(len(GPU_NODES))
MODES = ("node", "unique_contiguous")

#: A command that says where it is: its mask, and the environment that it was started with.
LOOK = ("cat", "/proc/self/status", "/proc/self/environ")

#: Fills memory, after numactl has said what get_mempolicy(2) says.
SHOW_AND_FILL = ("sh", "-c", 'numactl --show && exec "$0" "$@"', *FILL)

#: Ranks that fill memory: the options of `affinityd exec`.
FILLERS = {
    "no policy": FIRST_GPU,
    **{it: (*FIRST_GPU, "--memory", it) for it in ("local", "preferred", "bind")},
    "preferred on several": ("--gpus", "0,2,4", "--memory", "preferred"),
    "interleave": ("--gpus", "0,2,4", "--memory", "interleave"),
    "no policy, no memory near": ("--gpus", "6"),
    "bind, no memory near": ("--gpus", "6", "--memory", "bind"),
}


def main() -> None:
    """Apply plans, in the order in which the machine is changed."""
    report: dict[str, Any] = {}
    bring("31", online=True)
    stage("ranks, by sysfs")
    report["ranks"] = {"sysfs": ranks()}
    stage("the daemon starts")
    daemon = serving()
    stage("ranks, by the daemon")
    report["ranks"]["daemon"] = ranks()
    given = (f"{name}={text}" for name, text in {**HASTELESS, **torchrun(4)}.items())
    inner = ("env", *given, *AFFINITYD, "exec", "--", *LOOK)
    report["nested"] = place(exec_((), inner, env=torchrun(0)))
    stage("callers")
    report["callers"] = callers()
    stage("memory")
    report["memory"] = {name: filling(options) for name, options in FILLERS.items()}
    strict = (*FIRST_GPU, "--memory", "bind")
    report["memory"]["bind, outside Mems_allowed"] = filling(strict, cgroup("mems", mems="2"))
    stage("cpusets")
    cgroup("site", cpus="8-15")
    for name, group in {"far": cgroup("far", cpus="16-19"), "below": cgroup("site/job")}.items():
        report[name] = place(exec_(FIRST_GPU, LOOK, group=group))
    report["shrinking"] = mending.shrinking()
    stage("mending")
    report["far memory"] = mending.memory()
    stage("ranks, by node.json")
    daemon.stop()
    (PCI_FOLDER / addresses()[-1] / "remove").write_text("1")  # of which node.json goes on to tell
    report["ranks"]["node.json"] = ranks()
    Path("/sys/bus/pci/rescan").write_text("1")  # the machine is as it was, for the next script
    stage("done")
    json.dump(report, sys.stdout)


def ranks() -> dict[str, Any]:
    """Return where the ranks of a torchrun are."""
    return {
        mode: [place(exec_(("--mode", mode), LOOK, env=torchrun(rank))) for rank in RANKS]
        for mode in MODES
    }


def callers() -> dict[str, Any]:
    """Return what the daemon allows processes in cgroups of version 2, by what it knows of them."""
    own = cgroup("caller", cpus="5-9")
    below = own / "step"
    below.mkdir(exist_ok=True)  # without the controller, it has no cpuset of its own
    return {
        "has handles": has_peer_pidfd(),
        "in a cpuset, for more": allowed(own, "cpuset=0-31"),
        "below it, with a mask": allowed(below, "whose=caller", "taskset", "-c", "6-7"),
    }


def allowed(group: Path, query: str, *before: str) -> Any:  # noqa: ANN401 - of a document
    url = f"http://localhost/plan?mode=node&gpus=0&{query}"
    into = f'echo 0 >{group}/cgroup.procs; exec "$@"'
    asked = ran(["sh", "-c", into, "sh", *before, "curl", "-s", "--unix-socket", f"{SOCKET}", url])
    return json.loads(asked["stdout"])["allowed"] if asked["stdout"] else asked


def filling(options: Sequence[str], group: Path | None = None) -> dict[str, Any]:
    """Return what the kernel says of the memory that a rank has filled."""
    return filled(exec_(options, SHOW_AND_FILL, group=group))


def torchrun(rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": f"{len(RANKS)}"}


def exec_(
    options: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    group: Path | None = None,
) -> Ended:
    return affinityd("exec", *options, "--", *command, env=env, group=group)
