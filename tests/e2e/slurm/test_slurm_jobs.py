"""A job's note, from its prolog to its epilog; jobs that share a GPU; steps within steps."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.slurm.node import HOME, LOOK, SCRIPTS, Node, node, read_tasks
from tests.e2e.slurm.rig import Setup
from tests.support.daemons import PATIENCE, eventually
from tests.support.tiny import BOTH, FAR, NEAR

TWO = ("--ntasks=2", "--gres=gpu:small:2")
CONFINED = Setup(task_plugin="task/affinity,task/cgroup", constrain_devices=True)


@pytest.fixture(scope="module")
def it(release: str) -> Iterator[Node]:
    conf = ("LaunchParameters=use_interactive_step",)
    with node(Setup(task_plugin="task/affinity", conf=conf, release=release)) as made:
        yield made


@pytest.fixture
def notes(it: Node) -> Path:
    """Return their folder, which has none: the jobs of other tests are over."""
    folder = it.folder / "jobs"
    folder.mkdir(exist_ok=True)  # as the first job's prolog has it
    eventually(lambda: not [*folder.glob("[0-9]*")], "the epilogs ran")
    return folder


def job_of(printed: str) -> str:
    """Return the number of the job that printed SLURM_JOB_ID."""
    found = re.search(r"SLURM_JOB_ID=(\d+)", printed)
    assert found, printed
    return found[1]


def test_a_note_names_the_job_s_gpus_as_long_as_it_lives(it: Node, notes: Path) -> None:
    look = (
        "cat /run/affinityd/jobs/$SLURM_JOB_ID; stat -c '%U %a' /run/affinityd/jobs/$SLURM_JOB_ID"
    )
    printed = it.cluster.srun("-n1", "--gres=gpu:small:2", "/bin/sh", "-c", f"{look}; env")
    assert printed.splitlines()[:2] == ["0: gpus=2,3", "0: root 644"]
    eventually(lambda: not (notes / job_of(printed)).exists(), "the epilog ran")


def test_the_note_of_a_job_without_gpus_is_empty(it: Node) -> None:
    printed = it.cluster.srun("-n1", "/bin/sh", "-c", "cat /run/affinityd/jobs/$SLURM_JOB_ID")
    assert printed.startswith("0: gpus=\n")


def test_a_note_of_a_job_that_has_gone_goes_with_the_next_job_on_its_gpus(
    it: Node, notes: Path
) -> None:
    """A young one may be of a job that is about to start: it shares the GPU."""
    hour, stale = 3600, {"91": ("2", 0.1), "92": ("2", 1), "93": ("0", 1), "94": ("0", 48)}
    for job, (gpu, age) in stale.items():
        (notes / job).write_text(f"gpus={gpu}\n")
        when = time.time() - age * hour
        os.utime(notes / job, (when, when))
    tasks = it.tasks(*TWO)
    left = [job for job in stale if (notes / job).exists()]
    for job in left:
        (notes / job).unlink()
    assert left == ["91", "93"]
    assert {task.variables["WARNINGS"] for task in tasks} == {"shared_gpu"}


def test_gpus_of_a_note_that_are_not_the_task_s_do_not_count(it: Node, notes: Path) -> None:
    """As where gres.conf names GPUs in another order than the node's."""
    script = f"sleep 0.3; srun --label {' '.join(LOOK[:2])} '{LOOK[2]}'"
    done = threading.Event()

    def falsify() -> None:
        eventually(lambda: [*notes.glob("[0-9]*")], "the note is there")
        (note,) = notes.glob("[0-9]*")
        note.write_text("gpus=0\n")
        done.set()

    thread = threading.Thread(target=falsify)
    thread.start()
    tasks = read_tasks(it.cluster.sbatch(script, *TWO))
    thread.join()
    assert done.is_set()
    assert [task.cpus for task in tasks] == [HOME[2], HOME[3]]
    assert all("JOB_GPUS" not in task.variables for task in tasks)


@pytest.mark.parametrize("text", ["gpus=2;id", "gpus=$(id)", "x" * 100_000, ""])
def test_a_note_that_is_no_note_is_passed_over(it: Node, notes: Path, text: str) -> None:
    """But in a unique mode nothing else keeps tasks apart where cores are fewer than GPUs."""
    script = f"sleep 0.3; srun --label {' '.join(LOOK[:2])} '{LOOK[2]}'"

    def falsify() -> None:
        eventually(lambda: [*notes.glob("[0-9]*")], "the note is there")
        next(notes.glob("[0-9]*")).write_text(text)

    thread = threading.Thread(target=falsify)
    thread.start()
    unique = script.removeprefix("sleep 0.3; ")
    both = f"{script}; echo next; AFFINITYD_MODE=exclusive {unique}"
    printed = it.cluster.sbatch(both, *TWO)
    thread.join()
    shared, apart = map(read_tasks, printed.split("next\n"))
    assert [task.cpus for task in shared] == [HOME[2], HOME[3]]
    why = "no note of the job, and fewer cores than GPUs"
    assert [task.unpinned for task in apart] == [why, why]


