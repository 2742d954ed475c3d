"""Runs in the virtual machine: steps of Slurm 24.11 with task/affinity, with affinityd and without.

Each task writes what it is and where its OpenMP threads may run. Nothing is judged here.
"""

import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.e2e.slurm.rig import USER, Setup, Slurm, slurm
from tests.e2e.vm.inside import (
    GROUPS,
    RELEASE,
    Document,
    addresses,
    bring,
    output,
    stage,
)
from tests.e2e.vm.two_nodes import GPU_NODES
from tests.e2e.vm.warm import affinityd
from tests.support.daemons import running

OFF, NODE, UNIQUE = "off", "node", "unique_contiguous"
EXEC = "exec in the step"  #: mode `node`, with `affinityd exec` in each task

INSTALLED = "/etc/slurm/affinityd"
SCRIPTS = Path("/checkout/slurm")
RUN = Path("/tmp/affinityd")  # noqa: S108 - nobody else is here; jobs find it at /run/affinityd

#: How each mode is asked for.
MODES: Mapping[str, Mapping[str, str]] = {
    OFF: {"AFFINITYD": "off"},
    NODE: {},
    UNIQUE: {"AFFINITYD_MODE": UNIQUE},
    EXEC: {"EXEC": "yes", "AFFINITYD_TIMEOUT": "60"},
}


@dataclass(frozen=True)
class Launch:
    command: str  #: the shell runs it; TASK is the program
    batch: Sequence[str] | None = None  #: the options of sbatch, whose script the command is
    modes: Sequence[str] = (OFF, NODE)


#: Where Slurm gives each task CPUs of its own.
SLICES = {
    "a GPU for each task": Launch(
        "srun -n4 -c4 --gpus-per-task=1 TASK", modes=(OFF, NODE, UNIQUE, EXEC)
    ),
    "a CPU for each task": Launch("srun -n2 --gpus-per-task=1 TASK", modes=(OFF, NODE, UNIQUE)),
    "all GPUs for all tasks": Launch("srun -n8 -c4 --gres=gpu:8 TASK", modes=(OFF, NODE, UNIQUE)),
    "a thread of each core": Launch("srun -n8 -c2 --gres=gpu:8 --hint=nomultithread TASK"),
    "more tasks than GPUs": Launch(
        "srun -n5 -c4 --gres=gpu:4 TASK", modes=(OFF, NODE, UNIQUE, EXEC)
    ),
    "slices of an odd size": Launch("srun -n6 -c3 --gres=gpu:6 TASK"),
    "two GPUs for each task": Launch("srun -n4 -c8 --gres=gpu:8 TASK"),
    "two jobs side by side": Launch(
        "srun -n3 -c4 --gpus-per-task=1 TASK 7 & srun -n4 -c4 --gres=gpu:4 TASK 7 & wait"
    ),
    "two steps of a job": Launch(
        "for _ in 1 2; do srun -n4 -c2 --exact --gres=gpu:4 TASK 8 & done; wait",
        batch=("-n8", "-c2", "--gres=gpu:8"),
    ),
}

#: Where tasks share CPUs, or there is one, or the user has bound something.
OTHERS = {
    "sockets": Launch("srun -n8 -c4 --gpus-per-task=1 --cpu-bind=sockets TASK"),
    "a node of its own": Launch("srun TASK", batch=("--exclusive", "-n4", "--gres=gpu:4")),
    "memory of its own node": Launch("srun -n4 -c4 --gres=gpu:4 --mem-bind=local TASK"),
    "no binding": Launch("srun -n4 -c4 --gres=gpu:4 --cpu-bind=none TASK"),
    "a lone task": Launch("srun -n1 -c16 --gres=gpu:1 TASK"),
}

LAUNCHES = SLICES | OTHERS

#: Steps over two slurmd, each of which has all CPUs: a node of its own, as far as a task can see.
TWO_NODES = {
    "two nodes": Launch("srun -N2 --ntasks-per-node=4 -c4 --gres=gpu:8 TASK"),
    "two nodes, a GPU for each task": Launch(
        "srun -N2 --ntasks-per-node=4 -c4 --gpus-per-task=1 TASK"
    ),
    "two nodes, dealt out in turn": Launch(
        "srun -N2 -n8 --ntasks-per-node=4 -c4 --gres=gpu:8 -m cyclic TASK"
    ),
    "three tasks on two nodes": Launch("srun -N2 -n3 -c4 --gres=gpu:8 TASK"),
    "seven tasks and one": Launch("srun -N2 -n8 -c4 --gres=gpu:8 TASK"),
}

SEEN = Path("/tmp/seen")  # noqa: S108 - nobody else is here; tasks see it, too
FOLDER = SEEN / "launch"  #: where the tasks of the launch that runs report
NAME = "$SLURM_JOB_ID.$SLURM_STEP_ID.$SLURM_PROCID"

#: They start few programs: that takes long here.
PROGRAMS = {
    #: Tells what Slurm made of a task, before affinityd's TaskProlog.
    "prolog": f"""#!/bin/sh
OMP_NUM_THREADS=1 {SEEN}/slurm_task {FOLDER}/prolog.{NAME} "$SLURM_TASK_PID"
exec {INSTALLED}/task_prolog.sh
""",
    #: A task. Its argument is how many there are where steps run side by side: none ends before all
    #: have begun.
    "task": f"""#!/bin/sh
export OMP_WAIT_POLICY=passive # an emulated CPU that spins keeps the others from running
task={SEEN}/slurm_task folder={FOLDER} name={NAME}
count() {{ echo "$#"; }}
"$task" "$folder/default.$name"
while [ -n "$1" ] && [ "$(count "$folder"/default.*)" -lt "$1" ]; do sleep 1; done
env OMP_NUM_THREADS=4 OMP_PROC_BIND=close OMP_PLACES=threads "$task" "$folder/bound.$name"
[ -n "$EXEC" ] || exit 0
{SEEN}/affinityd exec -- "$task" "$folder/exec.$name"
read -r _ cpus <"$folder/default.$name"
taskset -c "${{cpus%%[,-]*}}" {SEEN}/affinityd exec -- "$task" "$folder/narrowed.$name"
""",
    "affinityd": '#!/bin/sh\nPYTHONPATH=/checkout exec python3 -m affinityd "$@"\n',
}


