"""Clients ask and jobs start while a daemon is stopped, or is of another release."""

import os
import re
import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.faults.checker import QUERIES, asking
from tests.e2e.slurm.alone import Node, task_prolog
from tests.support.daemons import PATIENCE, running, with_constants
from tests.support.machines.facts import machine
from tests.support.paths import REPOSITORY, open_folder
from tests.support.tiny import BOTH, FAR, LOOK, NEAR, affinityd, tiny_tree

#: The commit of the previous release, which has no tag yet.
PREVIOUS = "e17663234fc90a65d4d21dd58fb3916f4a889ce2"


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, check=False)


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of the previous release into a folder."""
    if git("rev-parse", "--is-shallow-repository").stdout != b"false\n":
        pytest.skip("a checkout without its history: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("older")
    archive = git("archive", PREVIOUS)
    assert archive.returncode == 0, archive.stderr.decode()
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tiny_tree(tmp_path / "machine"))


def by_checkout(folder: Path | None) -> list[str]:
    """Return a prefix that starts a command in a checkout, from which Python then imports."""
    return [] if folder is None else ["env", "-C", os.fspath(folder)]


def test_both_releases_give_the_same_answers(tmp_path: Path, previous: Path, root: str) -> None:
    def lines(by: Path | None) -> list[set[str]]:
        targets = [f"/plan?{query}&format=shell" for query in QUERIES]
        with running(tmp_path, "--root", root, before=by_checkout(by)) as daemon:
            answers = [set(daemon.get(target).text.splitlines()) for target in targets]
            assert daemon.stop() == 0
            return answers

    before, now = lines(previous), lines(None)
    assert all(old <= new for old, new in zip(before, now, strict=True))


#: The variables of one task of a Slurm step whose two tasks see the same GPUs.
STEP = {"SLURM_STEP_ID": "0", "SLURM_GTIDS": "0,1", "SLURM_LOCALID": "0"}
STEP |= {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"}


def slices(*cpus: str) -> dict[str, str]:
    masks = ",".join(f"{1 << int(cpu):#x}" for cpu in cpus)
    return {**STEP, "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": masks}


#: How Slurm bound a task → the task's mask, its variables, the CPUs that affinityd gives it, and
#: a part of the previous daemon's refusal; None: the previous daemon pins the task, too.
STEPS = {
    "no task/affinity": (BOTH, STEP, NEAR, None),
    "a near slice": (NEAR, slices(NEAR, FAR), NEAR, "is not read; known are"),
    "a far slice": (FAR, slices(FAR, NEAR), NEAR, "is not read; known are"),
    "--cpu-bind=none": (BOTH, {**STEP, "SLURM_CPU_BIND_TYPE": "none"}, BOTH, "is not read; known"),
}


@pytest.mark.parametrize("slurm", STEPS)
def test_a_task_prolog_and_a_daemon_of_different_releases_pin_or_leave_the_mask(
    tmp_path: Path, previous: Path, root: str, slurm: str
) -> None:
    before, env, near, refusal = STEPS[slurm]
    # The script does not see /dev/shm, where pytest's folder may be.
    with running(tmp_path / "now", "--root", root) as daemon, open_folder() as folder:
        scripts = shutil.copytree(previous / "slurm", folder / "slurm")
        told, cpus = task_prolog(Node(daemon.socket.parent, scripts=scripts), env, before)
        assert cpus == near
        assert (f"AFFINITYD_CPULIST={near}\n" in told) == (slurm != "--cpu-bind=none")
    with running(tmp_path / "then", "--root", root, before=by_checkout(previous)) as daemon:
        told, cpus = task_prolog(Node(daemon.socket.parent), env, before)
        if refusal is None:
            assert (cpus, f"AFFINITYD_CPULIST={near}\n" in told) == (near, True)
        else:
            assert cpus == before
            assert re.fullmatch(f"export AFFINITYD_UNPINNED=.*{refusal}.*\n", told), told


def test_exec_of_the_previous_release_asks_today_s_daemon(
    tmp_path: Path, previous: Path, root: str
) -> None:
    with running(tmp_path, "--root", root) as daemon:
        env = {"AFFINITYD_SOCKET": os.fspath(daemon.socket)}
        for gpu, cpu in enumerate((NEAR, FAR)):
            pinned = affinityd("exec", f"--gpus={gpu}", "--", *LOOK, env=env, checkout=previous)
            assert (pinned.cpus, pinned.stderr) == (cpu, "")


# A daemon of this release ends.

MACHINE = "dgx-a100"

#: A daemon that waited for silent connections would not end in time.
ENDLESS = with_constants(daemon__servers__DRAIN_SECONDS=10 * PATIENCE)


def test_sigterm_cuts_no_answer_short_and_waits_for_no_silent_client(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE, before=ENDLESS) as daemon, ExitStack() as idle:
        for _ in range(500):
            connection = idle.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(os.fspath(daemon.socket))
        connection.sendall(b"GET /plan?gpus=0 HTT")
        with asking(daemon.socket, machine(MACHINE), clients=8) as asked:
            asked.more(100)
            assert daemon.stop() == 0
        assert asked.cut == 0
