"""Runs in the virtual machine: steps of Slurm 24.11 with task/affinity, with affinityd and without.

Each task writes what it is and where its OpenMP threads may run. Nothing is judged here.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.e2e.slurm.rig import USER, Setup, Slurm, slurm
from tests.e2e.vm.guest_slurm import INSTALLED, RUN, SCRIPTS, furnish, have_patience
from tests.e2e.vm.inside import (
    GROUPS,
    RELEASE,
    Document,
    bring,
    cgroup,
    hold_gpus,
    output,
    stage,
)
from tests.e2e.vm.two_nodes import GPU_NODES
from tests.e2e.vm.warm import affinityd
from tests.support.daemons import running

OFF, NODE, UNIQUE = "off", "node", "unique_contiguous"
CHOOSE = "GPUs are chosen"
EXEC = "exec in the step"  #: mode `node`, with `affinityd exec` in each task

#: How each mode is asked for.
MODES: Mapping[str, Mapping[str, str]] = {
    OFF: {"AFFINITYD": "off"},
    NODE: {},
    UNIQUE: {"AFFINITYD_MODE": UNIQUE},
    CHOOSE: {"AFFINITYD_CHOOSE_GPU": "yes"},
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

#: Sites' recipes, of LUMI and Frontier: masks by hand in the order of the GPUs, and Slurm's own.
MASKS = ",".join(f"{0xF << (4 * first):x}" for first in (4, 5, 6, 7, 0, 1, 2, 3))
CHOICES = {
    "masks by hand": Launch(
        f"srun -n8 -c4 --gres=gpu:8 --gpu-bind=none --cpu-bind=mask_cpu:{MASKS} TASK",
        modes=(CHOOSE,),
    ),
    "ranks in the order of cores": Launch(
        "srun -n8 -c4 --gres=gpu:8 --gpu-bind=none -m block:block TASK", modes=(CHOOSE,)
    ),
}

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

TORCHRUN = "LOCAL_RANK={rank} LOCAL_WORLD_SIZE={size}"
MPIRUN = "mpirun --allow-run-as-root --oversubscribe -np 4"
SCOPE = GROUPS / "scope"
PART_OF_NODE_1 = "0-13,16-17"  #: two CPUs are near GPUs 0 to 3


def side_by_side(command: str, ranks: Iterable[int], size: int) -> str:
    """Return what starts ranks in the background, with the variables of torchrun."""
    environ = [TORCHRUN.format(rank=rank, size=size) for rank in ranks]
    return " & ".join(f"{variables} {command}" for variables in environ)


#: What starts ranks, which are TASK, without Slurm.
OUTSIDE = {
    "mpirun binds each to eight CPUs": f"{MPIRUN} --map-by slot:pe=4 TASK",
    "mpirun binds none": f"{MPIRUN} --bind-to none TASK",
    "each is bound to the node of its GPU": " & ".join(
        (
            side_by_side("taskset -c 16-31 TASK", range(4), 8),
            side_by_side("taskset -c 0-15 TASK", range(4, 8), 8),
            "wait",
        )
    ),
    "a lone rank of which one CPU is near": "CUDA_VISIBLE_DEVICES=0 taskset -c 0-16 TASK",
    "a scope of which two CPUs are near": (
        f"echo $$ >{SCOPE}/cgroup.procs; {side_by_side('TASK', range(4), 4)} & wait"
    ),
}
OUTSIDE_MODES = (OFF, NODE, UNIQUE)
#: AMD's tutorial: more ranks than GPUs.
CHOICES_OUTSIDE = {
    "two ranks a GPU": f"CUDA_VISIBLE_DEVICES=0,4 {MPIRUN} --bind-to none TASK",
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
    "rank": f"""#!/bin/sh
rank=${{OMPI_COMM_WORLD_LOCAL_RANK:-${{LOCAL_RANK:-0}}}}
exec {SEEN}/affinityd exec -- {SEEN}/slurm_task {FOLDER}/default.0.0.$rank
""",
    "affinityd": '#!/bin/sh\nPYTHONPATH=/checkout exec python3 -m affinityd "$@"\n',
}


def main() -> Document:
    bring("31", online=True)
    furnish()
    have_patience(Path("/", RELEASE))
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
        one_node = launches(setup, LAUNCHES | CHOICES, OUTSIDE | CHOICES_OUTSIDE)
        return one_node | launches(replace(setup, nodes=2), TWO_NODES, {})


def launches(setup: Setup, table: Mapping[str, Launch], outside: Mapping[str, str]) -> Document:
    """Return the tasks of each launch, and of what starts them without Slurm, in each mode."""
    stage(f"Slurm starts, with nodes: {setup.nodes}")
    seen: Document = {}
    with slurm(setup, USER) as cluster:
        stage("its Python compiles affinityd")
        output(*cluster.inside, f"{SEEN}/affinityd", "exec", "--", "true")
        for name, launch in table.items():
            seen[name] = {mode: tasks_of(cluster, launch, mode) for mode in launch.modes}
        for name, command in outside.items():
            modes = (CHOOSE,) if name in CHOICES_OUTSIDE else OUTSIDE_MODES
            seen[name] = {mode: ranks_of(cluster, command, mode) for mode in modes}
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


def ranks_of(cluster: Slurm, command: str, mode: str) -> list[Document]:
    """Run a command, which starts ranks; return each rank's reports by their kind."""
    stage(f"{mode}: {command}")
    cgroup(SCOPE.name, cpus=PART_OF_NODE_1)
    FOLDER.mkdir()
    environ = {"AFFINITYD_SOCKET": f"{RUN}/affinityd.sock", "AFFINITYD_TIMEOUT": "60"}
    assignments = [f"{name}={value}" for name, value in {**environ, **MODES[mode]}.items()]
    program = command.replace("TASK", f"{SEEN}/rank")
    output(*cluster.inside, "env", *assignments, "sh", "-c", program)
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
