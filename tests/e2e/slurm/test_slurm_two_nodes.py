"""A cluster with a node that has no GPU, through install, upgrade and removal as the page says."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from tests.e2e.slurm.node import INSTALLED, SCRIPTS, Task, read_tasks
from tests.e2e.slurm.node import LOOK as LOOK_AT_TASK
from tests.e2e.slurm.two_nodes import CPU, GPU, NODES, Site, site
from tests.support.daemons import PATIENCE, eventually
from tests.support.paths import REPOSITORY
from tests.support.tiny import BOTH, NEAR

ROUNDS = 10  #: of jobs during upgrades: of those that copy into the folder, a few get in the way
#: A job on each node, and one that has a GPU.
JOBS = (("-w", CPU), ("-w", GPU), ("-w", GPU, "--gres=gpu:1"), ("-N2", "-n2"))


BY_LINE = re.MULTILINE | re.DOTALL


def blocks(heading: str) -> list[str]:
    """Return the blocks of a section of the page, as written."""
    text = (SCRIPTS / "README.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    (found,) = (it for it in sections if it.startswith(f"{heading}\n"))
    return [dedent(it) for it in re.findall(r"^ *```(?:sh)?\n(.*?)^ *```", found, BY_LINE)]


def block(heading: str, has: str) -> str:
    """Return the one that has these words."""
    (found,) = (it for it in blocks(heading) if has in it)
    return found


PUT_SCRIPTS = block("Install", "install -D -m 755")
CHECK = block("Install", "ssh ")
LINES = block("Install", "Prolog=")
CALL_OURS = block("Install", "if [ -x")
SHOW = block("Remove", "scontrol show config")
TAKE_SCRIPTS = block("Remove", f"rm -rf {INSTALLED}")


@pytest.fixture(scope="module")
def it() -> Iterator[Site]:
    """Have the scripts on both nodes, and slurm.conf name them."""
    with site() as made:
        install(made)
        yield made


def install(made: Site) -> None:
    for node in NODES:
        made.run(node, PUT_SCRIPTS)
    assert made.sh(CHECK) == ""
    made.configure(LINES)
    made.restart()


def look(made: Site, *words: str) -> list[Task]:
    return read_tasks(made.cluster.srun(*words, *LOOK_AT_TASK))


def run_jobs(made: Site, *, pinned: bool) -> None:
    """Run a job of each kind: only the one with a GPU has been pinned, or none."""
    for words in JOBS:
        tasks = look(made, *words)
        has_gpu = pinned and "--gres=gpu:1" in words
        assert [task.cpus for task in tasks] == [NEAR if has_gpu else BOTH] * len(tasks)
        assert [("CPULIST" in task.variables) for task in tasks] == [has_gpu] * len(tasks)
        assert has_gpu or not any(task.variables for task in tasks)
    assert is_well(made)


def is_well(made: Site) -> bool:
    """Tell whether no node was drained, ever since slurmctld began: a drained one stays so."""
    eventually(lambda: made.states() <= {"idle", "drained"}, "the jobs are over")
    log = (made.folder / "slurmctld.log").read_text()
    return made.states() == {"idle"} and "state set to DRAIN" not in log


@contextmanager
def upgrading(made: Site, new: Path) -> Iterator[None]:
    """Upgrade both nodes meanwhile, and go back, again and again; in the end they are upgraded."""
    over = new / "over"
    upgrade, go_back = (f"cd {it}\n{PUT_SCRIPTS}" for it in (new, REPOSITORY))
    script = f"until [ -e {over} ]; do {upgrade}{go_back}done\n{upgrade}"
    loops = [subprocess.Popen(made.on(node, script)) for node in NODES]
    try:
        yield
    finally:
        over.touch()
        assert [loop.wait(PATIENCE) for loop in loops] == [0, 0]


def test_no_node_is_drained_through_install_upgrade_and_removal(tmp_path: Path) -> None:
    with site() as made:
        run_jobs(made, pinned=False)

        install(made)
        run_jobs(made, pinned=True)
        assert "affinityd" not in made.run(CPU, f"ls {made.folder / CPU}/layers/run")  # no note
        assert made.sh(SHOW).count(INSTALLED) == 3

        new = tmp_path / "new"
        shutil.copytree(SCRIPTS, new / "slurm")
        for script in (new / "slurm").glob("*.sh"):
            script.write_text(f"{script.read_text()}# new\n")
        with upgrading(made, new):
            for _ in range(ROUNDS):
                (on_gpu,) = look(made, "--immediate=30", "-w", GPU, "--gres=gpu:1")
                (on_cpu,) = look(made, "--immediate=30", "-w", CPU)
                assert (on_gpu.cpus, on_cpu.cpus) == (NEAR, BOTH)
        assert made.run(CPU, f"tail -qn1 {INSTALLED}/*.sh; ls -A {INSTALLED}").split("\n") == [
            *["# new"] * 4,
            *("epilog.sh", "pinning.sh", "prolog.sh", "task_prolog.sh", ""),
        ]
        run_jobs(made, pinned=True)

        made.configure("")
        made.restart()
        assert made.sh(f"! {SHOW}") == ""
        for node in NODES:
            made.run(node, TAKE_SCRIPTS)
        run_jobs(made, pinned=False)
        assert made.run(GPU, "ls /etc/slurm") == "cgroup.conf\ngres.conf\nslurm.conf\n"


DRAINED, IDLE = "drained Prolog error\n", "idle none\n"


@pytest.mark.parametrize(
    ("node", "spoil", "state"),
    [
        (GPU, "rm prolog.sh", DRAINED),
        (CPU, "rm epilog.sh", "drained Epilog error\n"),
        (CPU, "chmod 644 prolog.sh", DRAINED),
        (GPU, "sed -i 1s/sh/shell/ prolog.sh", DRAINED),
        (CPU, "chmod 700 task_prolog.sh", IDLE),
        (GPU, "chmod 700 .", IDLE),
        (CPU, "rm *.sh", DRAINED),
    ],
)
def test_the_check_names_the_node_on_which_a_job_would_fail(
    it: Site, node: str, spoil: str, state: str
) -> None:
    assert it.sh(CHECK) == ""
    it.run(node, f"cd {INSTALLED}; {spoil}")
    try:
        assert it.sh(CHECK).splitlines()[0] == f"{node} cannot execute the scripts"
        if state == IDLE:  # its tasks die
            with pytest.raises(AssertionError, match="TaskProlog failed status=1"):
                look(it, "-w", node)
        else:
            it.cluster.run("sbatch", "-w", node, "-o", "/dev/null", "--wrap", "true")
        eventually(lambda: it.state(node) == state, f"{node} is {state}, not {it.state(node)}")
    finally:
        it.cluster.run("scancel", "-u", "games")
        it.run(node, f"chmod 755 {INSTALLED}; {PUT_SCRIPTS}")
        if state != IDLE:
            it.resume(node)
    assert [task.cpus for task in look(it, "-w", node)] == [BOTH]


def test_a_site_s_own_task_prolog_calls_ours(it: Site) -> None:
    own = "#!/bin/sh\necho export SITE=before\n" + CALL_OURS + "echo export ALSO=after\n"
    for node in NODES:
        it.run(node, f"cat >/etc/slurm/own.sh <<'END'\n{own}END\nchmod 755 /etc/slurm/own.sh")
    it.configure(re.sub("TaskProlog=.*", "TaskProlog=/etc/slurm/own.sh", LINES))
    it.restart()
    try:
        for words, pinned in (
            (("-w", CPU), []),
            (("-w", GPU, "--gres=gpu:1"), ["AFFINITYD_CPULIST"]),
        ):
            printed = it.cluster.srun(*words, "env")
            found = re.findall(r"^0: (SITE|ALSO|AFFINITYD_CPULIST)=", printed, re.MULTILINE)
            assert sorted(found) == sorted(["SITE", "ALSO", *pinned])
    finally:
        it.configure(LINES)
        it.restart()
