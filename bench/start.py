"""What taking a place costs before a command: CPU time against a bare Python's, in one run.

    python -m bench.start [--pairs N]

All are started in turns, Python by the same interpreter, and their user and system times are summed
up by wait4(2), those of the programs that they start included, but for the command's own, true(1).
A daemon answers; its own time is not in it. `run` is what `affinityd init` leaves in a pod. Then,
how long a start takes where the daemon accepts and never answers, against a curl that waits as long
as a plan may take.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from affinityd.client.find_plan import TIMEOUT
from tests.support import servers
from tests.support.daemons import BELIEVED, running
from tests.support.tiny import tiny_tree

PROGRAM = Path(__file__).parents[1] / "bin/affinityd"
BARE = "python3 -c pass"
EXEC = "affinityd exec"
RUN = "run"
ALONE = "run, without a daemon"
COMMAND = "true"

#: How often a start's cost of a bare Python, by name.
Ratios = Mapping[str, float]


def measure(pairs: int) -> Ratios:
    """Start all of them, in turns, with their byte code at hand."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as temporary:
        folder = Path(temporary)
        with running(folder, "--root", str(tiny_tree(folder / "machine"))) as daemon:
            env = {**os.environ, **BELIEVED, "AFFINITYD_SOCKET": str(daemon.socket)}
            env |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "NVIDIA_VISIBLE_DEVICES": "1"}
            for variable in ("PYTHONDONTWRITEBYTECODE", "CUDA_VISIBLE_DEVICES"):
                env.pop(variable, None)
            init = [sys.executable, str(PROGRAM), "init", "--to", str(folder / "to")]
            subprocess.run(init, env=env, stdout=subprocess.DEVNULL, check=True)
            commands = _commands(folder / "to/run")
            costs: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(pairs + 1):
                for name, command in commands.items():
                    costs[name].append(_cost(command, env))
    medians = {name: median(times[1:]) for name, times in costs.items()}
    bare, own = medians.pop(BARE), medians.pop(COMMAND)
    return {name: (cost - own) / bare for name, cost in medians.items()}


def hanging(rounds: int) -> float:
    """Return how long a start takes where the daemon hangs, as a multiple of the curl's time."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as temporary:
        path = Path(temporary, "socket")
        with servers.serving(path, servers.hanging):
            env = {**os.environ, **BELIEVED, "AFFINITYD_SOCKET": str(path)}
            start = (sys.executable, str(PROGRAM), "exec", "--gpus=1", "--", COMMAND)
            curl = f"curl -s --max-time {TIMEOUT} --unix-socket {path} http://localhost".split()
            took = [(_elapsed(start, env), _elapsed(curl, env)) for _ in range(rounds)]
    return median(ours / peer for ours, peer in took)


def _elapsed(command: Sequence[str], env: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=env, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began


def _commands(run: Path) -> dict[str, Sequence[str]]:
    commands: dict[str, Sequence[str]] = {
        BARE: (sys.executable, "-c", "pass"),
        COMMAND: (COMMAND,),
        EXEC: (sys.executable, str(PROGRAM), "exec", "--gpus=1", "--", COMMAND),
        RUN: (str(run), COMMAND),
        ALONE: ("env", "AFFINITYD_SOCKET=/nonexistent", "sh", "-c", f"{run} {COMMAND} 2>/dev/null"),
    }
    if shutil.which("hwloc-bind"):
        commands["hwloc-bind"] = ("hwloc-bind", "pu:1", "--", COMMAND)
    return commands


def _cost(command: Sequence[str], env: Mapping[str, str]) -> float:
    _, status, usage = os.wait4(os.posix_spawnp(command[0], [*command], env), 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    for name, ratio in measure(parser.parse_args().pairs).items():
        print(f"{name:22}{ratio:5.2f}")
    print(f"{'a daemon that hangs':22}{hanging(rounds=5):5.2f}")


if __name__ == "__main__":
    main()