def test_steps_side_by_side_on_a_gpu_each_are_near_it_and_apart(it: Node) -> None:
    look = f"{' '.join(LOOK[:2])} '{LOOK[2]}; sleep 0.5'"
    step = f"srun -n1 --exact --gres=gpu:small:1 --output=%J {look}"
    script = f"cd $(mktemp -d); {step} & {step} & wait; sleep 0.1; cat *.0; echo next; cat *.1"
    env = {"AFFINITYD_MODE": "unique-contiguous"}
    printed = it.cluster.sbatch(script, *TWO, env=env)
    steps = [read_tasks(part)[0] for part in printed.split("next\n")]
    assert sorted(task.cpus for task in steps) == [NEAR, FAR]
    assert [task.unpinned for task in steps] == [None, None]  # each has its CPU to itself


def test_an_overlapping_step_has_what_its_gpus_have(it: Node) -> None:
    """As `srun --overlap --pty bash` of somebody who looks after a job."""
    look = f"{' '.join(LOOK[:2])} '{LOOK[2]}'"
    (task,) = read_tasks(it.cluster.sbatch(f"srun --overlap -n1 {look}", *TWO))
    assert (task.cpus, task.variables["LOCALITY"]) == (BOTH, "local")


def test_an_interactive_step_has_all_of_its_job_s(it: Node) -> None:
    """salloc with use_interactive_step, which wants a terminal."""
    main, terminal = pty.openpty()
    conf = {"SLURM_CONF": f"{it.cluster.folder}/slurm.conf", "SHELL": "/bin/sh"}
    process = subprocess.Popen(
        it.cluster.command("setsid", "--ctty", "--wait", "salloc", *TWO),
        env={"PATH": os.environ["PATH"], **conf},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd="/",
    )
    os.close(terminal)
    try:
        os.write(main, b"grep Cpus_allowed_list /proc/self/status; env | grep AFFINITYD_; exit\n")
        printed = b""
        with suppress(OSError):  # EIO: everybody else has closed the terminal
            while part := os.read(main, 4096):
                printed += part
        process.wait(PATIENCE)
    finally:
        process.kill()
        os.close(main)
    text = printed.decode()
    assert re.search(rf"Cpus_allowed_list:\s+{BOTH}\r?$", text, re.MULTILINE), text
    assert re.search(rf"AFFINITYD_CPULIST={BOTH}\r?$", text, re.MULTILINE), text


