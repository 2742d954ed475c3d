"""`affinityd exec` under real launchers: Slurm's srun, Open MPI's mpirun, and MPICH's."""

import os
import re
import sys
from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.slurm.rig import HOST, Setup, Slurm, slurm
from tests.support.paths import REPOSITORY
from tests.support.tiny import BOTH, FAR, LOOK, NEAR, ran

EXEC = (sys.executable, str(REPOSITORY / "bin/affinityd"), "exec")


@pytest.fixture
def entry(release: str) -> tuple[str, ...]:
    """Return `affinityd exec` with the Python of the Slurm release's root."""
    there = ("env", f"PYTHONPATH={REPOSITORY}", "/usr/bin/python3", *EXEC[1:])
    return EXEC if release == HOST else there


@pytest.fixture(scope="module")
def cluster(release: str) -> Iterator[Slurm]:
    with slurm(Setup(release=release)) as cluster:
        yield cluster


def masks(printed: str) -> list[str]:
    return [
        cpus for _, cpus in sorted(re.findall(r"(?:(\d+): ?)?Cpus_allowed_list:\s*(\S+)", printed))
    ]


@pytest.mark.parametrize(
    ("srun", "words", "cpus"),
    [
        (["-n2", "--gres=gpu:2"], [], [NEAR, FAR]),
        (["-n2", "--gpus-per-task=1"], ["--mode=unique-contiguous"], [NEAR, FAR]),
        (["-n1", "-c2", "--gres=gpu:2"], [], [BOTH]),
    ],
    ids=["each task sees all GPUs", "each task sees one GPU", "a lone task is a launcher"],
)
def test_each_task_of_srun_is_near_its_gpus(
    cluster: Slurm,
    here: Mapping[str, str],
    entry: tuple[str, ...],
    *,
    srun: list[str],
    words: list[str],
    cpus: list[str],
) -> None:
    assert masks(cluster.srun(*srun, *entry, *words, "--", *LOOK, env=here)) == cpus


def test_tasks_bound_by_srun_exchange_cpus_and_unbound_tasks_stay(
    here: Mapping[str, str], release: str, entry: tuple[str, ...]
) -> None:
    again = [*entry, "--", *entry, "--", *LOOK]  # an exec in an exec has the same answer
    with slurm(Setup(task_plugin="task/affinity", release=release)) as cluster:
        assert masks(cluster.srun("-n2", "--gres=gpu:2", *again, env=here)) == [NEAR, FAR]
        left = cluster.srun("-n2", "--gres=gpu:2", "--cpu-bind=none", *again, env=here)
        assert masks(left) == [BOTH, BOTH]


@pytest.mark.parametrize("mpirun", ["mpirun.openmpi", "mpirun.mpich"])
def test_each_rank_of_mpirun_has_its_gpu(mpirun: str, here: Mapping[str, str]) -> None:
    asks = ["--allow-run-as-root", "--oversubscribe"] if mpirun == "mpirun.openmpi" else []
    env = {"PATH": os.environ["PATH"], "TMPDIR": "/tmp", **here}  # noqa: S108 - Open MPI's own
    done = ran(mpirun, *asks, "--bind-to", "none", "-np", "4", *EXEC, "--", *LOOK, env=env)
    assert done.status == 0, done.stderr
    assert sorted(masks(done.stdout)) == sorted([NEAR, FAR] * 2)


OPEN_MPI = ("mpirun.openmpi", "--allow-run-as-root")


def test_ranks_keep_their_cpus_and_choose_the_gpus_near_them(
    here: Mapping[str, str], release: str, entry: tuple[str, ...]
) -> None:
    tell = ("sh", "-c", "echo $(grep Cpus_allowed_list /proc/self/status) $CUDA_VISIBLE_DEVICES")
    with slurm(Setup(task_plugin="task/affinity", release=release)) as cluster:
        swapped = f"--cpu-bind=mask_cpu:{1 << int(FAR):x},{1 << int(NEAR):x}"
        step = ("-n2", "--gres=gpu:2", "--gpu-bind=none", swapped)
        said = cluster.srun(*step, *entry, "--choose-gpu", "--", *tell, env=here)
    found = sorted(re.findall(r"(\d): Cpus_allowed_list: (\S+) (\S+)", said))
    assert found == [("0", FAR, "1"), ("1", NEAR, "0")]


