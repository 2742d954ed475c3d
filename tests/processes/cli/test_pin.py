"""`affinityd pin`, on real processes and a replayed node."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from affinityd.cli import main, plan_options, target
from affinityd.cli.commands import pin
from affinityd.cli.parser import Parser
from affinityd.cpuset import CpuSet
from affinityd.linux.pinning import PinResult
from affinityd.linux.process_table import descendants
from affinityd.linux.processes import mask_of, stat_of, thread_ids
from affinityd.request.parameters import PARAMETERS
from tests.support.children import program, sleeping
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.daemons import eventually
from tests.support.machines.sysfs_tree import write_tree
from tests.support.small_node import ALL, FAR, NEAR, TOPOLOGY, use_small_node

#: A thread more, which has pinned itself to CPU 0; and a child.
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

#: Twelve children.
CROWD = """
import os, sys
for _ in range(12):
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
print('ready', flush=True)
sys.stdin.read()
"""

#: Two ranks.
RANKS = """
import os, sys
for rank in range(2):
    environ = {'LOCAL_RANK': str(rank), 'LOCAL_WORLD_SIZE': '2'}
    if os.fork() == 0:
        os.execve('/bin/cat', ['cat'], environ)
print('ready', flush=True)
sys.stdin.read()
"""

ZOMBIE = """
import os
pid = os.fork() or os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print('ready', flush=True)
input()
"""

#: The command, run by another user than root; rehearsed, so that all is imported by root, who
#: alone may be able to read it.
AS_NOBODY = """
import contextlib, io, os, sys
from affinityd.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    main([*sys.argv[1:], "--dry-run"])
os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(autouse=True)
def _small_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_small_node(monkeypatch, tmp_path)


def as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *arguments], capture_output=True, text=True, check=False
    )


def test_a_process_is_pinned_near_the_gpu_that_its_environment_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for devices, cpus in (("0", NEAR), ("1", FAR)):
        with sleeping(env={"CUDA_VISIBLE_DEVICES": devices}) as child:
            assert main(["pin", str(child.pid)]) == 0
            assert mask_of(child.pid) == cpus
            name = target.shown(target.living(child.pid))
        said = capsys.readouterr()
        assert said.out == f"{name}: 1 thread pinned to CPUs {min(cpus)}\n"
        assert said.err == ""


