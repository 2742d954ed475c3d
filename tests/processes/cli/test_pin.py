"""`affinityd pin`, on real processes and a replayed node."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from affinityd.cli import main, target
from affinityd.cli.commands import pin
from affinityd.client.process import ProcessContext
from affinityd.errors import TargetError
from affinityd.linux.cgroup import mask_of
from affinityd.linux.processes import descendants, stat_of, thread_ids
from tests.support.children import ZOMBIE, children_of, parent_of, program, sleeping
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.machines.sysfs_tree import write_tree
from tests.support.small_node import ALL, FAR, NEAR, TOPOLOGY, refused, use_small_node

Capture = pytest.CaptureFixture[str]

#: A process with a second thread, which has pinned itself to CPU 0, and with a child.
FAMILY = """
import os, sys, threading
def work():
    os.sched_setaffinity(0, {0})
    print('ready', flush=True)
    sys.stdin.read()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=work).start()
"""

#: Runs the command as a user other than root. Root runs it once before, to import all modules:
#: they may be readable for root only.
AS_ANOTHER = """
import contextlib, io, os, sys
from affinityd.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    main([*sys.argv[1:], "--dry-run"])
os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def _small_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_small_node(monkeypatch, tmp_path)


def as_another(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-c", AS_ANOTHER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_process_pinned_to_isolated_cpus_is_reported(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    isolated = tmp_path / "isolated"
    isolated.write_text("1-2")
    monkeypatch.setattr(pin, "ISOLATED", os.fspath(isolated))
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        said = []
        for _ in range(2):  # the second pin changes nothing
            assert main(["pin", "--cpus", "1", f"{child.pid}"]) == 0
            said.append(capsys.readouterr().err.partition(";")[0])
    assert said == ["affinityd pin: isolated (isolcpus=): CPU 1", ""]


def test_a_process_is_pinned_near_the_gpu_that_its_environment_names(capsys: Capture) -> None:
    rank = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for env, cpus in (({"CUDA_VISIBLE_DEVICES": "0"}, NEAR), (rank, FAR)):
        with sleeping(env=env) as child:
            assert main(["pin", str(child.pid)]) == 0
            assert mask_of(child.pid) == cpus
            name = target.shown(target.living(child.pid))
        assert capsys.readouterr() == (f"{name}: 1 thread pinned to CPUs {min(cpus)}\n", "")


@needs_cpuset
def test_the_cpuset_is_a_limit_to_the_plan(capsys: Capture) -> None:
    with cpuset() as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        (folder / "cpuset.cpus").write_text(str(min(FAR)))
        assert main(["pin", str(child.pid), "--gpus", "0"]) == 0
        assert mask_of(child.pid) == FAR
    assert capsys.readouterr().err.startswith("affinityd: remote_home: rank 0 ")


def test_tree_pins_descendants_too_and_force_pins_all_threads(capsys: Capture) -> None:
    with program(FAMILY) as child:
        tids = thread_ids(child.pid)
        for flags, masks in (
            (["--tree", "--dry-run"], [ALL, FAR, ALL]),
            ([], [NEAR, FAR, ALL]),
            (["--tree"], [NEAR, FAR, NEAR]),
            (["--tree", "--force"], [NEAR, NEAR, NEAR]),
        ):
            assert main(["pin", str(child.pid), "--gpus", "0", *flags]) == 0
            assert [mask_of(tid) for tid in (*tids, *children_of(child.pid))] == masks
    lines = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    left_alone = f"1 thread would be left alone on CPUs 0: {tids[1]}: probably pinned on purpose"
    assert lines[:2] == ["1 thread would be pinned to CPUs 1"] * 2
    assert lines[2].startswith(left_alone)


def test_pin_with_cpus_makes_no_plan_and_fails_if_the_mask_is_smaller(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AFFINITYD_ROOT", os.fspath(tmp_path / "nowhere"))
    with sleeping() as child:
        assert main(["pin", str(child.pid), "--cpus", "1"]) == 0
        assert mask_of(child.pid) == NEAR
        assert main(["pin", str(child.pid), "--cpus", "0,4000"]) == 1
        assert mask_of(child.pid) == FAR
    said = capsys.readouterr()
    assert said.out.endswith("1 thread pinned to CPUs 0\n")
    assert said.err.endswith("got CPUs 0 of 0,4000: the cpuset, or the node, has no more\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_root_another_users_process_is_not_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory() as folder, parent_of(*[{}] * 12) as child:
        Path(folder).chmod(0o755)  # pytest's folders are for root alone
        monkeypatch.setenv("AFFINITYD_ROOT", os.fspath(write_tree(TOPOLOGY, Path(folder, "root"))))
        monkeypatch.setenv("AFFINITYD_CONFIG", f"{folder}/none")
        unnamed = as_another("pin", str(child.pid))
        named = as_another("pin", str(child.pid), "--gpus", "0", "--dry-run")
        status, _, complaint = as_another("pin", str(child.pid), "--cpus", "0", "--tree")
        assert {mask_of(stat.number) for stat in descendants(child.pid)} == {ALL}
        name = target.shown(target.living(child.pid))
    cause = "cannot be read: it is another user's, or has ended; give --gpus, or run this as root"
    assert unnamed == (2, "", f"affinityd pin: the environment of {name} {cause}\n")
    assert named == (0, f"{name}: 1 thread would be pinned to CPUs 1\n", "")
    first, *_, last = complaint.splitlines()
    assert (status, complaint.count("\n")) == (1, 11)
    assert "1 thread refused, still on CPUs 0-1: EPERM: it is another user's" in first
    assert last == "affinityd pin: and 3 more"


def test_root_that_may_not_read_an_environment_is_not_told_to_become_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden = ProcessContext(os.getpid(), 0, None, None)
    planner = target.ProcessPlanner({}, divides=False, context=lambda _: hidden)
    for user, advice in ((1000, "run this as root$"), (0, "no CAP_SYS_PTRACE, .*; give --gpus$")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(TargetError, match=advice):
            planner.plan(target.living(os.getpid()))


@pytest.mark.parametrize("command", ["pin", "verify"])
def test_an_invalid_pid_is_an_error_of_one_line(capsys: Capture, command: str) -> None:
    for text in ("abc", "0", "-1", "1_0", "²"):
        said = f"affinityd {command}: argument PID: '{text}' is not a PID; a PID is a number from 1"
        assert refused(capsys, command, text).startswith(said)
    assert "argument PID: '9999" in refused(capsys, command, "9" * 5000)
    said = f"affinityd {command}: there is no process 999999999\n"
    assert refused(capsys, command, "999999999") == said


@pytest.mark.parametrize("command", [("pin",), ("verify",)])
def test_errors_distinguish_threads_zombies_and_kernel_threads(
    capsys: Capture, command: tuple[str, ...]
) -> None:
    with program(FAMILY) as child:
        _, tid = thread_ids(child.pid)
        said = f": {tid} is a thread of process {child.pid}; name the process\n"
        assert refused(capsys, *command, str(tid)).endswith(said)
    with program(ZOMBIE) as child:
        (zombie,) = children_of(child.pid)
        said = f"has ended; its parent, {child.pid}, has not"
        assert said in refused(capsys, *command, str(zombie))
    if stat_of(2) is not None:
        said = "process 2 (kthreadd) is a thread of the kernel"
        assert said in refused(capsys, *command, "2")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--cpus 0 --min-physical-cores 2", "--cpus needs no plan; leave out --min-physical-cores"),
        ("--cpus 0-", "--cpus: '0-' is not a CPU number or range; write it like 0-3,8,10-11"),
        ("--gpus 0 --gpus 1", "gpus is given twice; give it once"),
        ("--mode fast", "mode: 'fast' is not one of all,"),
        ("--gpus 7", "no GPU 7; visible are 0"),
    ],
)
def test_invalid_options_are_usage_errors_and_pin_nothing(
    capsys: Capture, flags: str, line: str
) -> None:
    status = 1 if "GPU " in line else 2
    with sleeping() as child:
        assert line in refused(capsys, "pin", str(child.pid), *flags.split(), status=status)
        assert mask_of(child.pid) == ALL


def test_a_mode_of_the_command_line_comes_before_the_job_s_and_then_the_site_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AFFINITYD_MODE", "even")
    for job, words, cpus in (("", [], FAR), ("node", [], NEAR), ("even", ["--mode=node"], NEAR)):
        task = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "AFFINITYD_MODE": job}
        with sleeping(env=task) as child:
            assert main(["pin", str(child.pid), *words]) == 0
            assert mask_of(child.pid) == cpus


#: A lone task of Slurm on both CPUs, and two tasks that share both CPUs: no task has a slice.
SHARED_CPUS = ("0x3", "0x3,0x3")


@pytest.mark.parametrize("masks", SHARED_CPUS)
def test_a_slurm_task_without_a_slice_keeps_the_mask_that_the_user_narrowed(
    capsys: Capture, masks: str
) -> None:
    tasks = masks.count(",") + 1
    task = {
        "CUDA_VISIBLE_DEVICES": "0",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": ",".join(f"{number}" for number in range(tasks)),
        "SLURM_CPU_BIND_TYPE": "mask_cpu:",
        "SLURM_CPU_BIND_LIST": masks,
    }
    with sleeping(env=task) as child:
        assert main(["pin", str(child.pid)]) == 0
        assert mask_of(child.pid) == NEAR
    with sleeping(env=task, before=("taskset", "-c", "0")) as child:
        capsys.readouterr()
        said = refused(capsys, "pin", str(child.pid), status=1)
        assert mask_of(child.pid) == FAR
    assert said.endswith("its CPUs were narrowed to 0 by the user\n")


def test_control_characters_of_a_process_name_are_escaped(capsys: Capture) -> None:
    code = "open('/proc/self/comm', 'w').write('\\x1b[31m) \\n'); print('x', flush=True); input()"
    with program(code) as child:
        assert main(["pin", str(child.pid), "--gpus", "0"]) == 0
    assert capsys.readouterr().out.startswith(rf"process {child.pid} (\x1b[31m) \n): 1 thread")


@needs_cpuset
def test_outside_a_slurm_job_a_warning_says_that_the_job_s_gpu_numbers_may_differ(
    capsys: Capture,
) -> None:
    def said_of(devices: str, *flags: str, folder: Path | None = None) -> str:
        with sleeping(env={"SLURM_JOB_ID": "77", "CUDA_VISIBLE_DEVICES": devices}) as child:
            if folder is not None:
                (folder / "cgroup.procs").write_text(str(child.pid))
            assert main(["pin", str(child.pid), *flags]) == 0
        said = capsys.readouterr().err.splitlines()
        return "\n".join(line for line in said if "widened" not in line)

    with cpuset() as folder:
        assert "run this within its job (srun --overlap --jobid 77)" in said_of("0", folder=folder)
        assert said_of("1", folder=folder) == ""  # not counted from 0
        assert said_of("0,1", folder=folder) == ""  # all GPUs of the node
        assert said_of("0", "--granted", "0", folder=folder) == ""
    assert said_of("0") == ""
