"""Install, upgrade and removal as the page says, on a node with GPUs and on a node without GPUs."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd import __version__
from docs.check.blocks import BLOCKS
from tests.e2e.slurm.node import INSTALLED, LOOK, SCRIPTS, Task, read_tasks
from tests.e2e.slurm.rig import USER, Setup, Slurm, logs, printed, slurm
from tests.support.daemons import PATIENCE, Daemon, eventually
from tests.support.paths import REPOSITORY
from tests.support.tiny import BOTH, NEAR

ROUNDS = 10  #: of jobs during upgrades; copying into the folder would make a few of them fail


def block(has: str) -> str:
    (text,) = (it.text for it in BLOCKS if it.page == "slurm/README.md" and has in it.text)
    return text


PUT_SCRIPTS, CHECK, LINES = block("install -D -m 755"), block("ssh "), block("Prolog=")
CALL_OURS, SHOW = block("if [ -x"), block("scontrol show config")
TAKE_SCRIPTS = block(f"rm -rf {INSTALLED}")

#: Runs a command on the node: ssh -n NODE COMMAND...
SSH = """\
#!/bin/sh
shift 2
exec nsenter --target={pid} --mount --wdns=/ sh -c "$*" </dev/null
"""

GPU, CPU = "with GPUs", "without"
GPUS = {GPU: ("0", "1"), CPU: ()}


@contextmanager
def node(kind: str, daemon: Daemon, lines: str) -> Iterator[Slurm]:
    folder = daemon.socket.parent
    folder.chmod(0o755)
    binds = {folder: "/run/affinityd"} if kind == GPU else {}
    setup = Setup(gpus=GPUS[kind], conf=lines.splitlines(), binds=binds)
    with slurm(setup, USER) as made:
        yield made


@pytest.fixture(scope="module")
def nodes(tiny_daemon: Daemon) -> Iterator[Mapping[str, Slurm]]:
    """Run one node of each kind, with the scripts; slurm.conf names the scripts."""
    with ExitStack() as stack:
        made = {kind: stack.enter_context(node(kind, tiny_daemon, LINES)) for kind in GPUS}
        for cluster in made.values():
            install(cluster)
        yield made


def run(made: Slurm, script: str, folder: Path = REPOSITORY) -> str:
    """Return the output of root's shell on the node, in a checkout; the shell must succeed."""
    return printed(made.folder, *made.on_node(f"cd {folder}\n{script}"))


def install(made: Slurm) -> None:
    run(made, PUT_SCRIPTS)
    assert check(made) == ""


def check(made: Slurm) -> str:
    """Return the output of the page's check; the administrator's ssh leads to the node."""
    ssh = made.folder / "bin/ssh"
    ssh.parent.mkdir(exist_ok=True)
    ssh.write_text(SSH.format(pid=made.slurmd))
    ssh.chmod(0o755)
    path = {"PATH": f"{ssh.parent}:{os.environ['PATH']}"}
    return printed(made.folder, "sh", "-ec", CHECK, env=path)


def version_of_scripts(made: Slurm) -> str:
    return run(made, f"{sys.executable} bin/affinityd doctor slurm-scripts")


def look(made: Slurm, *words: str) -> list[Task]:
    return read_tasks(made.srun(*words, *LOOK))


def run_jobs(made: Slurm, kind: str, *, pinned: bool) -> None:
    """Run a job without GPUs and, on a node with GPUs, a job with a GPU, which is pinned or not."""
    for words in [(), ("--gres=gpu:1",)] if kind == GPU else [()]:
        (task,) = look(made, *words)
        is_pinned = pinned and words != ()
        assert (task.cpus, "CPULIST" in task.variables) == (NEAR if is_pinned else BOTH, is_pinned)
        assert is_pinned or not task.variables
    eventually(lambda: state(made) == IDLE, f"the node is well{logs(made.folder)}")
    assert "state set to DRAIN" not in (made.folder / "slurmctld.log").read_text()


IDLE, DRAINED = "idle none\n", "drained Prolog error\n"


def state(made: Slurm) -> str:
    return made.run("sinfo", "-h", "--format=%T %E")


@contextmanager
def upgrading(made: Slurm, new: Path) -> Iterator[None]:
    """Upgrade and downgrade the node repeatedly during the block; at its end it is upgraded."""
    over = new / "over"
    upgrade, go_back = (f"cd {it}\n{PUT_SCRIPTS}" for it in (new, REPOSITORY))
    script = f"until [ -e {over} ]; do {upgrade}{go_back}done\n{upgrade}"
    with subprocess.Popen(made.on_node(script)) as loop:
        try:
            yield
        finally:
            over.touch()
            assert loop.wait(PATIENCE) == 0


