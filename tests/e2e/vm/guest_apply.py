"""Runs in the virtual machine: applies plans there, and prints what came of it as JSON.

It judges nothing: what should have come of it is said in test_apply.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.vm import mending
from tests.e2e.vm.callers import callers
from tests.e2e.vm.hardware import GPU_NODES
from tests.e2e.vm.inside import AFFINITYD, PCI_FOLDER, Ended, bring, cgroup, ran, stage
from tests.e2e.vm.mending import FILL, FIRST_GPU
from tests.e2e.vm.reading import filled, place, plans
from tests.e2e.vm.warm import HASTELESS, affinityd, serving

RANKS = range(len(GPU_NODES))
IN_POD = 3  #: one of them
POD = Path("/tmp/pod")  # noqa: S108 - nobody else is here
ALL_GPUS = f"NVIDIA_VISIBLE_DEVICES={','.join(map(str, RANKS))}"  #: device files there are none
NOBODY = ("AFFINITYD_SOCKET=/nobody",)
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


#: A script with a thread, which asks for its place by itself.
SCRIPT = """
import json, os, sys, threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
import affinityd
bound = affinityd.bind(rank=1, gpus="0,1", memory="bind", timeout=60)
json.dump({
    "masks": [sorted(os.sched_getaffinity(int(tid))) for tid in os.listdir("/proc/self/task")],
    "cpus": sorted(bound.cpus),
    "locality": bound.locality,
    "memory": str(bound.memory),
    "policy": [line for line in os.popen("numactl --show") if line.startswith("membind")],
    "source": bound.source,
    "warnings": bound.warnings,
}, sys.stdout)
"""


def main() -> None:
    """Apply plans, in the order in which the machine is changed."""
    report: dict[str, Any] = {}
    bring("31", online=True)
    stage("ranks, by sysfs")
    report["ranks"] = {"sysfs": ranks()}
    stage("the daemon starts")
    daemon = serving()
    stage("ranks, by the daemon")
    before = plans(daemon.get("/metrics").text)
    report["ranks"]["daemon"] = ranks()
    report["asked"] = plans(daemon.get("/metrics").text) - before
    inner = (*given(torchrun(4)), *AFFINITYD, "exec", "--", *LOOK)
    report["nested"] = place(exec_((), inner, env=torchrun(0)))
    stage("callers")
    report["callers"] = callers()
    stage("pods")
    report["pods"] = pods()
    report["script"] = ran([sys.executable, "-c", SCRIPT])
    stage("memory")
    report["memory"] = {name: filling(options) for name, options in FILLERS.items()}
    strict = (*FIRST_GPU, "--memory", "bind")
    report["memory"]["bind, outside Mems_allowed"] = filling(strict, cgroup("mems", mems="2"))
    stage("cpusets")
    report["cpusets"] = cpusets()
    stage("mending")
    report["far memory"] = mending.memory()
    stage("ranks, by node.json")
    daemon.stop()
    unplug_last_gpu()
    report["ranks"]["node.json"] = ranks()
    Path("/sys/bus/pci/rescan").write_text("1")  # the machine is as it was, for the next script
    stage("done")
    json.dump(report, sys.stdout)


def ranks() -> dict[str, Any]:
    """Return where the ranks of a torchrun are, and one whose Python was started for it."""
    seen: dict[str, Any] = {
        mode: [place(exec_(("--mode", mode), LOOK, env=torchrun(rank))) for rank in RANKS]
        for mode in MODES
    }
    started = ran([*given(torchrun(RANKS[-1])), *AFFINITYD, "exec", "--", *LOOK])
    return {**seen, "started": place(started)}


def pods() -> dict[str, Any]:
    """Return where a rank is that `run` starts, which `affinityd init` has left: of two ways."""
    affinityd("init", "--to", str(POD), env={"AFFINITYD_MODE": "unique_contiguous"})
    narrow = cgroup("pod", cpus="5-9")
    addresses = sorted(path.stem for path in (POD / "gpu").glob("*:*.cpulist"))
    from_files = (*NOBODY, f"NVIDIA_VISIBLE_DEVICES={','.join(addresses)}")  # an index is no name
    return {
        "asked": run_(),
        "files": run_(*from_files),
        "narrow, asked": run_("AFFINITYD_MODE=node", group=narrow),
        "narrow, files": run_(*from_files, group=narrow),
    }


def run_(*said: str, group: Path | None = None) -> dict[str, str]:
    """Return where a rank of a container with all GPUs is."""
    words = [f"{name}={text}" for name, text in torchrun(IN_POD).items()]
    env = ("env", *words, ALL_GPUS, *said)
    into = f"echo 0 >{group}/cgroup.procs; " if group else ""
    return place(ran(["sh", "-c", f'{into}exec "$@"', "sh", *env, str(POD / "run"), *LOOK]))


def filling(options: Sequence[str], group: Path | None = None) -> dict[str, Any]:
    """Return what the kernel says of the memory that a rank has filled."""
    return filled(exec_(options, SHOW_AND_FILL, group=group))


def cpusets() -> dict[str, Any]:
    """Return where commands are in cgroups that let them use less than the machine."""
    cgroup("site", cpus="8-15")
    far, below = cgroup("far", cpus="16-19"), cgroup("site/job")
    return {
        "far": place(exec_(FIRST_GPU, LOOK, group=far)),
        "strict": place(exec_((*FIRST_GPU, "--strict"), LOOK, group=far)),
        "below": place(exec_(FIRST_GPU, LOOK, group=below)),
        "shrinking": mending.shrinking(),
        "confined too far": mending.below_a_cpuset(),
    }


def unplug_last_gpu() -> None:
    """Take a GPU out of the machine, of which node.json goes on to tell."""
    gpus = [path for path in PCI_FOLDER.iterdir() if (path / "class").read_text()[:6] == "0x0300"]
    (max(gpus) / "remove").write_text("1")


def given(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return what starts a command with more in its environment, env(1)."""
    return ("env", *(f"{name}={text}" for name, text in {**HASTELESS, **env}.items()))


def torchrun(rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": f"{len(RANKS)}"}


def exec_(
    options: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    group: Path | None = None,
) -> Ended:
    return affinityd("exec", *options, "--", *command, env=env, group=group)
