"""A machine of two of this process's CPUs, each on a node; its plans can be applied here."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from affinityd.request.process_plan import REPLAYED_MACHINE
from affinityd.topology.model import Topology
from tests.support.daemons import PATIENCE
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import write_tree
from tests.support.paths import REPOSITORY

CPUS = sorted(os.sched_getaffinity(0))[:2]  #: with fewer CPUs every process looks pinned
NEAR, FAR = (str(cpu) for cpu in CPUS)
BOTH = f"{NEAR}-{FAR}" if CPUS[1] == CPUS[0] + 1 else f"{NEAR},{FAR}"

PROGRAM = REPOSITORY / "bin/affinityd"

#: A command that prints the CPUs on which it may run.
LOOK = ("grep", "Cpus_allowed_list", "/proc/self/status")


def tiny(*gpu_nodes: int, minors: Sequence[int] = range(16)) -> Topology:
    """Return the machine with a GPU on each of these nodes; `minors` number the device files."""
    machine = made({0: NEAR, 1: FAR}, gpus=gpu_nodes or (0, 1))
    named = zip(machine.gpus, minors, strict=False)
    return replace(machine, gpus=tuple(replace(gpu, minor=minor) for gpu, minor in named))


def tiny_tree(root: Path, *gpu_nodes: int, minors: Sequence[int] = range(16)) -> Path:
    return write_tree(tiny(*gpu_nodes, minors=minors), root)


@dataclass(frozen=True)
class Ended:
    status: int
    stdout: str
    stderr: str

    @property
    def cpus(self) -> str:
        assert self.status == 0, self.stderr
        return self.stdout.split(":")[1].strip()

    @property
    def lines(self) -> list[str]:
        return self.stderr.splitlines()


def ran(*command: str | os.PathLike[str], **options: Any) -> Ended:  # noqa: ANN401
    """Run a command to its end; the options are those of subprocess.run."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    return Ended(done.returncode, done.stdout, done.stderr)


def printed(*command: str | os.PathLike[str], **options: Any) -> str:  # noqa: ANN401
    """Run a command that must succeed; return what it prints."""
    done = ran(*command, **options)
    assert done.status == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def affinityd(
    *words: str, env: Mapping[str, str] | None = None, checkout: Path | None = None
) -> Ended:
    """Run the command line; variables about tasks and settings come only from `env`.

    `checkout` is a folder whose command line is run instead. Lines about the replayed machine are
    left out of stderr.
    """
    env = {
        "PATH": os.environ["PATH"],
        "AFFINITYD_CONFIG": "/nonexistent",
        "AFFINITYD_TIMEOUT": "60",  # seconds; a busy machine is slow
        **(env or {}),
    }
    command = (sys.executable, "-m", "affinityd", *words)
    # Python imports from the folder in which it starts.
    done = ran(*command, env=env, cwd=checkout, timeout=PATIENCE)
    return replace(done, stderr=without_replay(done.stderr))


def without_replay(stderr: str) -> str:
    """Return stderr without the lines which say that the machine is replayed."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.endswith(f": {REPLAYED_MACHINE}\n"))


def exec_(*words: str, env: Mapping[str, str]) -> Ended:
    return affinityd("exec", *words, env=env)
