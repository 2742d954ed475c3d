"""The time that slurm/task_prolog.sh adds to `srun -n1`, and its CPU time outside of Slurm.

Each way to launch has its own Slurm on this machine, and only one of them launches at a time. Every
round has one launch of each way, in random order. Outside of Slurm, the script's CPU time, with
that of the programs that it starts, is compared with hwloc-bind's. A daemon answers; its time
counts only in the launches. On a node without GPUs each script is compared with an empty one.

Needs root and Debian's slurmctld, slurmd, slurm-client, munge and hwloc-nox.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from time import perf_counter

from bench.ratio import Ratio
from tests.e2e.slurm.node import INSTALLED, SCRIPTS, copied
from tests.e2e.slurm.rig import Setup, Slurm, slurm
from tests.support.daemons import PATIENCE, running
from tests.support.tiny import LOOK, tiny_tree

RUN = "/run/affinityd"
SRUN = ("srun", "-n1", "--gres=gpu:1")
SCRIPT_FILES = ("prolog.sh", "epilog.sh", "task_prolog.sh")

NONE, EMPTY, OURS = "no prolog", "empty TaskProlog", "task_prolog.sh"
#: Lines of slurm.conf.
WAYS: Mapping[str, Sequence[str]] = {
    NONE: (),
    EMPTY: (f"TaskProlog={RUN}/empty.sh",),
    OURS: (f"TaskProlog={INSTALLED}/task_prolog.sh",),
}

#: Programs that are started outside of Slurm.
ALONE = {
    "hwloc-bind": ("hwloc-bind", "--cpubind", "core:0", "--", "true"),
    OURS: (str(SCRIPTS / "task_prolog.sh"),),
}

#: Runs a command without device files of GPUs, and without a daemon's folder.
_NO_DEVICES = """\
mount -t tmpfs -o mode=755 tmpfs /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/urandom c 1 9
mount -t tmpfs tmpfs /run
exec "$@"
"""
WITHOUT_GPUS = ("unshare", "--mount", "sh", "-ec", _NO_DEVICES, "sh")


def measure(rounds: int = 40) -> tuple[Ratio, ...]:
    """Return the time that a TaskProlog adds to a launch, divided by an empty TaskProlog's."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with _clusters() as clusters:
        masks = {way: clusters[way].run(*SRUN, *LOOK) for way in WAYS}
        assert masks[EMPTY] == masks[NONE] != masks[OURS], masks
        for _ in range(rounds):
            for way in random.sample(list(WAYS), len(WAYS)):
                began = perf_counter()
                clusters[way].run(*SRUN, "true")
                seconds[way].append(perf_counter() - began)
    added = {
        way: [one - bare for one, bare in zip(seconds[way], seconds[NONE], strict=True)]
        for way in (EMPTY, OURS)
    }
    empty = median(added[EMPTY])
    ratios = [one / empty for one in added[OURS]]
    return (Ratio("the TaskProlog of srun -n1", "an empty TaskProlog in sh", 2.5, ratios),)


@contextmanager
def _clusters() -> Iterator[Mapping[str, Slurm]]:
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        run = folder / "run"
        stack.enter_context(running(run, "--root", str(tiny_tree(folder / "machine"))))
        (run / "empty.sh").write_text("#!/bin/sh\nexit 0\n")
        (run / "empty.sh").chmod(0o755)
        binds = {run: RUN, copied(folder): INSTALLED}
        yield {
            way: stack.enter_context(slurm(Setup(conf=conf, binds=binds)))
            for way, conf in WAYS.items()
        }


def alone(rounds: int) -> Mapping[str, float]:
    """Start each program of ALONE once a round; return the median of its CPU time, in seconds."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        daemon = stack.enter_context(running(folder, "--root", str(tiny_tree(folder / "machine"))))
        task = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(task.kill)
        numbers = {"SLURM_TASK_PID": task.pid, "SLURM_JOB_ID": 1, "SLURM_GTIDS": 0}
        env = {name: str(number) for name, number in numbers.items()}
        env |= {"CUDA_VISIBLE_DEVICES": "0", "AFFINITYD_SOCKET": str(daemon.socket)}
        env["PATH"] = os.environ["PATH"]
        assert "AFFINITYD_CPULIST=" in _run(ALONE[OURS], env)
        costs = [{name: _cost(ALONE[name], env) for name in ALONE} for _ in range(rounds)]
    return {name: median(cost[name] for cost in costs) for name in ALONE}


def without_gpus(rounds: int) -> Mapping[str, float]:
    """Return the CPU time of each script on a node without GPUs, divided by an empty script's."""
    program = f"import json, bench.prolog as it; print(json.dumps(it.scripts_here({rounds})))"
    command = (*WITHOUT_GPUS, sys.executable, "-c", program)
    costs: Mapping[str, float] = json.loads(subprocess.check_output(command, cwd=SCRIPTS.parent))
    return costs


def scripts_here(rounds: int) -> Mapping[str, float]:
    """Start each script and an empty one, in random order, once a round; there must be no GPU."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as folder:
        empty = Path(folder, "empty.sh")
        empty.write_text("#!/bin/sh\n")
        empty.chmod(0o755)
        scripts = [empty, *(SCRIPTS / name for name in SCRIPT_FILES)]
        env = {"SLURM_JOB_ID": "1", "SLURM_TASK_PID": f"{os.getpid()}"}
        costs: dict[str, list[float]] = {script.name: [] for script in scripts}
        for _ in range(rounds):
            for script in random.sample(scripts, len(scripts)):
                costs[script.name].append(_cost((f"{script}",), env))
    pairs = {name: zip(costs[name], costs[empty.name], strict=True) for name in SCRIPT_FILES}
    return {name: median(one / bare for one, bare in its) for name, its in pairs.items()}


def _cost(command: Sequence[str], env: Mapping[str, str]) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    _run(command, env)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run(command: Sequence[str], env: Mapping[str, str]) -> str:
    return subprocess.check_output(command, env=env, text=True, timeout=PATIENCE)
