"""Jobs of a real Slurm with the scripts of slurm/: notes, steps within steps, concurrent jobs."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd import config
from affinityd.discovery import discover, open_tree
from affinityd.doctor.checks.slurm import cpu_jobs
from affinityd.slurm.commands import LocalSlurm
from tests.e2e.slurm.node import (
    CONF,
    HOME,
    INSTALLED,
    LOOK,
    SCRIPTS,
    Node,
    copied,
    node,
    read_tasks,
)
from tests.e2e.slurm.rig import USER, Setup, slurm
from tests.support.daemons import Daemon, eventually
from tests.support.tiny import BOTH, FAR, NEAR

TWO = ("--ntasks=2", "--gres=gpu:small:2")
THEIRS = [HOME[2], HOME[3]]


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("etc")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    return folder / "affinityd.conf"


@pytest.fixture(scope="module")
def cluster(conf: Path, release: str) -> Iterator[Node]:
    conf.touch()
    setup = Setup(
        task_plugin="task/affinity,task/cgroup",
        conf=("LaunchParameters=use_interactive_step", "FirstJobId=7000"),  # only in these tests
        binds={conf: "/etc/affinityd.conf"},
        release=release,
    )
    with node(setup) as made:
        yield made


@pytest.fixture
def node_of_jobs(cluster: Node, conf: Path) -> Node:
    """Return the node, once jobs of other tests have ended, without site settings."""
    conf.write_text("")
    notes = cluster.folder / "jobs"
    eventually(lambda: not [*notes.glob("[0-9]*")], "the epilogs ran")
    return cluster


def test_a_note_names_the_job_s_gpus_while_the_job_lives(node_of_jobs: Node) -> None:
    look = "cd /run/affinityd-jobs; cat $SLURM_JOB_ID; stat -c '%U %a %n' $SLURM_JOB_ID"
    printed = node_of_jobs.cluster.srun("-n1", TWO[1], "/bin/sh", "-c", look).splitlines()
    assert [printed[0], printed[1][:12]] == ["0: gpus=2,3", "0: root 644 "]
    note = node_of_jobs.note(printed[1].split()[-1])
    eventually(lambda: not note.exists(), "the epilog ran")
    assert "0:" not in node_of_jobs.cluster.srun("-n1", "/bin/ls", "/run/affinityd-jobs")


def test_concurrent_steps_are_each_near_their_own_gpu_and_disjoint(node_of_jobs: Node) -> None:
    look = f"{' '.join(LOOK[:2])} '{LOOK[2]}; sleep 0.5'"
    step = f"srun -n1 --exact --gres=gpu:small:1 --output=%J {look}"
    script = f"cd $(mktemp -d); {step} & {step} & wait; cat *.0; echo next; cat *.1"
    env = {"AFFINITYD_MODE": "unique-contiguous"}
    printed = node_of_jobs.cluster.sbatch(script, *TWO, env=env)
    steps = [read_tasks(part)[0] for part in printed.split("next\n")]
    assert sorted(task.cpus for task in steps) == [NEAR, FAR]
    assert [task.unpinned for task in steps] == [None, None]  # each has its CPU to itself


def test_an_interactive_step_has_all_cpus_of_its_job(node_of_jobs: Node) -> None:
    """The step is that of salloc with use_interactive_step, which needs a terminal."""
    look = "grep Cpus_allowed_list /proc/self/status; env | grep AFFINITYD_; exit"
    terminal = "/usr/bin/python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])'"
    typed = f"echo '{look}' | {terminal} salloc {' '.join(TWO)}"
    text = node_of_jobs.cluster.run("sh", "-c", typed, env={"SHELL": "/bin/sh"})
    assert re.search(rf"Cpus_allowed_list:\s+{BOTH}\r?$", text, re.MULTILINE), text
    assert re.search(rf"AFFINITYD_CPULIST={BOTH}\r?$", text, re.MULTILINE), text


def test_a_job_without_gpus_is_shown_with_its_cpus(
    node_of_jobs: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = node_of_jobs.cluster
    monkeypatch.setenv("PATH", f"{cluster.programs()}", prepend=":")
    local = LocalSlurm(cluster.folder / "slurm.conf")
    topology = discover(open_tree(f"{node_of_jobs.folder.parent / 'machine'}"), None)
    (shown,) = local.nodes(cluster.node)
    with cluster.job(1), cluster.job(1, "--gres=gpu:big:1"):
        (cpus,) = cpu_jobs(local, topology, shown).values()
    assert cpus in [frozenset(core.cpus) for core in topology.cores]


def test_the_note_of_each_heterogeneous_job_component_names_its_own_gpus(
    tiny_daemon: Daemon, tmp_path: Path, release: str
) -> None:
    """Each component runs on its own node; all tasks have the first component's job number."""
    tiny_daemon.socket.parent.chmod(0o755)
    backfill = ("SchedulerType=sched/backfill", "SchedulerParameters=bf_interval=1")
    binds = {tiny_daemon.socket.parent: "/run/affinityd", copied(tmp_path): INSTALLED}
    setup = Setup(nodes=2, conf=(*CONF, *backfill), binds=binds, release=release)
    look = f"{LOOK[2]}; echo $SLURM_JOB_ID $(ls /run/affinityd-jobs)"
    with slurm(setup, USER) as made:
        component = ("-n1", "--gres=gpu:1")
        tasks = read_tasks(made.srun(*component, ":", *component, *LOOK[:2], look))
        assert [task.rest for task in tasks] == [["1 1"], ["1 1 2"]]
        assert [task.variables["JOB_GPUS"] for task in tasks] == ["0", "0"]
        notes = ("-N2", "sh", "-c", "cd /run/affinityd-jobs; echo $(ls | grep -cx [12])")
        eventually(lambda: made.srun(*notes).split()[1::2] == ["0", "0"], "the epilogs ran")


