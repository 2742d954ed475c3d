"""A real Slurm 26.05 on cgroup v2: its jobs are known by folders of either name."""

import json
import re

import pytest

from tests.e2e.vm.guest_sluid import BY_NUMBER, BY_SLUID
from tests.e2e.vm.inside import Document

SETTINGS = (BY_SLUID, BY_NUMBER)
FOLDERS = {BY_SLUID: r"s[0-9A-Z]{13}", BY_NUMBER: r"job_\d+"}


def folder(seen: Document) -> str:
    """Return the name of the job's folder, which is that of both tasks."""
    tasks = [re.search(r"slurmstepd\.scope/(\w+)/step_0/user/", it) for it in seen["cgroups"]]
    (name,) = {task[1] for task in tasks if task}
    return name


@pytest.mark.parametrize("setting", SETTINGS)
def test_audit_names_the_job_of_each_task(seen: Document, setting: str) -> None:
    its = seen[setting]
    assert re.fullmatch(FOLDERS[setting], folder(its))
    for processes in (json.loads(its["audit"]["stdout"])["processes"], its["living"]):
        jobs = {it["pid"]: (it["job"], it["orphan"]) for it in processes}
        job = {"scheduler": "slurm", "id": its["number"], "step": "0"}
        assert jobs == dict.fromkeys(its["pids"], (job, None))


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_an_ended_job_has_left_is_an_orphan(seen: Document, setting: str) -> None:
    """The number of a job by its SLUID is known no more."""
    its = seen[setting]
    name = its["number"] if setting == BY_NUMBER else folder(its)
    why = f"Slurm job {name} has ended: it has no slurmstepd any more"
    orphans = {it["pid"]: it["orphan"] for it in its["left"]}
    assert orphans == dict.fromkeys(its["pids"], why)