@pytest.mark.parametrize("kind", GPUS)
def test_an_upgrade_drains_no_node(nodes: Mapping[str, Slurm], kind: str, tmp_path: Path) -> None:
    made = nodes[kind]
    run_jobs(made, kind, pinned=True)
    if kind == CPU:
        run(made, "[ ! -e /run/affinityd-jobs ]")  # no note
    assert printed(made.folder, "sh", "-ec", SHOW).count(INSTALLED) == 3

    new = tmp_path / "new"
    shutil.copytree(SCRIPTS, new / "slurm")
    for script in (new / "slurm").glob("*.sh"):
        text = script.read_text().replace(f"\n# affinityd {__version__}\n", "\n# affinityd 9.9.9\n")
        script.write_text(f"{text}# new\n")
    assert f"is of affinityd {__version__}\n" in version_of_scripts(made)
    with upgrading(made, new):
        for _ in range(ROUNDS):
            words = ["--gres=gpu:1"] if kind == GPU else []
            (task,) = look(made, "--immediate=30", *words)
            assert task.cpus == (NEAR if kind == GPU else BOTH)
    assert run(made, f"tail -qn1 {INSTALLED}/*.sh; ls -A {INSTALLED}").split("\n") == [
        *["# new"] * 4,
        *("epilog.sh", "pinning.sh", "prolog.sh", "task_prolog.sh", ""),
    ]
    assert f"is of affinityd 9.9.9, this is {__version__}: " in version_of_scripts(made)
    run_jobs(made, kind, pinned=True)


def test_scripts_that_slurm_conf_does_not_name_may_come_and_go(tiny_daemon: Daemon) -> None:
    with node(GPU, tiny_daemon, "") as made:
        install(made)
        run_jobs(made, GPU, pinned=False)
        assert printed(made.folder, "sh", "-ec", f"! {SHOW}") == ""
        run(made, f"{TAKE_SCRIPTS}[ ! -e {INSTALLED} ]")
        run_jobs(made, GPU, pinned=False)


@pytest.mark.parametrize(
    ("kind", "spoil", "becomes"),
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
def test_the_check_names_a_node_on_which_jobs_would_fail(
    nodes: Mapping[str, Slurm], kind: str, spoil: str, becomes: str
) -> None:
    made = nodes[kind]
    assert check(made) == ""
    run(made, f"cd {INSTALLED}; {spoil}")
    try:
        assert check(made).splitlines()[0] == f"{made.node} cannot execute the scripts"
        if becomes == IDLE:  # the node stays idle, but tasks die
            with pytest.raises(AssertionError, match="TaskProlog failed status=1"):
                look(made)
        else:
            made.run("sbatch", "-o", "/dev/null", "--wrap", "true")
        eventually(lambda: state(made) == becomes, f"the node is {becomes}, not {state(made)}")
    finally:
        made.run("scancel", "-u", USER)
        run(made, f"chmod 755 {INSTALLED}; {PUT_SCRIPTS}")
        if becomes != IDLE:
            administrator = replace(made, user=None)
            administrator.run("scontrol", "update", f"NodeName={made.node}", "State=RESUME")
    eventually(lambda: state(made) == IDLE, "it takes jobs")
    assert [task.cpus for task in look(made)] == [BOTH]


@pytest.mark.parametrize("words", [["--gres=gpu:1"], []])
def test_a_site_s_own_task_prolog_calls_ours(tiny_daemon: Daemon, words: Sequence[str]) -> None:
    script = "#!/bin/sh\necho export SITE=before\n" + CALL_OURS + "echo export ALSO=after\n"
    lines = re.sub("TaskProlog=.*", "TaskProlog=/etc/slurm/own.sh", LINES)
    with node(GPU, tiny_daemon, lines) as made:
        install(made)
        run(made, f"cat >/etc/slurm/own.sh <<'END'\n{script}END\nchmod 755 /etc/slurm/own.sh")
        env = made.srun(*words, "env")
    exported = re.findall(r"^0: (SITE|ALSO|AFFINITYD_CPULIST)=", env, re.MULTILINE)
    assert sorted(exported) == ["AFFINITYD_CPULIST"] * len(words) + ["ALSO", "SITE"]
