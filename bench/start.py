"""The CPU time that `affinityd exec` adds to a command, beside a bare Python's, in one run.

    python -m bench.start [--pairs N]

All are started in turns. Their user and system time is that of wait4(2), with the programs that
they start, less that of the command, true(1). A daemon answers; its own time is not in it. `run` is
what `affinityd init` leaves in a pod.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compare import fetch
from bench.ratio import Ratio
from tests.support.daemons import running
from tests.support.tiny import tiny_tree

PROGRAM = Path(__file__).parents[1] / "bin/affinityd"
BARE = "python3 -c pass"
EXEC = "affinityd exec -- true"
EXEC_ALONE = "affinityd exec -- true, without a daemon"
RUN = "run"
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


def _costs(pairs: int) -> Mapping[str, Sequence[float]]:
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


def measure(pairs: int = 60) -> tuple[Ratio, ...]:
    """Return what starts cost, by what a bare Python, or NVIDIA's package, costs."""
    costs = _costs(pairs)

    def ratio(name: str, peer: str, goal: str) -> Ratio:
        rounds = zip(costs[name], costs[peer], strict=True)
        return Ratio(f"CPU time of {name}", peer, goal, [one / other for one, other in rounds])

    rows = [ratio(EXEC, BARE, "≤ 1.5"), ratio(EXEC_ALONE, BARE, "≤ 5"), ratio(RUN, BARE, "≤ 1.5")]
    if fault := fetch.gpu_affinity():
        return (*rows, Ratio(f"CPU time of {EXEC}", PEER, "≤ 0.5", lack=fault))
    return (*rows, ratio(EXEC, PEER, "≤ 0.5"))


def _commands(run: Path, root: Path) -> dict[str, Sequence[str]]:
    commands: dict[str, Sequence[str]] = {
        BARE: (sys.executable, "-c", "pass"),
        COMMAND: (COMMAND,),
        EXEC: EXEC_WORDS,
        EXEC_ALONE: ("env", "AFFINITYD_SOCKET=/nonexistent", f"AFFINITYD_ROOT={root}", *EXEC_WORDS),
        RUN: (str(run), COMMAND),
    }
    if fetch.gpu_affinity() is None:
        script = PEER_SCRIPT.format(path=str(fetch.GPU_AFFINITY))
        commands[PEER] = (sys.executable, "-c", script)
    return commands


def _cost(command: Sequence[str], env: Mapping[str, str]) -> float:
    silent = [
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
    ]  # of a replayed machine it says so
    child = os.posix_spawnp(command[0], [*command], env, file_actions=silent)
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    for ratio in measure(parser.parse_args().pairs):
        print(ratio)


if __name__ == "__main__":
    main()