def test_a_script_that_a_step_submitted_is_pinned_on_its_own_job_s_cpus(it: Node) -> None:
    """It inherits the step's variables, as if it were its second task."""
    env = {"SLURM_STEP_ID": "0", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x8"}
    env |= {"SLURMD_TRES_BIND": "gpu:map_gpu:0", "SLURM_GPUS_ON_NODE": "8"}
    (task,) = read_tasks(it.cluster.sbatch(f"{' '.join(LOOK[:2])} '{LOOK[2]}'", *TWO, env=env))
    assert task.cpus == BOTH


@pytest.mark.parametrize("kind", ["shard", "mps"])
def test_jobs_that_share_a_gpu_are_told_that_they_share_its_cpus(kind: str, release: str) -> None:
    setup = Setup(task_plugin="task/affinity", gres={kind: 400}, release=release)
    with node(setup) as made:
        first = threading.Thread(
            target=made.cluster.srun, args=("-n1", f"--gres={kind}:10", "/bin/sleep", "1.5")
        )
        first.start()
        eventually(lambda: [*(made.folder / "jobs").glob("[0-9]*")], "the first job has its note")
        (task,) = made.tasks("-n1", f"--gres={kind}:10")
        first.join()
    assert "shared_gpu" in task.variables["WARNINGS"].split(",")


def test_a_running_job_without_a_cpu_near_its_gpu_is_named(release: str) -> None:
    """Of two free cores Slurm gives a lone task the second, which is far from GPU 0."""
    conf = ("FirstJobId=7000",)  # others have their jobs here
    with node(replace(CONFINED, conf=conf, release=release)) as made:
        job = threading.Thread(
            target=made.cluster.srun, args=("-n1", "--gres=gpu:big:1", "/bin/sleep", "3")
        )
        job.start()
        eventually(lambda: "7000.0" in made.cluster.run("squeue", "-h", "--steps"), "it runs")
        checked = check(made)
        job.join()
        assert "job 7000" not in check(made)
    assert f"job 7000 has gpu 0 (package 0, node 0) and CPUs {FAR} (package 0, node 1)" in checked
    assert "gpu 0: the line has no Cores=" in checked


def check(made: Node) -> str:
    """Return what `affinityd slurm check` finds, on the replayed machine with real cgroups."""
    tree = made.folder.parent / "machine"
    script = (
        "mkdir -p sys/fs/cgroup run/affinityd && mount --rbind /sys/fs/cgroup sys/fs/cgroup &&"
        f" mount --bind {made.folder} run/affinityd && exec {sys.executable} -m affinityd slurm"
        f" check --root . --slurm-conf {made.cluster.folder}/slurm.conf"
        f" --node-name {made.cluster.node}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        cwd=tree,
        env={
            "PATH": f"{made.cluster.programs()}:{os.environ['PATH']}",
            "PYTHONPATH": f"{SCRIPTS.parent}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 1, done.stderr
    return done.stdout


def test_the_documentation_s_example_prints_where_each_task_is(it: Node) -> None:
    (command,) = re.findall(r"^srun -l .*$", (SCRIPTS / "README.md").read_text(), re.MULTILINE)
    printed = it.cluster.run("/bin/sh", "-c", command, env={"AFFINITYD_MODE": "exclusive"})
    assert sorted(re.findall(r"AFFINITYD_CPULIST=(\S+)", printed)) == [NEAR, FAR]


# Without Slurm around them.


def prolog(**env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "prolog.sh"], env=env, capture_output=True, text=True, check=False, timeout=10
    )


@pytest.mark.parametrize("job", ["", "../../etc/passwd", "1 2", "12x"])
def test_a_prolog_without_a_job_touches_nothing(job: str) -> None:
    done = prolog(SLURM_JOB_ID=job)
    assert done.returncode == 0
    assert (
        done.stderr == f"affinityd: SLURM_JOB_ID={job} is no job; Prolog= of slurm.conf runs this\n"
    )


@pytest.mark.parametrize(
    ("settings", "state"),
    [("", "idle"), ("AFFINITYD_DRAIN=no\n", "idle"), ('AFFINITYD_DRAIN="yes"\n', "drained")],
)
def test_a_node_without_a_daemon_is_drained_only_where_the_site_says_so(
    tmp_path: Path, settings: str, state: str, release: str
) -> None:
    conf, log = tmp_path / "affinityd.conf", tmp_path / "log"
    conf.write_text(settings)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(f"{log}")
        syslog.settimeout(PATIENCE)
        binds = {conf: "/etc/affinityd.conf", log: "/dev/log"}
        with node(Setup(binds=binds, release=release)) as made:
            made.daemon.stop()
            if state == "idle":
                (task,) = made.tasks("-n1", "--gres=gpu:small:1")
                assert task.unpinned == "no plan from /run/affinityd/affinityd.sock"
            else:
                made.cluster.run("sbatch", "--gres=gpu:1", "--wrap=true", "--output=/dev/null")
            said = syslog.recv(4096).decode()
            assert "affinityd: no daemon is ready at /run/affinityd/affinityd.sock" in said
            assert state in eventually_state(made, state)


def test_a_prolog_asks_nobody_where_others_could_listen(tmp_path: Path, release: str) -> None:
    log = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(f"{log}")
        syslog.settimeout(PATIENCE)
        with node(Setup(binds={log: "/dev/log"}, release=release)) as made:
            made.folder.chmod(0o777)
            made.tasks("-n1", "--gres=gpu:small:1")
            said = syslog.recv(4096).decode()
    assert "no daemon is ready at /run/affinityd/affinityd.sock" in said
    assert "(others may write to /run/affinityd/, which is not trusted)" in said


def eventually_state(made: Node, state: str) -> str:
    eventually(lambda: state in made.cluster.run("sinfo", "-h", "-o", "%T"), f"it is {state}")
    return made.cluster.run("sinfo", "-h", "-o", "%T")


def test_a_site_chooses_for_all_jobs_and_a_job_otherwise(tmp_path: Path, release: str) -> None:
    conf = tmp_path / "affinityd.conf"
    conf.write_text("# ours\nAFFINITYD_MODE='all'\nAFFINITYD_SCOPE=\"socket\"\nOTHER=1\nPATH=/x\n")
    with node(Setup(binds={conf: "/etc/affinityd.conf"}, release=release)) as made:
        assert [task.cpus for task in made.tasks(*TWO)] == [BOTH, BOTH]
        tasks = made.tasks(*TWO, env={"AFFINITYD_MODE": "node"})
        assert [task.cpus for task in tasks] == [HOME[2], HOME[3]]
