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
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from affinityd.client.find_plan import TIMEOUT
from bench.compare import fetch
from bench.ratio import Ratio
from tests.support import servers
from tests.support.daemons import running
from tests.support.tiny import tiny_tree

PROGRAM = Path(__file__).parents[1] / "bin/affinityd"
BARE = "python3 -c pass"
EXEC = "affinityd exec -- true"
EXEC_ALONE = "affinityd exec -- true, without a daemon"
RUN = "run"
ALONE = "run, without a daemon"
COMMAND = "true"
EXEC_WORDS = (sys.executable, str(PROGRAM), "exec", "--gpus=1", "--", COMMAND)

#: What NVIDIA's package is called by, in a script of its own: NVML says that there is one GPU.
PEER = "a script with gpu_affinity"
PEER_SCRIPT = """
import os, sys
sys.path.insert(0, {path!r})
import pynvml
pynvml.nvmlInit = lambda: None
pynvml.nvmlDeviceGetCount = lambda: 1
pynvml.nvmlDeviceGetHandleByIndex = lambda index: index
pynvml.nvmlDeviceGetCpuAffinityWithinScope = lambda *_: [3]
import gpu_affinity
gpu_affinity.set_affinity(0, 1)
os.execvp("true", ["true"])
"""


def measure(pairs: int) -> Mapping[str, Sequence[float]]:
    """Return the CPU time of each command, in seconds, without that of the command it starts."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as temporary:
        folder = Path(temporary)
        with running(folder, "--root", str(tiny_tree(folder / "machine"))) as daemon:
            env = {**os.environ, "AFFINITYD_SOCKET": str(daemon.socket)}
            env |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "NVIDIA_VISIBLE_DEVICES": "1"}
            for variable in ("PYTHONDONTWRITEBYTECODE", "CUDA_VISIBLE_DEVICES"):
                env.pop(variable, None)
            init = [sys.executable, str(PROGRAM), "init", "--to", str(folder / "to")]
            subprocess.run(init, env=env, stdout=subprocess.DEVNULL, check=True)
            commands = _commands(folder / "to/run", folder / "machine")
            costs: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(pairs + 1):
                for name, command in commands.items():
                    costs[name].append(_cost(command, env))
    own = costs.pop(COMMAND)
    return {
        name: [cost - command for cost, command in zip(its[1:], own[1:], strict=True)]
        for name, its in costs.items()
    }


def ratios(pairs: int = 60) -> tuple[Ratio, ...]:
    """Return what starts cost, by what a bare Python, or NVIDIA's package, costs."""
    costs = measure(pairs)

    def ratio(name: str, peer: str, goal: str) -> Ratio:
        rounds = zip(costs[name], costs[peer], strict=True)
        return Ratio(f"CPU time of {name}", peer, goal, [one / other for one, other in rounds])

    rows = [ratio(EXEC, BARE, "≤ 1.5"), ratio(EXEC_ALONE, BARE, "≤ 5"), ratio(RUN, BARE, "≤ 1.3")]
    if fault := fetch.gpu_affinity():
        return (*rows, Ratio(f"CPU time of {EXEC}", PEER, "≤ 0.5", lack=fault))
    return (*rows, ratio(EXEC, PEER, "≤ 0.5"))


def hanging(rounds: int) -> float:
    """Return how long a start takes where the daemon hangs, as a multiple of the curl's time."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as temporary:
        path = Path(temporary, "socket")
        with servers.serving(path, servers.hanging):
            env = {**os.environ, "AFFINITYD_SOCKET": str(path)}
            start = (sys.executable, str(PROGRAM), "exec", "--gpus=1", "--", COMMAND)
            curl = f"curl -s --max-time {TIMEOUT} --unix-socket {path} http://localhost".split()
            took = [(_elapsed(start, env), _elapsed(curl, env)) for _ in range(rounds)]
    return median(ours / peer for ours, peer in took)


def _elapsed(command: Sequence[str], env: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=env, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began


def _commands(run: Path, root: Path) -> dict[str, Sequence[str]]:
    commands: dict[str, Sequence[str]] = {
        BARE: (sys.executable, "-c", "pass"),
        COMMAND: (COMMAND,),
        EXEC: EXEC_WORDS,
        EXEC_ALONE: ("env", "AFFINITYD_SOCKET=/nonexistent", f"AFFINITYD_ROOT={root}", *EXEC_WORDS),
        RUN: (str(run), COMMAND),
        ALONE: ("env", "AFFINITYD_SOCKET=/nonexistent", "sh", "-c", f"{run} {COMMAND} 2>/dev/null"),
    }
    if fetch.gpu_affinity() is None:
        script = PEER_SCRIPT.format(path=str(fetch.GPU_AFFINITY))
        commands[PEER] = (sys.executable, "-c", script)
    return commands


def _cost(command: Sequence[str], env: Mapping[str, str]) -> float:
    _, status, usage = os.wait4(os.posix_spawnp(command[0], [*command], env), 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    for ratio in ratios(parser.parse_args().pairs):
        print(ratio)
    print(f"{'a daemon that hangs':22}{hanging(rounds=5):5.2f}")


if __name__ == "__main__":
    main()
