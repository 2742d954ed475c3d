"""Training jobs of PyTorch, on the CPU: every rank, loader worker and thread is near its GPU.

The machine is tests.support.tiny's, with its GPUs in reverse order: GPU 0 is near CPU FAR.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from affinityd.cpuset import CpuSet, parse_list
from tests.support.children import threads
from tests.support.daemons import PATIENCE, Daemon, eventually, running
from tests.support.paths import REPOSITORY
from tests.support.tiny import BOTH, FAR, NEAR, affinityd, printed, tiny_tree

CPUS = (FAR, NEAR)  #: by rank
TRAIN = str(Path(__file__).with_name("train.py"))
EXAMPLE = REPOSITORY / "examples/loader_ab.py"
EXEC = ("affinityd", "exec", "--")
TWO = ("--standalone", "--nproc_per_node", "2")
TORCHRUN = ("torchrun", *TWO, "--no-python", *EXEC, "python", TRAIN)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("torch")
    with running(folder, "--root", str(tiny_tree(folder / "machine", 1, 0))) as daemon:
        yield daemon


@pytest.fixture
def here(daemon: Daemon) -> Mapping[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AFFINITYD_CONFIG": "/nonexistent",
        "AFFINITYD_SOCKET": str(daemon.socket),
        "OMP_NUM_THREADS": "2",  # else torchrun sets 1, and OpenMP has no threads
    }


@contextmanager
def training(
    command: tuple[str, ...], folder: Path, env: Mapping[str, str]
) -> Iterator[tuple[int, list[Any]]]:
    """Run a job of TRAIN whose ranks wait; yield the launcher's pid and the output of the ranks."""
    log = folder / "log"
    with log.open("w") as stream:
        launcher = subprocess.Popen((*command, str(folder)), stdout=stream, stderr=stream, env=env)
    answers = [folder / "0.json", folder / "1.json"]

    def have_answered() -> bool:
        assert launcher.poll() is None, log.read_text()
        return all(path.exists() for path in answers)

    try:
        eventually(have_answered, "both ranks have answered")
        yield launcher.pid, [json.loads(path.read_text()) for path in answers]
        (folder / "seen").touch()
        assert launcher.wait(PATIENCE) == 0, log.read_text()
    finally:
        launcher.terminate()  # torchrun ends its ranks, too
        launcher.wait()


def masks(*pids: int) -> set[CpuSet]:
    return {thread.mask for pid in pids for thread in threads(pid)}


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        (TORCHRUN, BOTH),
        (("python", "-m", "torch.distributed.run", *TWO, TRAIN, "bind"), BOTH),
        ((*EXEC, *TORCHRUN), BOTH),
        (("affinityd", "exec", "--gpus=1", "--", *TORCHRUN), NEAR),
    ],
    ids=["ranks under exec", "ranks call bind()", "torchrun under exec", "torchrun on near CPUs"],
)
def test_every_thread_of_a_rank_and_of_its_workers_is_near_its_gpu(
    here: Mapping[str, str], tmp_path: Path, command: tuple[str, ...], launcher: str
) -> None:
    with training(command, tmp_path, here) as (pid, ranks):
        for cpu, facts in zip(CPUS, ranks, strict=True):
            assert len(facts["workers"]) == 4
            assert len(threads(facts["process"])) > 4  # threads of gloo, OpenMP and the loader
            assert masks(facts["process"], *facts["workers"]) == {parse_list(cpu)}
            assert facts["environ"]["AFFINITYD_CPULIST"] == cpu
            assert facts["environ"]["AFFINITYD_ALLOWED"] == BOTH
        assert masks(pid) == {parse_list(launcher)}
        assert affinityd("verify", str(pid), env=here).status == 0
        stray = ranks[0]["workers"][0]
        os.sched_setaffinity(stray, parse_list(NEAR))
        verified = affinityd("verify", str(pid), env=here)
        assert verified.status == 1
        (mismatch,) = (line for line in verified.stdout.splitlines() if "mismatch" in line)
        assert mismatch.startswith(f"process {stray} ")


def example(here: Mapping[str, str], *words: str) -> list[str]:
    return printed(sys.executable, str(EXAMPLE), *words, env=here).splitlines()


def test_the_example_pins_one_of_its_two_runs(here: Mapping[str, str]) -> None:
    first, _, *arms, conclusion = example(here, "--smoke")
    assert first == "2 CPU ranks with 2 workers each, mode node"
    unpinned, pinned = (arm.split()[:2] + arm.split()[3:] for arm in arms)
    assert unpinned == ["1", "unpinned", "?", BOTH, "|", BOTH]
    assert pinned == ["1", "pinned", "?", FAR, "|", NEAR]
    assert conclusion == "both arms ran, so the script works; so short a run measures nothing"
