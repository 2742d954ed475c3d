"""Daemons that are killed, ended, or of another release, while clients ask and jobs start."""

import os
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
from tests.support.daemons import PATIENCE, eventually, is_ready, running, spawn, with_constants
from tests.support.machines.facts import machine
from tests.support.paths import REPOSITORY
from tests.support.tiny import FAR, LOOK, NEAR, affinityd, tiny, tiny_tree

#: The release before this one; there is no tag yet.
PREVIOUS = "63e129cf2f3a6daff71be5e3a87307b6a5abff3c"
#: Of 0.1: the first whose daemon plans a machine, and the first that also has exec and verify.
FIRST = "b736fabbbb828d54420dbe45b218c98e1b5eb178"
FIRST_CLIENTS = "9b3b85be5759803a615d7137d4dddbfa6f960e26"

VERIFY = (sys.executable, "-m", "affinityd", "verify")
PLACES = {"0": NEAR, "1": FAR}  #: GPU → the only CPU that is right for it


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, check=False)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the package of a commit a folder."""
    if git("rev-parse", "--is-shallow-repository").stdout != b"false\n":
        pytest.skip("a checkout without its history: git fetch --unshallow")

    @cache
    def unpacked(commit: str) -> Path:
        folder = tmp_path_factory.mktemp("older")
        archive = git("archive", commit, "affinityd")
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


def test_exec_and_verify_of_0_1_ask_a_daemon_of_today(
    tmp_path: Path, checkout: Callable[[str], Path], root: str
) -> None:
    older = checkout(FIRST_CLIENTS)
    with running(tmp_path, "--root", root) as daemon:
        env = {"AFFINITYD_SOCKET": os.fspath(daemon.socket)}
        for gpu, cpu in PLACES.items():
            pinned = affinityd("exec", "--gpus", gpu, "--", *LOOK, env=env, checkout=older)
            assert (pinned.cpus, pinned.stderr) == (cpu, "")
            words = ("exec", "--gpus", gpu, "--", *VERIFY, "--gpus", gpu)
            verified = affinityd(*words, env=env, checkout=older)
            assert (verified.status, verified.stderr) == (0, "")


def test_exec_of_today_asks_a_daemon_of_0_1(
    tmp_path: Path, checkout: Callable[[str], Path], root: str
) -> None:
    with running(tmp_path, "--root", root, before=by_checkout(checkout(FIRST_CLIENTS))) as daemon:
        env = {"AFFINITYD_SOCKET": os.fspath(daemon.socket)}
        for gpu, cpu in PLACES.items():
            pinned = affinityd("exec", "--gpus", gpu, "--", *LOOK, env=env)
            assert (pinned.cpus, pinned.stderr) == (cpu, "")


def test_where_a_daemon_of_0_1_says_too_little_exec_and_verify_find_the_machine_themselves(
    tmp_path: Path, checkout: Callable[[str], Path], root: str
) -> None:
    """The first daemon did not say which CPUs a process may have, and wrote another node.json."""
    with running(tmp_path, "--root", root, before=by_checkout(checkout(FIRST))) as daemon:
        env = {"AFFINITYD_SOCKET": os.fspath(daemon.socket), "AFFINITYD_ROOT": root}
        pinned = affinityd("exec", "--gpus", "1", "--", *LOOK, env=env)
        assert pinned.cpus == FAR
        assert pinned.lines[-1].endswith("planned from sysfs")
        verified = affinityd("exec", "--gpus", "1", "--", *VERIFY, "--gpus", "1", env=env)
        assert verified.status == 0


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
