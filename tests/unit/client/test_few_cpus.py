"""A rank on one core of many, the costliest mistake, is reported at the start."""

import pytest

from affinityd.client.process import ProcessContext
from affinityd.client.remarks import remarks
from affinityd.cpuset import parse_list
from affinityd.request.process_plan import ProcessPlan
from tests.support.tables import cases, words

SRUN = (
    "SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_LOCALID=1 SLURM_GTIDS=0,1 SLURM_JOB_CPUS_PER_NODE=128(x2)"
)
MPI = "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2"


@pytest.mark.parametrize(
    ("variables", "given", "launcher", "line"),
    cases("few_cpus.tsv", SRUN=SRUN, MPI=MPI),
)
def test_a_rank_with_one_core_is_told_how_to_get_more(
    monkeypatch: pytest.MonkeyPatch, variables: str, given: str, launcher: str, line: str
) -> None:
    cpus = parse_list(given)
    monkeypatch.setattr(ProcessContext, "launcher", (parse_list(launcher), None))
    process = ProcessContext(1, 0, words(variables), None)
    plan = ProcessPlan(cpus=cpus, allowed=cpus, threads=1, locality="local", gpus=(), nodes=())
    assert list(remarks(plan, cpus, process, {})) == ([line] if line else [])
    plan.threads = 8
    assert list(remarks(plan, cpus, process, {})) == []
