"""A process that was bound earlier: by affinityd, or by an OpenMP runtime."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.daemons import Daemon, running
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import write_tree
from tests.support.tiny import BOTH, FAR, NEAR, PROGRAM, exec_, ran, tiny_tree

FEWER = (
    "1 of 2 allowed CPUs is near the GPU, fewer than were asked for: the nearest others were added "
    "(AFFINITYD_CPUS=none leaves them out)"
)
EXEC = (sys.executable, str(PROGRAM), "exec")
#: Prints the CPUs that a program has after a call of affinityd.bind().
BIND = "import affinityd, os; affinityd.bind({}); print('x:', *sorted(os.sched_getaffinity(0)))"


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon on a machine with two GPUs on one node, which has both CPUs."""
    folder = tmp_path_factory.mktemp("one-node")
    machine = tiny_tree(folder / "machine", 0, 0)
    (machine / "sys/devices/system/node/node0/cpulist").write_text(BOTH)
    with running(folder, "--root", str(machine)) as daemon:
        yield daemon


@pytest.fixture
def shared(one_node: Daemon) -> Mapping[str, str]:
    socket = str(one_node.socket)
    return {
        "AFFINITYD_SOCKET": socket,
        "AFFINITYD_CONFIG": "/nonexistent",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


#: Pins to the second of two near CPUs; mode node would give both.
SECOND = ("--gpus=0,1", "--rank=1", "--mode=unique-contiguous", "--")
SHOW = ("grep", "Cpus_allowed_list", "/proc/self/status")


def bind(arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", BIND.format(arguments))


@pytest.mark.parametrize(
    ("then", "cpus"),
    [
        ((*EXEC, *SHOW), FAR),
        ((*EXEC, "--memory=local", "--nics=ucx", "--threads", "--", *SHOW), FAR),
        (bind(""), FAR),
        (bind("memory='local'"), FAR),
        ((*EXEC, "--mode=node", "--", *SHOW), BOTH),
        ((*EXEC, "--gpus=0", "--", *SHOW), BOTH),
        (bind("mode='node'"), BOTH.replace("-", " ")),
        (("env", "CUDA_VISIBLE_DEVICES=0", *EXEC, *SHOW), BOTH),
        (("env", "LOCAL_RANK=0", *EXEC, *SHOW), BOTH),
        (("env", "AFFINITYD_MODE=all", *bind("")), BOTH.replace("-", " ")),
    ],
    ids=" ".join,
)
def test_a_process_keeps_its_pin_unless_its_task_changes(
    shared: Mapping[str, str], then: tuple[str, ...], cpus: str
) -> None:
    done = exec_(*SECOND, *then, env=shared)
    assert done.cpus == cpus
    assert [line for line in done.lines if "UCX" not in line] == []


def test_a_kept_pin_is_shown_with_verbose_and_counts_as_a_binding(
    shared: Mapping[str, str],
) -> None:
    done = exec_(*SECOND, *EXEC, "-v", "--", "true", env=shared)
    assert done.lines == [f"affinityd exec: this process keeps the CPU {FAR} of an earlier pin"]
    code = "import affinityd; b = affinityd.bind(); print(b.pinned, b.source, b.locality, *b.cpus)"
    done = exec_(*SECOND, sys.executable, "-c", code, env=shared)
    assert (done.stdout, done.stderr) == (f"True kept local {FAR}\n", "")


@needs_cpuset
@pytest.mark.parametrize(
    ("gpus", "cpus"), [("0", NEAR), ("1", NEAR)], ids=["a near mask", "a far mask"]
)
def test_a_mask_that_is_not_narrowed_follows_its_cpuset(
    here: Mapping[str, str], gpus: str, cpus: str
) -> None:
    with cpuset() as group:
        (group / "cpuset.cpus").write_text(cpus)
        enter = ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        look = "echo; read line; grep Cpus_allowed_list /proc/self/status"
        command = (*enter, *EXEC, f"--gpus={gpus}", "--", "sh", "-c", look)
        environ = {**os.environ, **here}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            (group / "cpuset.cpus").write_text(BOTH)
            printed, _ = child.communicate("go\n")
    assert printed.split()[1] == BOTH


#: Loads libgomp, which may bind the main thread, and calls affinityd. Prints the masks of two
#: parallel threads before the call; then the main thread's mask, both masks again, and warnings.
OPENMP = """
import ctypes, json, os, threading, warnings
import affinityd
gomp = ctypes.CDLL("libgomp.so.1")
masks = {{}}
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def work(_):
    masks[threading.get_native_id()] = sorted(os.sched_getaffinity(0))
    barrier.wait()
def team():
    masks.clear(); gomp.GOMP_parallel(work, None, 2, 0)
    return [masks.pop(os.getpid()), *masks.values()]
barrier = threading.Barrier(2)
first = team() if {has_team} else None
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    result = {call}
lines = [*getattr(result, "warnings", ()), *(str(it.message) for it in told)]
print(json.dumps([first, sorted(os.sched_getaffinity(0)), team(), lines]))
"""
CLOSE = {"OMP_PROC_BIND": "close", "OMP_PLACES": "threads", "OMP_NUM_THREADS": "2"}
TORCHRUN = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MPIRUN = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
ON_NEAR, ON_FAR = [int(NEAR)], [int(FAR)]
EITHER = [*ON_NEAR, *ON_FAR]
FIRST_REGION = "call bind() before the first parallel region"
KEPT_THREAD = f"1 thread of this process had CPUs of their own, and keep them, {FAR}"
SHARED = "a library was loaded before bind(), and its 2 threads share 1 CPU"


@pytest.mark.parametrize(
    ("env", "has_team", "call", "main", "team", "line"),
    [
        # The launcher's mask cannot be found any more: the threads stay where they are.
        ({**CLOSE, **MPIRUN}, True, "affinityd.bind()", ON_NEAR, [ON_NEAR, ON_FAR], FIRST_REGION),
        ({**CLOSE, **MPIRUN}, False, "affinityd.bind()", ON_NEAR, [ON_NEAR, ON_FAR], FIRST_REGION),
        ({**CLOSE, **MPIRUN}, False, "affinityd.set_affinity(1, 2)", ON_NEAR, None, FIRST_REGION),
        # No launcher has bound the rank: the main thread moves near its GPU.
        ({**CLOSE, **TORCHRUN}, True, "affinityd.bind()", ON_FAR, [ON_FAR, ON_FAR], None),
        ({**CLOSE, **TORCHRUN}, False, "affinityd.set_affinity(1, 2)", ON_FAR, None, None),
        (CLOSE, True, "affinityd.bind(gpus=0)", ON_NEAR, [ON_NEAR, ON_FAR], KEPT_THREAD),
        # A pool that is not bound.
        (TORCHRUN, True, "affinityd.bind()", ON_FAR, [ON_FAR, ON_FAR], SHARED),
        (TORCHRUN, False, "affinityd.bind()", ON_FAR, [ON_FAR, ON_FAR], SHARED),
        ({**TORCHRUN, "OMP_NUM_THREADS": "1"}, False, "affinityd.bind()", ON_FAR, None, None),
        ({**CLOSE, "OMP_PROC_BIND": "false"}, True, "affinityd.bind(1)", ON_FAR, None, SHARED),
    ],
)
def test_threads_bound_by_openmp_are_left_alone_and_a_pool_causes_a_warning(
    here: Mapping[str, str],
    *,
    env: dict[str, str],
    has_team: bool,
    call: str,
    main: list[int],
    team: list[list[int]] | None,
    line: str | None,
) -> None:
    code = OPENMP.format(has_team=has_team, call=call)
    environ = {"PATH": os.environ["PATH"], **here, **env}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environ, text=True)
    first, mask, threads, said = json.loads(printed)
    lines = [line for line in said if "after this pin" not in line and "replayed" not in line]
    is_bound = env.get("OMP_PROC_BIND") == "close"
    if has_team:
        assert first == ([ON_NEAR, ON_FAR] if is_bound else [EITHER, EITHER])
    assert mask == main
    if team is not None:
        assert threads == team
    assert [FIRST_REGION in it or it.startswith(line or "-") for it in lines] == [True] * bool(line)


def test_set_affinity_raises_no_error_for_a_machine_s_state(shared: Mapping[str, str]) -> None:
    """Two ranks may use only one CPU; NVIDIA's package would end all ranks here."""
    code = (
        f"import affinityd, os; os.sched_setaffinity(0, [{NEAR}]);"
        "print(*affinityd.set_affinity(1, 2{}))"
    )
    words = [sys.executable, "-c"]
    done = ran(*words, code.format(""), env={**os.environ, **shared})
    assert (done.status, done.stdout) == (0, f"{NEAR}\n")
    assert "would have 0 physical cores" in done.stderr
    done = ran(*words, code.format(", min_physical_cores=2"), env={**os.environ, **shared})
    assert done.status == 1
    assert done.lines[-1].startswith("affinityd.errors.UnsatisfiableError: rank")


def test_one_line_says_that_far_cpus_were_added_in_part_of_a_machine(tmp_path: Path) -> None:
    """The machine has 32 CPUs; this process may use two, and one of these is near its GPU."""
    nodes = {0: f"{FAR},4-18", 1: f"{NEAR},19-33"}
    machine = write_tree(made(nodes, gpus=[1, 1, 0, 0]), tmp_path)
    env = {"AFFINITYD_SOCKET": "/nonexistent", "AFFINITYD_ROOT": str(machine)}
    for variables, cpus, lines in (
        ({}, BOTH, [f"affinityd exec: {FEWER}"]),
        ({"AFFINITYD_CPUS": "none"}, NEAR, []),
    ):
        done = exec_("--gpus=0", "--", *SHOW, env={**env, **variables})
        assert (done.cpus, done.lines) == (cpus, lines)
