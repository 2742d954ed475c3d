"""What `affinityd exec` costs before its command: CPU time against a bare Python's, in one run.

    python -m bench.start [--pairs N]

Both are started in turns, by the same interpreter, and their user and system times are summed up by
wait4(2). A daemon answers; its own time is not in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.daemons import running
from tests.tiny import tiny_tree

PROGRAM = Path(__file__).parents[1] / "bin/affinityd"
BARE = (sys.executable, "-c", "pass")
EXEC = (sys.executable, str(PROGRAM), "exec", "--gpus=1", "--", "true")


@dataclass(frozen=True)
class Costs:
    """Medians in seconds of CPU time."""

    bare: float
    exec: float

    @property
    def ratio(self) -> float:
        """What exec takes, in starts of a bare Python."""
        return self.exec / self.bare


def measure(pairs: int) -> Costs:
    """Start both, in turns, with their byte code at hand."""
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as name:
        folder = Path(name)
        with running(folder, "--root", str(tiny_tree(folder / "machine"))) as daemon:
            env = {**os.environ, "AFFINITYD_SOCKET": str(daemon.socket)}
            env = {**env, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
            env.pop("PYTHONDONTWRITEBYTECODE", None)
            for command in (BARE, EXEC):
                _cost(command, env)
            costs = [(_cost(BARE, env), _cost(EXEC, env)) for _ in range(pairs)]
    return Costs(*(median(times) for times in zip(*costs, strict=True)))


def _cost(command: Sequence[str], env: Mapping[str, str]) -> float:
    _, status, usage = os.wait4(os.posix_spawnp(command[0], [*command], env), 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    costs = measure(parser.parse_args().pairs)
    print(f"python3 -c pass  {costs.bare * 1e3:.1f} ms")
    print(f"affinityd exec   {costs.exec * 1e3:.1f} ms")
    print(f"ratio            {costs.ratio:.2f}")


if __name__ == "__main__":
    main()
