"""A rank that keeps its CPUs and gets the GPU near them: `exec --choose-gpu`, and bind()."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.cpuset import format_mask, parse_list
from tests.support.tiny import BOTH, FAR, NEAR, PROGRAM, ran, tiny_tree

TASK = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_GTIDS": "0,1",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_CPU_BIND_TYPE": "mask_cpu:",
    "SLURM_CPU_BIND_LIST": ",".join(format_mask(parse_list(cpu)) for cpu in (FAR, NEAR)),
}
EXEC = (sys.executable, str(PROGRAM), "exec")
SHOW = "grep Cpus_allowed_list /proc/self/status; echo x:$CUDA_VISIBLE_DEVICES $AFFINITYD_GPUS"
SHELL = ("sh", "-c", SHOW)
BIND = "import affinityd, os; affinityd.bind({}); os.execvp('sh', ['sh', '-c', os.environ['SHOW']])"
WAYS = {
    "exec": (*EXEC, "--choose-gpu", "--", *SHELL),
    "exec by the variable": (*EXEC, *SHELL),
    "bind": (sys.executable, "-c", BIND.format("choose_gpu=True")),
    "bind in exec": (
        *EXEC,
        "--choose-gpu",
        "--",
        sys.executable,
        "-c",
        BIND.format("choose_gpu=True"),
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("visible", [{}, {"CUDA_VISIBLE_DEVICES": "1,0"}], ids=["all", "a list"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_task_keeps_its_cpu_and_gets_the_gpu_near_it(
    here: Mapping[str, str], way: str, visible: dict[str, str], rank: int
) -> None:
    cpus, gpu = (FAR, NEAR)[rank], 1 - rank
    env = {**here, **TASK, **visible, "SLURM_LOCALID": f"{rank}", "SHOW": SHOW}
    if "variable" in way:
        env["AFFINITYD_CHOOSE_GPU"] = "yes"
    done = ran("taskset", "-c", cpus, *WAYS[way], env=env)
    assert done.stdout == f"Cpus_allowed_list:\t{cpus}\nx:{gpu} {gpu}\n", done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_if_the_launcher_binds_no_cpus_rank_i_gets_gpu_i_and_its_cpus(
    here: Mapping[str, str], way: str
) -> None:
    mpi = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    env = {**here, **mpi, "SHOW": SHOW, "AFFINITYD_CHOOSE_GPU": "yes"}
    done = ran(*WAYS[way], env=env)
    assert done.stdout == f"Cpus_allowed_list:\t{FAR}\nx:1 1\n", done.stderr


def test_if_the_other_ranks_cpus_are_unknown_a_line_says_so_and_nothing_is_exported(
    here: Mapping[str, str],
) -> None:
    env = {**here, **TASK, "SLURM_LOCALID": "0", "SLURM_CPU_BIND_TYPE": "rank_ldom"}
    done = ran("taskset", "-c", FAR, *EXEC, "--choose-gpu", "--", *SHELL, env=env)
    assert done.stdout == f"Cpus_allowed_list:\t{FAR}\nx:\n"
    (line,) = done.lines
    assert (
        "choose: the CPUs of the other ranks are not known: --cpu-bind=rank_ldom does not" in line
    )
    assert line.endswith("; the command runs unpinned")
    both = ran(*EXEC, "--choose-gpu", "--gpus=0", "--", *SHELL, env=dict(here))
    assert both.stdout == f"Cpus_allowed_list:\t{BOTH}\nx:\n"
    assert both.lines[0].startswith("affinityd exec: choose=gpu takes the visible GPUs")


@pytest.mark.parametrize("again", [(), ("--choose-gpu",), ("--choose-gpu", "--mode", "node")])
def test_a_rank_keeps_the_gpus_that_were_chosen_for_it(
    here: Mapping[str, str], tmp_path: Path, again: tuple[str, ...]
) -> None:
    root = tiny_tree(tmp_path / "four", 0, 0, 1, 1)
    mpi = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    env = {**here, **mpi, "AFFINITYD_ROOT": f"{root}", "AFFINITYD_SOCKET": "/nonexistent/s"}
    env["AFFINITYD_GPUS"] = "7"  # set by the shell that started mpirun
    script = f"export LOCAL_RANK=1; exec {shlex.join([*EXEC, *again, '--', *SHELL])}"
    done = ran(*EXEC, "--choose-gpu", "--", "sh", "-c", script, env=env)
    assert done.stdout == f"Cpus_allowed_list:\t{FAR}\nx:2,3 2-3\n", done.stderr
    plain = ran(*EXEC, *SHELL, env=env)
    assert plain.stdout.endswith("\nx:\n")
