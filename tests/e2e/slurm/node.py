"""A node installed as the documentation says: the daemon, Slurm, and the scripts in slurm/."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from affinityd.topology.model import Topology
from tests.e2e.slurm.rig import USER, Setup, Slurm, slurm
from tests.support.daemons import Daemon, running
from tests.support.machines.sysfs_tree import write_tree
from tests.support.paths import REPOSITORY, open_folder
from tests.support.tiny import FAR, NEAR, affinityd, tiny

SCRIPTS = REPOSITORY / "slurm"
INSTALLED = "/etc/slurm/affinityd"
#: The lines of slurm/slurm.conf that the tests do not vary.
CONF = tuple(line for line in (SCRIPTS / "slurm.conf").read_text().splitlines() if "log=" in line)

#: The NUMA node of each GPU, out of order: the node of GPU i must not follow from task i's CPUs.
GPU_NODES = (0, 1, 1, 0)
HOME = tuple((NEAR, FAR)[node] for node in GPU_NODES)
#: The N of each GPU's /dev/nvidiaN, which is not the GPU's index.
MINORS = (3, 2, 1, 0)
#: Slurm lists GPUs in the node's order; jobs that ask for `small` have GPUs 2 and 3.
GPUS = ("big:3", "big:2", "small:1", "small:0")

#: Prints a task's facts; with --label each line begins with the task's number.
LOOK = ("/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status; env | grep ^AFFINITYD_ | sort")


@dataclass(frozen=True)
class Task:
    cpus: str  #: the task's mask
    variables: Mapping[str, str]  #: AFFINITYD_*, without the prefix
    rest: Sequence[str]  #: other lines that the task printed

    @property
    def unpinned(self) -> str | None:
        return self.variables.get("UNPINNED")


@dataclass(frozen=True)
class Node:
    cluster: Slurm
    daemon: Daemon
    folder: Path  #: the daemon's folder: /run/affinityd

    def tasks(self, *words: str, env: Mapping[str, str] | None = None) -> list[Task]:
        return read_tasks(self.cluster.srun(*words, *LOOK, env=env))

    def note(self, job: str) -> Path:
        return self.folder / "jobs" / job


def read_tasks(printed: str) -> list[Task]:
    """Read the output of tasks that ran LOOK, with task labels or, for a single task, without."""
    lines: dict[int, list[str]] = {}
    for line in printed.splitlines():
        label, text = re.fullmatch(r"(?:\s*(\d+): ?)?(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
        if not text.startswith("srun:"):
            lines.setdefault(int(label or 0), []).append(text)
    return [_task(lines[number]) for number in sorted(lines)]


def _task(lines: Sequence[str]) -> Task:
    (mask,) = (line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:"))
    assigned = [line.partition("=") for line in lines if line.startswith("AFFINITYD_")]
    rest = [line for line in lines if not line.startswith(("Cpus_allowed_list:", "AFFINITYD_"))]
    variables = {name.removeprefix("AFFINITYD_"): value for name, _, value in assigned}
    return Task(mask, variables, rest)


def gres_diff(made: Node) -> list[str]:
    """Return the changed lines of `gres-conf --diff` on the replayed machine; some must differ."""
    where = ["--root", f"{made.folder.parent / 'machine'}", "--node-name", made.cluster.node]
    where += ["--slurm-conf", f"{made.cluster.folder}/slurm.conf"]
    env = {"PATH": f"{made.cluster.programs()}:{os.environ['PATH']}"}
    ended = affinityd("slurm", "gres-conf", "--diff", *where, env=env)
    assert ended.status == 1, ended.stderr
    return [line for line in ended.stdout.splitlines()[2:] if line[0] in "+-"]


def copied(folder: Path) -> Path:
    """Copy the scripts as a site does: in the checkout their common file is a link."""
    return shutil.copytree(SCRIPTS, folder / "scripts")


#: A node's folder → further files in it, each with the path at which the node sees the file.
Prepare = Callable[[Path], Mapping[Path, str]]


@contextmanager
def node(
    setup: Setup,
    machine: Topology | None = None,
    gpus: Sequence[str] = GPUS,
    prepare: Prepare = lambda _folder: {},
) -> Iterator[Node]:
    """Run a node with four GPUs on the two CPUs of this machine.

    The node's folder has `machine`, the machine's files, and `scripts`, as a site copies them.
    """
    with open_folder("node-") as folder:
        machine = machine or tiny(*GPU_NODES, minors=MINORS)
        tree, run = write_tree(machine, folder / "machine"), folder / "run"
        (run / "jobs").mkdir(parents=True)
        binds = {run: "/run/affinityd", run / "jobs": "/run/affinityd-jobs"}
        binds |= {copied(folder): INSTALLED, **setup.binds, **prepare(folder)}
        whole = replace(setup, gpus=gpus, conf=(*CONF, *setup.conf), binds=binds)
        with running(run, "--root", f"{tree}") as daemon, slurm(whole, USER) as cluster:
            yield Node(cluster, daemon, run)