def test_a_local_rank_has_the_gpu_of_its_number() -> None:
    with sleeping(env={"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}) as child:
        assert main(["pin", str(child.pid)]) == 0
        assert mask_of(child.pid) == FAR


def test_a_mask_that_is_wrong_is_no_limit_to_the_plan() -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        assert main(["pin", str(child.pid), "--gpus", "0"]) == 0
        assert mask_of(child.pid) == NEAR


@needs_cpuset
def test_the_cpuset_is_a_limit_to_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    with cpuset() as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        (folder / "cpuset.cpus").write_text(str(min(FAR)))
        assert main(["pin", str(child.pid), "--gpus", "0"]) == 0
        assert mask_of(child.pid) == FAR
    assert capsys.readouterr().err.startswith("affinityd: remote_home: rank 0 ")


def test_a_dry_run_says_what_would_be_and_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with program(FAMILY) as child:
        assert main(["pin", str(child.pid), "--cpus", "1", "--tree", "--dry-run"]) == 0
        tids = thread_ids(child.pid)
        assert [mask_of(tid) for tid in tids] == [ALL, FAR]
    lines = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "1 thread would be pinned to CPUs 1",
        "1 thread would be pinned to CPUs 1",
        f"1 thread would be left alone on CPUs 0: {tids[1]}: {pin.ON_PURPOSE}",
    ]


def test_with_a_list_no_plan_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AFFINITYD_ROOT", os.fspath(tmp_path / "nowhere"))
    with sleeping() as child:
        assert main(["pin", str(child.pid), "--cpus", "1"]) == 0
        assert mask_of(child.pid) == NEAR


@pytest.mark.parametrize(
    ("flags", "main_s", "other_s", "child_s"),
    [
        ([], NEAR, FAR, ALL),
        (["--force"], NEAR, NEAR, ALL),
        (["--tree"], NEAR, FAR, NEAR),
        (["--tree", "--force"], NEAR, NEAR, NEAR),
    ],
)
def test_tree_and_force_say_how_far_it_goes(
    flags: list[str], main_s: frozenset[int], other_s: frozenset[int], child_s: frozenset[int]
) -> None:
    with program(FAMILY) as child:
        assert main(["pin", str(child.pid), "--gpus", "0", *flags]) == 0
        assert [mask_of(tid) for tid in thread_ids(child.pid)] == [main_s, other_s]
        assert [mask_of(stat.number) for stat in descendants(child.pid)] == [child_s]


def test_less_than_was_asked_is_said_and_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    with sleeping() as child:
        assert main(["pin", str(child.pid), "--cpus", "1,4000"]) == 1
        assert mask_of(child.pid) == NEAR
    said = capsys.readouterr()
    assert said.out.endswith("1 thread pinned to CPUs 1\n")
    assert said.err.endswith("got CPUs 1 of 1,4000: the cpuset, or the node, has no more\n")


@only_root
def test_of_much_that_is_refused_ten_lines_are_said() -> None:
    with program(CROWD) as child:
        done = as_nobody("pin", str(child.pid), "--cpus", "0", "--tree")
        assert {mask_of(stat.number) for stat in descendants(child.pid)} == {ALL}
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (1, "", 11)
    assert lines[0].endswith(
        "1 thread refused, still on CPUs 0-1: EPERM: it is another user's; "
        "only root (CAP_SYS_NICE) may pin it"
    )
    assert lines[-1] == "affinityd pin: and 3 more"


@only_root
def test_of_another_users_process_the_gpus_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder, sleeping() as child:
        Path(folder).chmod(0o755)  # pytest's own are for root alone
        monkeypatch.setenv("AFFINITYD_ROOT", os.fspath(write_tree(TOPOLOGY, Path(folder, "root"))))
        done = as_nobody("pin", str(child.pid))
        named = as_nobody("pin", str(child.pid), "--gpus", "0", "--dry-run")
        name = target.shown(target.living(child.pid))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"affinityd pin: the environment of {name} cannot be read: it is another user's, or gone; "
        "name --gpus, or run this as root\n"
    )
    assert (named.returncode, named.stderr) == (0, "")
    assert named.stdout == f"{name}: 1 thread would be pinned to CPUs 1\n"


@pytest.mark.parametrize("command", ["pin", "verify"])
@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("abc", 2, "argument PID: 'abc' is no PID; it is a number from 1"),
        ("0", 2, "argument PID: '0' is no PID; it is a number from 1"),
        ("-1", 2, "argument PID: '-1' is no PID; it is a number from 1"),
        ("1_0", 2, "argument PID: '1_0' is no PID; it is a number from 1"),
        ("²", 2, "argument PID: '²' is no PID; it is a number from 1"),
        ("9" * 5000, 2, "argument PID: '9999"),
        ("999999999", 2, "there is no process 999999999\n"),
    ],
)
def test_what_is_no_process_is_one_line(
    capsys: pytest.CaptureFixture[str], command: str, text: str, code: int, line: str
) -> None:
    assert result([command, text]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"affinityd {command}: {line}")
    assert said.err.count("\n") == 1


def result(arguments: list[str]) -> object:
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("command", ["pin", "verify"])
def test_a_thread_a_zombie_and_the_kernels_own_are_told_apart(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with program(FAMILY) as child:
        _, tid = thread_ids(child.pid)
        assert main([command, str(tid)]) == 2
        said = capsys.readouterr().err
        assert said == f"affinityd {command}: {tid} is a thread of process {child.pid}; name that\n"
    with program(ZOMBIE) as child:
        (zombie,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        assert main([command, zombie]) == 2
        assert f"has ended; its parent, {child.pid}, has not" in capsys.readouterr().err
    if stat_of(2) is not None:
        assert main([command, "2"]) == 2
        assert "process 2 (kthreadd) is a thread of the kernel" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--cpus", "0", "--gpus", "0"], "--cpus needs no plan; leave out --gpus"),
        (["--cpus", "0", "--min-physical-cores", "2"], "leave out --min-physical-cores"),
        (["--cpus", ""], "--cpus is empty; write it like 0-3,8"),
        (["--cpus", "0-"], "--cpus: '0-' is not a CPU number or range; write it like 0-3,8,10-11"),
        (["--gpus", "0", "--gpus", "1"], "gpus is given twice; give it once"),
        (["--mode", "fast"], "mode: 'fast' is not one of all,"),
        (["--gpus", ""], "gpus is empty; give it a value"),
    ],
)
def test_options_that_cannot_be_are_bad_usage_and_nothing_is_done(
    capsys: pytest.CaptureFixture[str], flags: list[str], line: str
) -> None:
    with sleeping() as child:
        assert main(["pin", str(child.pid), *flags]) == 2
        assert mask_of(child.pid) == ALL
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert line in said.err


