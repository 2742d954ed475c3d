"""`affinityd exec`: real commands on real CPUs, with a daemon, a bad daemon, or no daemon."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.topology.document import write_node
from affinityd.topology.model import Node
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import Daemon
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree
from tests.support.servers import Behaviour, answering, hanging, http, serving
from tests.support.tiny import (
    BOTH,
    FAR,
    LOOK,
    NEAR,
    PROGRAM,
    affinityd,
    exec_,
    ran,
    tiny,
    tiny_tree,
)

#: Prints the command's CPUs, and why it was not pinned.
TOLD = ("sh", "-c", "grep Cpus_allowed_list /proc/self/status; env | grep ^AFFINITYD_UNPINNED; :")
OBSERVED = f"AFFINITYD_UNPINNED=observe: would run on CPUs {FAR} (local)"

PLAN = (
    "AFFINITYD_CPULIST={0}\nAFFINITYD_LOCALITY=local\nAFFINITYD_ALLOWED=0-4000\n"
    "AFFINITYD_MEMORY_NODES=0\nAFFINITYD_THREADS=1\n"
)

# Where the command runs, and what `exec` prints.

SPREAD = (
    "this process sees GPUs 0-1 of nodes 0-1 and has the CPUs near any of them; "
    "if it uses only one GPU, name it: --gpus N, in Python bind(gpus=N); "
    "if it starts ranks, put affinityd exec before each rank's command"
)
TASK = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0,1"}
TWO_TASKS = {**TASK, "SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1"}
MPI = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
RANKS = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
BY_DAEMON = "(local, planned from daemon)"
IS_FAR = f"CPUs {FAR} are not near the GPU; allowed are {FAR}"
BY_MPI = "rank 0 of 2 (OMPI_COMM_WORLD_LOCAL_RANK)"


@pytest.mark.parametrize(
    ("task", "words", "cpus", "line"),
    [
        (RANKS, "", NEAR, ""),
        ({**RANKS, "CUDA_VISIBLE_DEVICES": "1,0"}, "", FAR, ""),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "", BOTH, SPREAD),
        ({"PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"}, "", FAR, ""),
        ({"AFFINITYD": "off"}, "--gpus=1 --", BOTH, ""),
        ({}, f"--cpuset {FAR} --gpus 0 --", FAR, IS_FAR),
        ({}, "", BOTH, SPREAD),
        (TWO_TASKS, "", BOTH, ""),
        (MPI, "-v --", NEAR, f"{BY_MPI}: GPU 0, node 0, CPU {NEAR} {BY_DAEMON}"),
        ({}, "-v --gpus=0,1 --", BOTH, f"no rank: GPUs 0-1, nodes 0-1, CPUs {BOTH} {BY_DAEMON}"),
    ],
)
def test_the_command_runs_near_its_gpu(
    here: Mapping[str, str], task: dict[str, str], words: str, cpus: str, line: str
) -> None:
    done = exec_(*words.split(), *LOOK, env={**here, **task})
    assert (done.cpus, done.stderr) == (cpus, f"affinityd exec: {line}\n" if line else "")


@pytest.mark.parametrize("words", [("--",), ("-v", "--"), ("--gpus=0", "--")])
def test_exec_runs_a_command_after_two_dashes(here: Mapping[str, str], words: list[str]) -> None:
    assert affinityd(*words, *LOOK, env={**here, **RANKS}).cpus == NEAR


@pytest.mark.parametrize(
    ("words", "order"),
    [
        ("{0}/torchrun train.py", "torchrun … --no-python affinityd exec -- python -u train.py"),
        ("{0}/mpirun -n 2 x", "mpirun … affinityd exec -- COMMAND"),
        ("{0}/python3 -u -m torch.distributed.run", "torchrun … --no-python affinityd exec -- "),
        ("{0}/python3 -m torch.distributed.launch", "torchrun … --no-python affinityd exec -- "),
        ("env X=y {0}/torchrun train.py", "torchrun … --no-python affinityd exec -- python -u tr"),
        ("{0}/python3 train.py -m deepspeed", None),
        ("{0}/true", None),
    ],
)
def test_a_launcher_is_told_the_right_order_and_its_ranks_inherit_no_locality(
    here: Mapping[str, str], tmp_path: Path, words: str, order: str | None
) -> None:
    command = words.format(tmp_path).split()
    (program,) = (Path(word) for word in command if word.startswith(f"{tmp_path}/"))
    program.write_text(f"#!/bin/sh\nenv | grep -c ^AFFINITYD_LOCALITY; {shlex.join(LOOK)}\n")
    program.chmod(0o755)
    done = exec_("--fail-closed", "--", *command, env=here)
    assert done.stdout == f"{0 if order else 1}\nCpus_allowed_list:\t{BOTH}\n"
    assert (order or SPREAD) in done.stderr
    one = exec_("--gpus=1", "--", *command, env=here)  # all ranks use one GPU: no order helps
    assert one.stdout == f"1\nCpus_allowed_list:\t{FAR}\n"


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"LOCAL_RANK": "x", "CUDA_VISIBLE_DEVICES": "0"}, "LOCAL_RANK='x' is no number"),
        ({"CUDA_VISIBLE_DEVICES": "0,9,1"}, "not all of the visible devices are here"),
    ],
)
def test_a_misleading_variable_is_reported(
    here: Mapping[str, str], env: dict[str, str], line: str
) -> None:
    (said,) = exec_(*LOOK, env={**here, **env}).lines
    assert said.startswith(f"affinityd exec: {line}")


@pytest.mark.parametrize(
    ("words", "env", "line"),
    [
        (["--mdoe=node"], {}, "unrecognized arguments: --mdoe=node"),
        (["--gpus=9"], {}, "no GPU 9; visible are 0 (0000:10:00.0), 1 (0000:11:00.0)"),
        (["--strict", f"--cpuset={FAR}", "--gpus=0"], {}, "strict: "),
        ([], {"AFFINITYD_TIMEOUT": "0"}, "timeout: '0' is not a number"),
        (["--gpus=1"], {"AFFINITYD": "obsreve"}, "AFFINITYD: 'obsreve' is none of on, observe"),
    ],
)
def test_without_a_plan_the_command_runs_unpinned_unless_it_fails_closed(
    here: Mapping[str, str], words: list[str], env: dict[str, str], line: str
) -> None:
    done = exec_(*words, "--", *LOOK, env={**here, **env})
    assert done.cpus == BOTH
    (said,) = done.lines
    assert said.startswith(f"affinityd exec: {line}")
    assert said.endswith("; the command runs unpinned")
    closed = exec_("--fail-closed", *words, "--", *LOOK, env={**here, **env})
    assert (closed.status, closed.stdout, len(closed.lines)) == (125, "", 1)


def test_a_gpu_whose_place_is_unknown_moves_no_process(tmp_path: Path) -> None:
    root = tiny_tree(tmp_path, 0, 1)
    for device in root.glob("sys/bus/pci/devices/*"):
        (device / "numa_node").write_text("-1\n")
        (device / "local_cpulist").write_text(f"{BOTH}\n")
    env = {"AFFINITYD_SOCKET": "/nonexistent", "AFFINITYD_ROOT": str(root), "LOCAL_RANK": "0"}
    unknown = "the machine does not say on which NUMA node its GPU is"
    done = exec_("--strict", "--", *LOOK, env=env)
    assert (done.cpus, done.lines) == (
        BOTH,
        [f"affinityd exec: {unknown}; the command runs unpinned"],
    )
    assert exec_("--fail-closed", "--", *LOOK, env=env).status == 125
    bind = "import affinityd, os; print(affinityd.bind().warnings, len(os.sched_getaffinity(0)))"
    bound = subprocess.check_output(
        [sys.executable, "-c", bind], env={**os.environ, **env}, text=True
    )
    assert bound == f"('{unknown}',) {len(os.sched_getaffinity(0))}\n"
    pinned = affinityd("pin", "--gpus=0", str(os.getpid()), env=env)
    assert (pinned.status, pinned.lines) == (
        1,
        [f"affinityd pin: {unknown}; name the CPUs: --cpus LIST"],
    )


def test_modules_of_the_job_do_not_replace_python_s(
    here: Mapping[str, str], tmp_path: Path
) -> None:
    for name in ("types", "operator", "collections", "_socket", "json", "random"):
        (tmp_path / f"{name}.py").write_text("import sys; sys.exit(0)")
    words = [sys.executable, str(PROGRAM), "exec", "--gpus=1", "--", *LOOK]
    for socket in (here["AFFINITYD_SOCKET"], "/nonexistent"):
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "AFFINITYD_SOCKET": socket}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert done.stdout.startswith("Cpus_allowed_list")
        assert "Traceback" not in done.stderr


def test_the_site_s_file_chooses_mode_and_switch(tiny_daemon: Daemon, tmp_path: Path) -> None:
    conf = tmp_path / "affinityd.conf"
    settings = f"AFFINITYD_SOCKET={tiny_daemon.socket}\nAFFINITYD_CPUSET=none\n"
    env = {"AFFINITYD_CONFIG": str(conf)}
    conf.write_text(f"{settings}AFFINITYD_MODE=even\n")
    assert exec_("--gpus=0,1", "--rank=1", "--", *LOOK, env=env).cpus == FAR
    conf.write_text(f"{settings}AFFINITYD=observe\n")
    done = exec_("--gpus=1", "--", *TOLD, env={**env, "AFFINITYD": "on"})
    assert done.stdout.splitlines() == [f"Cpus_allowed_list:\t{BOTH}", OBSERVED]


def test_observe_leaves_the_mask_and_exports_the_plan(here: Mapping[str, str]) -> None:
    for gpu, told in (("1", OBSERVED), ("9", "AFFINITYD_UNPINNED=no GPU 9; visible are ")):
        words = ("--fail-closed", f"--gpus={gpu}", "--")
        done = exec_(*words, *TOLD, env={**here, "AFFINITYD": "observe"})
        cpus, line = done.stdout.splitlines()
        assert (cpus, line[: len(told)], done.lines) == (f"Cpus_allowed_list:\t{BOTH}", told, [])


def test_a_daemon_s_switch_still_applies_after_the_daemon_has_ended(tmp_path: Path) -> None:
    env = {"AFFINITYD_SOCKET": str(tmp_path / "affinityd.sock"), "AFFINITYD": "on"}
    for switch, told in (("observe", [OBSERVED]), ("off", [])):
        write_node(tmp_path / "node.json", Node(tiny(), switch=switch))
        plan = f"{PLAN.format(FAR)}AFFINITYD={switch}\n"
        with serving(tmp_path / "affinityd.sock", answering(http("200 OK", plan.encode()))) as path:
            there = exec_("--gpus=1", "--", *TOLD, env=env)
        path.unlink()
        gone = exec_("--gpus=1", "--", *TOLD, env=env)
        for done in (there, gone):
            assert done.stdout.splitlines() == [f"Cpus_allowed_list:\t{BOTH}", *told]
            assert done.stderr == ""


# Variables that `exec` sets for the command.

SEVEN = {"OMP_NUM_THREADS": "7"}


def test_variables_tell_the_command_its_cpus_and_number_of_threads(
    here: Mapping[str, str],
) -> None:
    auto = {"AFFINITYD_THREADS": "auto"}
    for before, words, threads in (
        ({}, [], None),
        ({}, ["--threads"], "1"),
        (auto, [], "1"),
        (SEVEN, ["--threads"], "7"),
    ):
        done = exec_(*words, "--gpus=1", "--", "env", env={**here, **before})
        said = dict(line.split("=", 1) for line in done.stdout.splitlines())
        names = ("AFFINITYD_CPULIST", "AFFINITYD_LOCALITY", "AFFINITYD_ALLOWED", "OMP_NUM_THREADS")
        assert [said.get(name) for name in names] == [FAR, "local", BOTH, threads]
        assert said.get("PYTHON_CPU_COUNT") == ("1" if threads else None)


@needs_cpuset
def test_omp_num_threads_is_at_most_the_process_s_cgroup_limit(here: Mapping[str, str]) -> None:
    """The process has no cgroup namespace of its own: the mount's root is the machine's root."""
    cgroup = Path("/sys/fs/cgroup/cpu", f"test-{os.getpid()}")
    cgroup.mkdir()
    try:
        (cgroup / "cpu.cfs_quota_us").write_text((cgroup / "cpu.cfs_period_us").read_text())
        enter = ("sh", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', cgroup)
        options = ("--threads", "--gpus=0,1", "--", "printenv", "OMP_NUM_THREADS")
        words = (sys.executable, "-m", "affinityd", "exec", *options)
        for before, threads in (((), "2\n"), (enter, "1\n")):
            assert ran(*before, *words, env={**os.environ, **here}).stdout == threads
    finally:
        cgroup.rmdir()


@pytest.mark.parametrize("library", ["OMP", "MKL", "OPENBLAS", "NUMEXPR", "RAYON"])
def test_more_threads_than_cpus_cause_a_line(here: Mapping[str, str], library: str) -> None:
    variable = f"{library}_NUM_THREADS"
    for number, lines in (("7", 1), ("7,2", 1), ("1", 0), ("many", 0)):
        done = exec_("--gpus=1", "--", "true", env={**here, variable: number})
        assert [f"{variable}=7" in line for line in done.lines] == [True] * lines


def test_a_memory_policy_applies_or_a_line_says_that_it_was_refused(
    here: Mapping[str, str],
) -> None:
    look = ("head", "-n1", "/proc/self/numa_maps")
    done = exec_("--memory=bind", "--gpus=0", "--", *look, env=here)
    assert (done.stdout.split()[1], done.stderr) == ("bind:0", "")
    done = exec_("--memory=bind", "--gpus=1", "--", *look, env=here)
    assert (done.status, done.stdout.split()[1]) == (0, "default")  # there is no node 1 here
    assert done.lines
    assert all(line.startswith("affinityd exec: memory: ") for line in done.lines)


# Faults that must not stop the command.


LATE = "no plan within 0.006 s of the start; a larger timeout allows more time; the "


@pytest.mark.parametrize(
    ("behave", "timeout", "cpus", "told"),
    [
        (answering(http("200 OK", PLAN.format(4000).encode())), "60", BOTH, "were refused"),
        (hanging, "0.001", BOTH, LATE),
    ],
    ids=["the daemon answers another job's CPUs", "the daemon hangs"],
)
def test_the_command_runs_although_the_daemon_hangs_or_fails(
    tmp_path: Path, behave: Behaviour, timeout: str, cpus: str, told: str
) -> None:
    large = write_tree(machine("dgx-a100"), tmp_path / "machine")  # slow to read
    env = {"AFFINITYD_ROOT": str(large), "AFFINITYD_TIMEOUT": timeout}
    with serving(tmp_path / "s", behave) as path:
        done = exec_("--gpus=1", "--", *LOOK, env={**env, "AFFINITYD_SOCKET": str(path)})
    assert (done.cpus, len(done.lines)) == (cpus, 1)
    assert told.format(path) in done.stderr


@pytest.mark.parametrize("words", [["--gpus=9", "--", "sh", "-c", "exit 7"], ["--", "/none"]])
def test_a_full_stderr_does_not_end_the_command(here: Mapping[str, str], words: list[str]) -> None:
    program = [sys.executable, str(PROGRAM), "exec", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(program, env={**os.environ, **here}, stderr=full, check=False)
    assert done.returncode == (7 if "sh" in words else 127)


@pytest.mark.parametrize(
    ("switch", "gpus", "number"), [("on", "9", 0), ("observe", "1", 0), ("on", "1", 4)]
)
def test_an_unpinned_command_has_no_variables_of_an_earlier_pin(
    here: Mapping[str, str], switch: str, gpus: str, number: int
) -> None:
    names = ("CPULIST", "ALLOWED", "LOCALITY", "PINNED_FOR")
    env = {**here, "AFFINITYD": switch, **{f"AFFINITYD_{name}": "4000" for name in names}}
    show = "env | grep -cE '^AFFINITYD_(CPULIST|ALLOWED|LOCALITY|PINNED_FOR)='"
    done = exec_(f"--gpus={gpus}", "--", "sh", "-c", f"{show}; :", env=env)
    assert int(done.stdout) == number, done


# Variables that undo the pin.


@pytest.mark.parametrize(
    ("variable", "switch"),
    [
        ("OMP_PROC_BIND=close", "OMP_PROC_BIND=false"),
        ("OMP_PLACES=cores", "OMP_PROC_BIND=false"),
        ("KMP_AFFINITY=compact", "KMP_AFFINITY=none"),
        ("ACCELERATE_CPU_AFFINITY=1", "ACCELERATE_CPU_AFFINITY=0"),
        ("NRL_GPU_CPU_AFFINITY_FILE=/a", "NRL_DISABLE_NUMA_BINDING=1"),
    ],
)
def test_a_variable_that_undoes_the_pin_is_reported_until_its_switch_is_set(
    here: Mapping[str, str], variable: str, switch: str
) -> None:
    name, _, value = variable.partition("=")
    off, _, word = switch.partition("=")
    done = exec_("--gpus=0", "--", "true", env={**here, name: value})
    line = f"{variable} binds threads anew after this pin; to end that: {switch}"
    assert done.stderr == f"affinityd exec: {line}\n"
    assert exec_("--gpus=0", "--", "true", env={**here, name: value, off: word}).stderr == ""


def test_options_of_0_2_for_other_binders_are_refused_or_warned_of(
    here: Mapping[str, str], tmp_path: Path
) -> None:
    touch = ("--", "touch", str(tmp_path / "started"))
    done = exec_("--gpus=0", "--check", *touch, env=here)
    assert (done.status, "exec --check is removed: " in done.stderr) == (125, True)
    assert not (tmp_path / "started").exists()  # --check started nothing
    done = exec_("--gpus=0", "--own", *touch, env=here)
    assert done.stderr.startswith("affinityd exec: --own is removed: docs/exec.md says ")
    own = exec_("--gpus=0", "--", "true", env={**here, "AFFINITYD_OWN": "1"})
    assert own.stderr.startswith("affinityd exec: AFFINITYD_OWN is removed, and ignored: ")
    assert done.stderr.endswith("; the command runs unpinned\n")
    assert (tmp_path / "started").exists()


# The cost of `exec`.


def test_exec_imports_no_slow_module(here: Mapping[str, str]) -> None:
    program = [sys.executable, "-X", "importtime", str(PROGRAM), "exec", "--gpus=1", "--", "true"]
    done = ran(*program, env={**os.environ, **here})
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "affinityd.client.ask_daemon" in imported
    assert not {"dataclasses", "json", "pydantic", "fastapi", "affinityd.planner"} & imported
