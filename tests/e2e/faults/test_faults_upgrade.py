"""Daemons that are killed, ended, or of another release, while clients ask and jobs start."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.faults.checker import QUERIES, asking, start_ranks, start_ranks_during
from tests.e2e.slurm.alone import Node, task_prolog
from tests.support.daemons import PATIENCE, eventually, is_ready, running, spawn, with_constants
from tests.support.machines.facts import machine
from tests.support.paths import REPOSITORY, open_folder
from tests.support.tiny import BOTH, FAR, LOOK, NEAR, affinityd, tiny, tiny_tree

#: The release before this one; there is no tag yet.
PREVIOUS = "e17663234fc90a65d4d21dd58fb3916f4a889ce2"
#: Of 0.1: the first whose daemon plans a machine, and the first that also has exec and verify.
FIRST = "b736fabbbb828d54420dbe45b218c98e1b5eb178"
FIRST_CLIENTS = "9b3b85be5759803a615d7137d4dddbfa6f960e26"

VERIFY = (sys.executable, "-m", "affinityd", "verify")
PLACES = {"0": NEAR, "1": FAR}  #: GPU → the only CPU that is right for it


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, check=False)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the files of a commit a folder."""
    if git("rev-parse", "--is-shallow-repository").stdout != b"false\n":
        pytest.skip("a checkout without its history: git fetch --unshallow")

    @cache
    def unpacked(commit: str) -> Path:
        folder = tmp_path_factory.mktemp("older")
        archive = git("archive", commit)
        assert archive.returncode == 0, archive.stderr.decode()
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        return folder

    return unpacked


@pytest.fixture(scope="module")
def previous(checkout: Callable[[str], Path]) -> Path:
    return checkout(PREVIOUS)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tiny_tree(tmp_path / "machine"))


def by_checkout(folder: Path | None) -> list[str]:
    """Return the command that runs another by a checkout: Python imports from where it starts."""
    return [] if folder is None else ["env", "-C", os.fspath(folder)]


@pytest.mark.parametrize("commit", [FIRST, FIRST_CLIENTS, PREVIOUS])
def test_both_releases_answer_the_same(
    commit: str, tmp_path: Path, checkout: Callable[[str], Path], root: str
) -> None:
    def lines(by: Path | None) -> list[set[str]]:
        targets = [f"/plan?{query}&format=shell" for query in QUERIES]
        with running(tmp_path, "--root", root, before=by_checkout(by)) as daemon:
            answers = [set(daemon.get(target).text.splitlines()) for target in targets]
            assert daemon.stop() == 0
            return answers

    before, now = lines(checkout(commit)), lines(None)
    assert all(old <= new for old, new in zip(before, now, strict=True))


@pytest.mark.parametrize("commit", [FIRST_CLIENTS, PREVIOUS])
def test_exec_and_verify_of_an_older_release_ask_a_daemon_of_today(
    commit: str, tmp_path: Path, checkout: Callable[[str], Path], root: str
) -> None:
    older = checkout(commit)
    with running(tmp_path, "--root", root) as daemon:
        env = {"AFFINITYD_SOCKET": os.fspath(daemon.socket)}
        for gpu, cpu in PLACES.items():
            pinned = affinityd("exec", "--gpus", gpu, "--", *LOOK, env=env, checkout=older)
            assert (pinned.cpus, pinned.stderr) == (cpu, "")
            words = ("exec", "--gpus", gpu, "--", *VERIFY, "--gpus", gpu)
            verified = affinityd(*words, env=env, checkout=older)
            assert (verified.status, verified.stderr) == (0, "")


@pytest.mark.parametrize("commit", [FIRST, FIRST_CLIENTS, PREVIOUS])
def test_exec_of_today_is_pinned_by_an_older_daemon_or_says_why_not(
    commit: str, tmp_path: Path, checkout: Callable[[str], Path], root: str
) -> None:
    """Daemons of 0.1 do not take a process's variables."""
    with running(tmp_path, "--root", root, before=by_checkout(checkout(commit))) as daemon:
        env = {"AFFINITYD_SOCKET": os.fspath(daemon.socket)}
        for gpu, cpu in PLACES.items():
            pinned = affinityd("exec", "--gpus", gpu, "--", *LOOK, env=env)
            if commit == PREVIOUS:
                assert (pinned.cpus, pinned.stderr) == (cpu, "")
            else:
                assert pinned.cpus == BOTH
                (line,) = pinned.lines
                assert line.startswith("affinityd exec: unknown parameter 'env'; ")