def test_a_gpu_that_is_not_there_is_no_plan_and_nothing_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with sleeping() as child:
        assert main(["pin", str(child.pid), "--gpus", "7"]) == 1
        assert mask_of(child.pid) == ALL
    assert capsys.readouterr().err.startswith("affinityd pin: no GPU 7; visible are 0")


@pytest.mark.parametrize(
    ("site", "job", "words", "cpus"),
    [
        ("", "", [], NEAR),
        ("even", "", [], FAR),
        ("even", "node", [], NEAR),
        ("node", "even", [], FAR),
        ("node", "even", ["--mode", "node"], NEAR),
    ],
)
def test_a_site_s_mode_counts_and_the_job_s_more_and_the_command_line_most(
    monkeypatch: pytest.MonkeyPatch, site: str, job: str, words: list[str], cpus: CpuSet
) -> None:
    monkeypatch.setenv("AFFINITYD_MODE", site)
    task = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "AFFINITYD_MODE": job}
    with sleeping(env=task) as child:
        assert main(["pin", str(child.pid), *words]) == 0
        assert mask_of(child.pid) == cpus


def test_every_parameter_of_a_plan_that_is_no_client_s_own_is_an_option() -> None:
    parser = Parser()
    plan_options.add_options(parser, "the plan", plan_options.NAMES)
    options = {option for action in parser._actions for option in action.option_strings}
    names = PARAMETERS.keys() - {"format", "observe"}
    expected = {f"--{name.replace('_', '-')}" for name in names}
    assert options == expected | {"-h", "--help"}


def test_names_cannot_do_anything_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    code = "open('/proc/self/comm', 'w').write('\\x1b[31m) \\n'); print('x', flush=True); input()"
    with program(code) as child:
        assert main(["pin", str(child.pid), "--gpus", "0"]) == 0
    assert capsys.readouterr().out.startswith(rf"process {child.pid} (\x1b[31m) \n): 1 thread")


def test_children_that_nobody_pinned_follow_though_their_process_went_before() -> None:
    with program(CROWD) as child:
        assert main(["pin", str(child.pid), "--gpus", "0"]) == 0
        assert {mask_of(it.number) for it in descendants(child.pid)} == {ALL}
        assert main(["pin", "--tree", str(child.pid), "--gpus", "0"]) == 0
        assert {mask_of(it.number) for it in descendants(child.pid)} == {NEAR}


def test_each_rank_of_a_launcher_is_pinned_near_its_own_gpu() -> None:
    with program(RANKS) as child:
        eventually(lambda: names(child.pid) == ["cat", "cat"], "both ranks run")
        assert main(["pin", "--tree", str(child.pid)]) == 0
        ranks = [mask_of(rank.number) for rank in descendants(child.pid)]
        assert (mask_of(child.pid), ranks) == (NEAR | FAR, [NEAR, FAR])
        assert main(["verify", str(child.pid)]) == 0


def names(pid: int) -> list[str]:
    return [child.name for child in descendants(pid)]


def test_a_process_that_ended_meanwhile_is_said_to_have() -> None:
    stat = stat_of(os.getpid())
    assert stat is not None
    assert list(pin._failures(PinResult((), is_settled=True), stat)) == [
        f"{target.shown(stat)} has ended meanwhile"
    ]


@needs_cpuset
def test_slurms_numbers_are_doubted_from_outside_of_its_job(
    capsys: pytest.CaptureFixture[str],
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
        assert said_of("1", folder=folder) == ""  # whose number is not counted from 0
        assert said_of("0,1", folder=folder) == ""  # all that the node has
        assert said_of("0", "--granted", "0", folder=folder) == ""
    assert said_of("0") == ""