def main() -> Document:
    bring("31", online=True)
    furnish()
    have_patience()
    hold_gpus()
    SEEN.mkdir()
    SEEN.chmod(0o777)
    shutil.copy("/built/slurm_task", SEEN)
    for name, text in PROGRAMS.items():
        (SEEN / name).write_text(text)
        (SEEN / name).chmod(0o755)
    copy = shutil.copytree(SCRIPTS, SEEN / "scripts")
    stage("the daemon starts")
    with running(RUN):
        setup = Setup(
            gpus=[f"{minor}" for minor in range(len(GPU_NODES))],
            task_plugin="task/affinity,task/cgroup",
            constrain_devices=True,
            conf=[
                "MessageTimeout=100",  # they take long where an emulated CPU has little time
                f"Prolog={INSTALLED}/prolog.sh",
                f"TaskProlog={SEEN}/prolog",
            ],
            topology="Sockets=2 CoresPerSocket=8 ThreadsPerCore=2",
            gres_conf=affinityd("slurm", "gres-conf")["stdout"],
            binds={RUN: "/run/affinityd", copy: INSTALLED},
            release="24.11",
            root=Path("/", RELEASE),
        )
        return launches(setup, LAUNCHES) | launches(replace(setup, nodes=2), TWO_NODES)


def furnish() -> None:
    """Make what a node has that an unpacked image has not."""
    Path("/etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\n{USER}:x:5:60::/:/bin/sh\n")
    Path("/etc/group").write_text(f"root:x:0:\n{USER}:x:60:\n")
    Path("/etc/hosts").write_text(f"127.0.0.1 {socket.gethostname()}\n")
    for name, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        Path(f"/dev/{name}").symlink_to(f"/proc/self/{target}")
    for name in ("pts", "shm"):
        Path(f"/dev/{name}").mkdir()
    output("ip", "address", "add", "10.0.0.1", "dev", "lo")  # getaddrinfo(3), AI_ADDRCONFIG
    slice_ = GROUPS / "system.slice"  # where slurmd has its jobs
    slice_.mkdir()
    for folder in (GROUPS, slice_):
        (folder / "cgroup.subtree_control").write_text("+cpuset +pids")


def have_patience() -> None:
    """Let curl wait longer than the scripts say: an emulated CPU is slow."""
    folder = Path("/", RELEASE, "usr/bin")
    (folder / "curl").rename(folder / "curl.debian")
    curl = folder / "curl"
    curl.write_text('#!/bin/sh\nexec /usr/bin/curl.debian "$@" --max-time 60\n')
    curl.chmod(0o755)


def hold_gpus() -> None:
    """Have NVIDIA's driver hold the GPUs: they are its then, whoever made them."""
    output("mount", "-t", "tmpfs", "tmpfs", "/proc/driver")
    for minor, address in enumerate(addresses()):
        folder = Path("/proc/driver/nvidia/gpus", address)
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Device Minor: \t {minor}\n")
    Path("/proc/driver/nvidia/version").write_text("NVRM version: 550.54.15\n")


def launches(setup: Setup, table: Mapping[str, Launch]) -> Document:
    """Return the tasks of each launch in each mode."""
    stage(f"Slurm starts, with nodes: {setup.nodes}")
    seen: Document = {}
    with slurm(setup, USER) as cluster:
        stage("its Python compiles affinityd")
        output(*cluster.inside, f"{SEEN}/affinityd", "exec", "--", "true")
        for name, launch in table.items():
            seen[name] = {mode: tasks_of(cluster, launch, mode) for mode in launch.modes}
    return seen


def tasks_of(cluster: Slurm, launch: Launch, mode: str) -> list[Document]:
    """Run a launch; return each task's reports by their kind, in the order of step and rank."""
    stage(f"{mode}: {launch.command}")
    FOLDER.mkdir()
    FOLDER.chmod(0o777)
    command = launch.command.replace("TASK", f"{SEEN}/task")
    if launch.batch is None:
        cluster.run("sh", "-c", command, env=MODES[mode])
    else:
        cluster.sbatch(command, *launch.batch, env=MODES[mode])
    return read_reports()


def read_reports() -> list[Document]:
    """Return each task's reports by their kind, and remove them."""
    tasks: dict[tuple[int, ...], Document] = {}
    for file in FOLDER.iterdir():
        kind, *numbers = file.name.split(".")
        if "" in numbers:
            continue  # a batch script, which is no step
        task = tasks.setdefault(tuple(int(number) for number in numbers), {})
        task[kind] = read_report(file.read_text())
    shutil.rmtree(FOLDER)
    return [tasks[numbers] for numbers in sorted(tasks)]


def read_report(text: str) -> Document:
    """Read what slurm_task.c prints."""
    report: Document = {"devices": [], "threads": [], "variables": {}}
    for line in text.splitlines():
        word, _, value = line.partition(" ")
        if word == "device":
            report["devices"].append(int(value))
        elif word == "thread":
            report["threads"].append(value)
        elif word == "variable":
            name, _, assigned = value.partition("=")
            if name.startswith(("SLURM", "AFFINITYD_", "CUDA_")):
                report["variables"][name] = assigned
        else:
            report[word] = value
    return report
