"""The CPU time that `affinityd exec` adds to a command, compared with a bare Python's.

All start in turns. wait4(2) tells the user and system time of each, with the programs that it
starts. The time of the command, true(1), is subtracted. A daemon answers; its own time does not
count. `run` is the script that `affinityd init` leaves in a pod.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

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
            alone = ("env", "AFFINITYD_SOCKET=/nonexistent", f"AFFINITYD_ROOT={folder}/machine")
            commands: dict[str, Sequence[str]] = {
                BARE: (sys.executable, "-c", "pass"),
                COMMAND: (COMMAND,),
                EXEC: EXEC_WORDS,
                EXEC_ALONE: (*alone, *EXEC_WORDS),
                RUN: (f"{folder}/to/run", COMMAND),
            }
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
    """Return the CPU time of starts, divided by that of a bare Python."""
    costs = _costs(pairs)
    return tuple(
        Ratio(
            f"CPU time of {name}",
            BARE,
            most,
            [one / bare for one, bare in zip(costs[name], costs[BARE], strict=True)],
        )
        for name, most in ((EXEC, 3.5), (EXEC_ALONE, 8), (RUN, 1.5))
    )


def _cost(command: Sequence[str], env: Mapping[str, str]) -> float:
    # affinityd says on stderr that the machine is replayed.
    silent = [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    child = os.posix_spawnp(command[0], [*command], env, file_actions=silent)
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime
