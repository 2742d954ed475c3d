"""`affinityd exec` as the entry of real launchers: Slurm's srun and sbatch, two mpiruns."""

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
    """Return `affinityd exec` by the Python that is where Slurm is."""
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
    ids=["all see all", "each sees one: they share no core", "a lone task is a launcher"],
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


def test_a_rank_below_a_lone_task_has_its_gpu(
    cluster: Slurm, here: Mapping[str, str], entry: tuple[str, ...]
) -> None:
    again = [*entry, "--rank=1", "--", *LOOK]
    printed = cluster.srun("-n1", "-c2", "--gres=gpu:2", *entry, "--", *again, env=here)
    assert masks(printed) == [FAR]
    script = " ".join([*entry, "--", *LOOK])
    printed = cluster.sbatch(script, "--ntasks=2", "--gres=gpu:2", env=here)
    assert masks(printed) == [BOTH]


def test_tasks_that_srun_binds_exchange_their_cpus_and_those_it_does_not_bind_stay(
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


def test_check_names_srun_that_has_bound_a_task(
    here: Mapping[str, str], release: str, entry: tuple[str, ...]
) -> None:
    check = [*entry, "--check", "--", "true"]
    with slurm(Setup(task_plugin="task/affinity", release=release)) as cluster:
        bound = cluster.srun("-n1", "-c1", "--gres=gpu:1", *check, env=here)
        unbound = cluster.srun("-n1", "-c2", "--cpu-bind=none", *check, env=here)
    assert "1. Slurm (SLURM_CPU_BIND_TYPE=mask_cpu:) has set the mask" in bound
    assert "1. affinityd: CPUs" in unbound


@pytest.mark.parametrize(
    ("mpirun", "options", "binder"),
    [
        ("mpirun.openmpi", ["--allow-run-as-root"], "Open MPI (OMPI_MCA_orte_bound_at_launch=1)"),
        ("mpirun.openmpi", ["--allow-run-as-root", "--bind-to", "none"], ""),
        ("mpirun.mpich", ["-bind-to", "core"], "MPICH (HYDRA_USER_PROVIDED_BINDING=1)"),
        ("mpirun.mpich", [], ""),
    ],
)
def test_check_names_an_mpirun_that_has_bound_a_rank(
    here: Mapping[str, str], mpirun: str, options: list[str], binder: str
) -> None:
    env = {"PATH": os.environ["PATH"], "TMPDIR": "/tmp", **here}  # noqa: S108 - Open MPI's own
    check = [*EXEC, "--check", "--", "true"]
    done = ran(mpirun, *options, "-np", "1", *check, env=env)
    first = done.stdout.splitlines()[0]
    assert first.startswith(f"1. {binder} has set the mask" if binder else "1. affinityd: CPUs")