# Switching on in steps, as slurm/README.md says.

PAGE = (SCRIPTS / "README.md").read_text()
SECTION = PAGE.partition("## Switch it on in steps\n")[2].partition("\n## ")[0]
OBSERVE, TASK, COUNTS, ON, OFF = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)


def test_the_page_s_commands_do_what_the_page_says(node_of_jobs: Node, conf: Path) -> None:
    """The rig's paths replace the page's. Commands for systemd, which is not here, are left out."""

    def done(commands: str) -> str:
        ours = commands.replace("systemctl restart affinityd", ":")
        ours = ours.replace("/etc/affinityd.conf", str(copy))
        ours = ours.replace("/run/affinityd", str(node_of_jobs.folder))
        return subprocess.check_output(["sh", "-ec", ours], text=True)

    copy = conf.with_name("copy")
    copy.write_text("# ours\nAFFINITYD_MODE=node\n")
    done(OBSERVE)
    conf.write_text(copy.read_text())
    printed = node_of_jobs.cluster.run(
        "sh", "-c", TASK.replace("--gres=gpu:1", "--gres=gpu:small:1")
    )
    assert re.search(r"^Cpus_allowed_list:\t", printed, re.MULTILINE)
    assert re.search(r"^AFFINITYD_UNPINNED=observe: would run on CPUs \d", printed, re.MULTILINE)
    assert "affinityd_observed_plans_total{after=" in done(COUNTS)
    for commands, word in ((ON, "on"), (OFF, "off"), (ON, "on")):
        done(commands)
        settings = {"AFFINITYD_MODE": "node", "AFFINITYD": word}
        assert config.read_file(f"{copy}") == settings  # the last line of a name counts
    conf.write_text(copy.read_text())
    assert [task.cpus for task in node_of_jobs.tasks(*TWO)] == THEIRS
    (query,) = re.findall(r"`(sinfo [^`]*)`", SECTION)
    assert node_of_jobs.cluster.run("sh", "-c", query.replace("PARTITION", "all")).strip()
