"""An upgrade while jobs start: the daemon of one release, the clients of another. Real programs."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from affinityd.topology import node_file
from tests.e2e.faults.checker import QUERIES, Truth, answered_more, asking
from tests.e2e.faults.elsewhere import plans
from tests.e2e.faults.ranks import environment, start_many
from tests.support.daemons import PATIENCE, eventually, running, spawn
from tests.support.paths import REPOSITORY
from tests.support.tiny import tiny, tiny_tree

#: The release before this one; there is no tag yet.
PREVIOUS = "63e129cf2f3a6daff71be5e3a87307b6a5abff3c"


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, check=False)


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the previous release's package, in a folder of its own."""
    folder = tmp_path_factory.mktemp("previous")
    if git("rev-parse", "--is-shallow-repository").stdout != b"false\n":
        pytest.skip("a checkout without its history: git fetch --unshallow")
    found = git("archive", PREVIOUS, "affinityd")
    assert found.returncode == 0, found.stderr.decode()
    subprocess.run(["tar", "-x", "-C", folder], input=found.stdout, check=True)
    return folder


def by_checkout(folder: Path | None) -> list[str]:
    """Return the command that runs another by a checkout: Python imports from where it starts."""
    return [] if folder is None else ["env", "-C", os.fspath(folder)]


def test_both_releases_answer_the_same_and_the_newer_one_may_say_more(
    tmp_path: Path, previous: Path
) -> None:
    tree = tiny_tree(tmp_path / "machine")
    targets = [f"/plan?{query}&format=shell" for query in QUERIES]
    with running(tmp_path, "--root", str(tree), before=by_checkout(previous)) as daemon:
        before = [set(daemon.get(target).text.splitlines()) for target in targets]
        assert daemon.stop() == 0
    with running(tmp_path, "--root", str(tree)) as daemon:
        now = [set(daemon.get(target).text.splitlines()) for target in targets]
    assert [lines - more for lines, more in zip(before, now, strict=True)] == [set()] * len(before)


@pytest.mark.parametrize("is_upgraded", [True, False], ids=["newer ranks", "older ranks"])
def test_ranks_of_one_release_are_placed_by_the_others_daemon_and_its_node_file(
    tmp_path: Path, previous: Path, is_upgraded: bool
) -> None:
    tree = tiny_tree(tmp_path / "machine")
    by, ranks_by = (previous, None) if is_upgraded else (None, previous)
    with running(tmp_path, "--root", str(tree), before=by_checkout(by)) as daemon:
        assert by is None or Path(f"/proc/{daemon.process.pid}/cwd").readlink() == by
        ranks = start_many(4, environment(daemon.socket), checkouts=(ranks_by,))
        assert (ranks.pinned, ranks.wrong, ranks.said) == (4, [], [])
        daemon.signal(signal.SIGKILL)
        daemon.process.wait(PATIENCE)
        left = node_file.read(daemon.socket.with_name(node_file.NAME))
        assert left.topology.online == tiny().online
        ranks = start_many(4, environment(daemon.socket), checkouts=(ranks_by,))
        assert (ranks.pinned, ranks.wrong) == (4, [])


def test_ranks_that_start_during_upgrade_and_downgrade_are_where_they_belong(
    tmp_path: Path, previous: Path, pytestconfig: pytest.Config
) -> None:
    """Half of them of either release; whatever else asks is answered right or not at all."""
    tree = tiny_tree(tmp_path / "machine")
    most = 10 if pytestconfig.getoption("nightly") else 2  #: times that the release changes
    over = threading.Event()

    with running(tmp_path, "--root", str(tree), before=by_checkout(previous)) as daemon:

        def swap() -> None:
            for number in range(most):
                before = by_checkout(previous if number % 2 else None)
                daemon.stop()
                daemon.process = spawn(tmp_path, "--root", str(tree), before=before).process
                eventually(lambda: plans(daemon), "the other release answers")
            over.set()

        swapper = threading.Thread(target=swap)
        with asking(daemon.socket, Truth(tiny()), clients=1) as asked:
            swapper.start()
            while not over.is_set():
                ranks = start_many(8, environment(daemon.socket), checkouts=(None, previous))
                assert (ranks.pinned, ranks.wrong) == (8, [])
            swapper.join()
            assert answered_more(asked)
        assert asked.cut == 0