def test_each_rank_that_mpirun_left_unbound_chooses_its_gpu(here: Mapping[str, str]) -> None:
    env = {"PATH": os.environ["PATH"], "TMPDIR": "/tmp", **here}  # noqa: S108 - Open MPI's own
    tell = ("sh", "-c", "echo $(grep Cpus_allowed_list /proc/self/status) $CUDA_VISIBLE_DEVICES")
    done = ran(
        *OPEN_MPI, "--bind-to", "none", "-np", "2", *EXEC, "--choose-gpu", "--", *tell, env=env
    )
    assert sorted(re.findall(r"list: (\S+) (\S+)", done.stdout)) == [(NEAR, "0"), (FAR, "1")]
    bound = ran(
        *OPEN_MPI, "--bind-to", "core", "-np", "2", *EXEC, "--choose-gpu", "--", *tell, env=env
    )
    assert "mpirun --bind-to none" in bound.stderr, "what the other ranks have is not known"


MPICH = ("mpirun.mpich",)
UNIQUE = ("--mode=unique-contiguous", "--")
SWAPPED = {"CUDA_VISIBLE_DEVICES": "1,0"}  #: rank 0 has the GPU that is far from the first core
#: A script between the launcher and the rank, and a script that binds the rank itself.
WRAPPED = ("sh", "-c", '"$@"; exit $?', "sh")
ON_FAR = ("sh", "-c", f'taskset -c {FAR} "$@"; exit $?', "sh")
STAYS = "bound this rank; {}"


@pytest.mark.parametrize(
    ("mpirun", "before", "words", "env", "cpus", "switch"),
    [
        # Each rank is bound to a core, in order.
        ((*OPEN_MPI, "--bind-to", "core"), (), (), {}, [NEAR, FAR], None),
        ((*OPEN_MPI, "--bind-to", "core"), (), UNIQUE, {}, [NEAR, FAR], None),
        ((*OPEN_MPI, "--bind-to", "core"), WRAPPED, UNIQUE, {}, [NEAR, FAR], None),
        ((*OPEN_MPI, "--bind-to", "core"), (), (), SWAPPED, [NEAR, FAR], "mpirun --bind-to none"),
        ((*MPICH, "-bind-to", "core"), (), UNIQUE, {}, [NEAR, FAR], None),
        ((*MPICH, "-bind-to", "core"), WRAPPED, (), SWAPPED, [NEAR, FAR], "mpiexec -bind-to none"),
        # No rank is bound.
        ((*OPEN_MPI, "--bind-to", "none"), (), (), SWAPPED, [FAR, NEAR], None),
        ((*MPICH, "-bind-to", "none"), WRAPPED, UNIQUE, SWAPPED, [FAR, NEAR], None),
        # Each rank is bound by its script.
        ((*OPEN_MPI, "--bind-to", "none"), ON_FAR, UNIQUE, {}, [FAR, FAR], "mpirun --bind-to none"),
        # No rank is bound: the launcher itself has only this CPU.
        (("taskset", "-c", FAR, *MPICH), (), (), {}, [FAR, FAR], None),
    ],
)
def test_a_rank_keeps_the_cpus_to_which_its_launcher_bound_it(
    here: Mapping[str, str],
    *,
    mpirun: tuple[str, ...],
    before: tuple[str, ...],
    words: tuple[str, ...],
    env: dict[str, str],
    cpus: list[str],
    switch: str | None,
) -> None:
    """A rank keeps far CPUs, too, even in a mode that divides shared CPUs."""
    environ = {"PATH": os.environ["PATH"], "TMPDIR": "/tmp", **here, **env}  # noqa: S108
    tell = ("sh", "-c", "echo $(grep Cpus_allowed_list /proc/self/status) $AFFINITYD_LOCALITY")
    rank = ("sh", "-c", 'echo "${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}: $("$@")"', "sh")
    done = ran(*mpirun, "-np", "2", *rank, *before, *EXEC, *words, *tell, env=environ)
    assert done.status == 0, done.stderr
    assert masks(done.stdout) == cpus
    lines = [line for line in done.lines if line.startswith("affinityd exec")]
    assert any(STAYS.format(switch) in line for line in lines) == (switch is not None)