#: A task of a Slurm step of two, which see the same GPUs.
STEP = {"SLURM_STEP_ID": "0", "SLURM_GTIDS": "0,1", "SLURM_LOCALID": "0"}
STEP |= {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"}


def slices(*cpus: str) -> dict[str, str]:
    masks = ",".join(f"{1 << int(cpu):#x}" for cpu in cpus)
    return {**STEP, "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": masks}


#: By what Slurm did: the task's CPUs and variables, those that it gets near GPU 0, and why 0.2 pins
#: none.
STEPS = {
    "no task/affinity": (BOTH, STEP, NEAR, None),
    "a near slice": (NEAR, slices(NEAR, FAR), NEAR, "is not read; known are"),
    "a far slice": (FAR, slices(FAR, NEAR), NEAR, "is not read; known are"),
    "--cpu-bind=none": (BOTH, {**STEP, "SLURM_CPU_BIND_TYPE": "none"}, BOTH, "is not read; known"),
}


@pytest.mark.parametrize("slurm", STEPS)
def test_a_task_prolog_of_another_release_than_the_daemon_s_pins_or_leaves_the_mask(
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


def test_ranks_that_start_during_upgrade_and_downgrade_are_where_they_belong(
    tmp_path: Path, previous: Path, root: str, pytestconfig: pytest.Config
) -> None:
    """Half of them of either release; whatever else asks is answered right or not at all."""
    most = 10 if pytestconfig.getoption("nightly") else 2  #: times that the release changes
    with running(tmp_path, "--root", root, before=by_checkout(previous)) as daemon:

        def swap() -> None:
            for number in range(most):
                before = by_checkout(previous if number % 2 else None)
                daemon.stop()
                daemon.process = spawn(tmp_path, "--root", root, before=before).process
                eventually(lambda: is_ready(daemon), "the other release answers")

        with asking(daemon.socket, tiny(), clients=1) as asked:
            start_ranks_during(swap, daemon.socket, None, previous)
            asked.more()
        assert asked.cut == 0


# The same release, started anew.

MACHINE = "dgx-a100"

#: Only what does not wait for them ends with connections that say nothing.
ENDLESS = with_constants(daemon__servers__DRAIN_SECONDS=10 * PATIENCE)


def test_a_daemon_that_restarts_under_load_answers_right_or_not_at_all(
    tmp_path: Path, root: str
) -> None:
    """And it ends well, as `systemctl restart` ends it: ranks are where they belong in any case."""
    with running(tmp_path, "--root", root) as daemon:
        before = [daemon.plan(query) for query in QUERIES]
        with asking(daemon.socket, tiny(), clients=3) as asked:

            def restart(number: signal.Signals) -> None:
                asked.more()
                daemon.signal(number)
                daemon.process.wait(PATIENCE)
                assert start_ranks(4, daemon.socket) == set()
                daemon.process = spawn(tmp_path, "--root", root).process
                eventually(lambda: is_ready(daemon), "it is there again")

            complaints = start_ranks_during(lambda: restart(signal.SIGKILL), daemon.socket)
            cut = asked.cut
            complaints |= start_ranks_during(lambda: restart(signal.SIGTERM), daemon.socket)
            assert asked.cut == cut
            assert all(line.endswith("from node.json") for line in complaints)
            asked.more()
        assert asked.refused
        assert [daemon.plan(query) for query in QUERIES] == before
        assert start_ranks(4, daemon.socket) == set()


def test_sigterm_cuts_no_answer_and_waits_for_no_silent_client(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", MACHINE, before=ENDLESS) as daemon, ExitStack() as idle:
        for _ in range(500):
            connection = idle.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(os.fspath(daemon.socket))
        connection.sendall(b"GET /plan?gpus=0 HTT")
        with asking(daemon.socket, machine(MACHINE), clients=8) as asked:
            asked.more(100)
            assert daemon.stop() == 0
        assert asked.cut == 0
