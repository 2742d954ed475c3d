"""What slurm/task_prolog.sh adds to `srun -n1`, beside what other ways to pin add, in one run.

    python -m bench.prolog [--pairs N]

Each way has a Slurm of its own on this machine, which idles while others launch. Every round has
one launch of each, in random order, and compares them. What counts is how long a launch takes
beside one without a prolog, and what is added beside what an empty TaskProlog adds. hwloc-bind and
`affinityd exec` stand before the program instead.

As a launch waits for many processes, the script is also started by itself, and its user and system
time, with that of all it starts, compared with hwloc-bind's. A daemon answers; its own time is only
in the launches. On a node without GPUs, where none runs, each script is compared with an empty one.

Needs root and Debian's slurmctld, slurmd, slurm-client, munge and hwloc-nox.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from time import perf_counter

from bench.ratio import Ratio
from tests.e2e.slurm.alone import BARE_DEV
from tests.e2e.slurm.node import CONF, INSTALLED, SCRIPTS, copied
from tests.e2e.slurm.rig import Setup, Slurm, slurm
from tests.support.daemons import PATIENCE, running
from tests.support.tiny import LOOK, PROGRAM, tiny_tree

RUN = "/run/affinityd"
SRUN = ("srun", "-n1", "--gres=gpu:1")
HWLOC_BIND = ("hwloc-bind", "--cpubind", "core:0", "--")
NAMES = ("Prolog", "Epilog", "TaskProlog")  #: the scripts of slurm.conf
SCRIPT_FILES = ("prolog.sh", "epilog.sh", "task_prolog.sh")


@dataclass(frozen=True)
class Way:
    """A way to launch a task."""

    conf: Sequence[str] = ()  #: lines of slurm.conf
    launcher: Sequence[str] = ()  #: before the program
    pins: bool = True


NONE, EMPTY, OURS = "no prolog", "empty TaskProlog", "task_prolog.sh"
WAYS = {
    NONE: Way(pins=False),
    EMPTY: Way(conf=[f"TaskProlog={RUN}/empty.sh"], pins=False),
    OURS: Way(conf=[f"TaskProlog={INSTALLED}/task_prolog.sh"]),
    "hwloc-bind": Way(launcher=HWLOC_BIND),
    "affinityd exec": Way(launcher=(sys.executable, str(PROGRAM), "exec", "--")),
    "all three, empty": Way(conf=[f"{name}={RUN}/empty.sh" for name in NAMES], pins=False),
    "all three, ours": Way(conf=CONF),
}

#: Programs that are started by themselves.
ALONE = {
    "sh": ("sh", "-c", ":"),
    "hwloc-bind": (*HWLOC_BIND, "true"),
    OURS: (str(SCRIPTS / "task_prolog.sh"),),
}

#: Runs a command where no device file is a GPU's, and no daemon has been.
WITHOUT_GPUS = (
    "unshare",
    "--mount",
    "sh",
    "-ec",
    f'{BARE_DEV}mount -t tmpfs tmpfs /run\nexec "$@"',
    "sh",
)


@dataclass(frozen=True)
class Launches:
    """What launches took, by their way and round: seconds."""

    seconds: Mapping[str, Sequence[float]]

    def takes(self, way: str) -> float:
        """Return what a launch takes, in launches without a prolog."""
        return median(one / bare for one, bare in self._rounds(way))

    def adds(self, way: str) -> float:
        """Return what a launch takes more than one without a prolog: seconds."""
        return median(one - bare for one, bare in self._rounds(way))

    def _rounds(self, way: str) -> Iterator[tuple[float, float]]:
        return zip(self.seconds[way], self.seconds[NONE], strict=True)


def launch(rounds: int) -> Launches:
    """Launch each way once a round."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with _clusters() as clusters:
        masks = {way: clusters[way].run(*SRUN, *WAYS[way].launcher, *LOOK) for way in WAYS}
        pinned = {way for way in WAYS if masks[way] != masks[NONE]}
        assert pinned == {name for name, way in WAYS.items() if way.pins}, masks
        for _ in range(rounds):
            for way in random.sample(list(WAYS), len(WAYS)):
                began = perf_counter()
                clusters[way].run(*SRUN, *WAYS[way].launcher, "true")
                seconds[way].append(perf_counter() - began)
    return Launches(seconds)


def ratios(rounds: int = 40) -> tuple[Ratio, ...]:
    """Return what a TaskProlog adds to a launch, by what an empty one adds."""
    seconds = launch(rounds).seconds
    empty = median(one - bare for one, bare in zip(seconds[EMPTY], seconds[NONE], strict=True))
    added = [(one - bare) / empty for one, bare in zip(seconds[OURS], seconds[NONE], strict=True)]
    return (
        Ratio("what the TaskProlog adds to srun -n1", "an empty sh TaskProlog", "≤ 1.4", added),
    )


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
            name: stack.enter_context(slurm(Setup(conf=way.conf, binds=binds)))
            for name, way in WAYS.items()
        }


def start_alone(rounds: int) -> Mapping[str, float]:
    """Start each of ALONE once a round. Return the medians of its CPU time: seconds."""
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


def leave(rounds: int) -> Mapping[str, float]:
    """Return what each script costs on a node without GPUs: CPU time, an empty sh script's 1."""
    program = f"import json, bench.prolog as it; print(json.dumps(it.leave_here({rounds})))"
    own = (*WITHOUT_GPUS, sys.executable, "-c", program)
    costs: Mapping[str, float] = json.loads(subprocess.check_output(own, cwd=SCRIPTS.parent))
    return costs


def leave_here(rounds: int) -> Mapping[str, float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    pairs = parser.parse_args().pairs
    launches = launch(pairs)
    print("srun -n1          launch   adds (without a prolog 1; an empty TaskProlog 1)")
    for way in WAYS:
        adds = launches.adds(way) / launches.adds(EMPTY)
        print(f"{way:16}  {launches.takes(way):6.2f}  {adds:5.1f}")
    costs = start_alone(pairs)
    print("\nalone             CPU time (hwloc-bind 1)")
    for name, cost in costs.items():
        print(f"{name:16}  {cost / costs['hwloc-bind']:6.2f}")
    print("\nwithout GPUs      CPU time (an empty script 1)")
    for name, cost in leave(pairs).items():
        print(f"{name:16}  {cost:6.2f}")


if __name__ == "__main__":
    main()
