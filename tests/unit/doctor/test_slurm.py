"""The check of what Slurm does to jobs with GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.topology.model import Topology
from tests.support.doctor_facts import TWO, check, facts_of
from tests.support.machines.by_hand import made
from tests.support.recorded_slurm import RecordedSlurm, recorded_slurm
from tests.unit.doctor.test_checks import V2, live

SCOPE = "sys/fs/cgroup/system.slice/slurmstepd.scope"
SLUIDS = {"proc/self/mountinfo": V2, f"{SCOPE}/sEKNKTV3WPV500/cgroup.procs": ""}
BY_NUMBER = {"proc/self/mountinfo": V2, f"{SCOPE}/job_7/cgroup.procs": ""}
NAMES_BY_SLUID = f"warn: /{SCOPE} names jobs by SLUID, as sEKNKTV3WPV500 → CgroupJobIdPaths=yes"
PACKAGES = {0: "0-3", 1: "4-7"}
NODE = made(PACKAGES, gpus=[0, 1], packages=PACKAGES)
ALTERNATING = replace(NODE, gpus=NODE.gpus[::-1])
#: Four GPUs, two on each of two packages.
FOUR = replace(NODE, gpus=tuple(replace(NODE.gpus[it // 2], index=it, minor=it) for it in range(4)))
CYCLIC = {"TaskPlugin": "task/affinity,task/cgroup", "SelectTypeParameters": "CR_CORE_MEMORY"}
BLOCKS = {**CYCLIC, "SelectTypeParameters": "CR_CORE_MEMORY,CR_CORE_DEFAULT_DIST_BLOCK"}
ON_OTHERS = "warn 1-2: CR_CORE_MEMORY deals cores to ranks from all sockets in turn: with a rank "
ON_OTHERS += "for each GPU, those of GPUs 1-2 start → CR_CORE_DEFAULT_DIST_BLOCK"
FITS = "ok: CPU jobs, ranks and the names of job folders"
RESTRICTED = "RestrictedCoresPerGPU=2(0-7)"


@pytest.mark.parametrize(
    ("topology", "values", "line", "jobs", "expected"),
    [
        (FOUR, BLOCKS, "", [], FITS),
        (FOUR, CYCLIC, "", [], ON_OTHERS),
        (NODE, CYCLIC, "", [], FITS),  # with a GPU a socket both ways are right
        (FOUR, {**CYCLIC, "TaskPlugin": "task/cgroup"}, "", [], FITS),  # no rank gets a slice
        (FOUR, {**CYCLIC, "SlurmdParameters": "l3cache_as_socket"}, "", [], FITS),
        (ALTERNATING, CYCLIC, "", [], FITS),  # neither way is right
        (FOUR, BLOCKS, "", ["7 gpu07 0-1 -", "8 gpu07 4-7 0"], FITS),
        (
            FOUR,
            BLOCKS,
            "",
            ["7 gpu07 0-1 -", "9 gpu[06-07] 2 -", "8 gpu07 4-7 0", "5 login1 0-7 -"],
            (
                "warn 0-1: jobs without GPUs (7, 9) have 3 of the 4 cores near GPUs 0-1 → "
                "RestrictedCoresPerGPU=2"
            ),
        ),
        (FOUR, BLOCKS, RESTRICTED, ["7 gpu07 0-7 -"], FITS),
    ],
)
def test_what_slurm_does_to_jobs_with_gpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    topology: Topology,
    values: dict[str, str],
    line: str,
    jobs: list[str],
    expected: str,
) -> None:
    slurm = called_gpu07(tmp_path, monkeypatch)
    slurm.is_configured(**values)
    slurm.shows(f"NodeName=gpu07 Gres=gpu:4 Sockets=2 CoresPerSocket=4 {line} State=IDLE")
    slurm.runs(*jobs)
    (slurm.folder / "hostnames").write_text("gpu06\ngpu07\n")
    check("slurm-conf", live(facts_of(tmp_path / "node", topology)), expected)


def called_gpu07(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedSlurm:
    slurm = recorded_slurm(tmp_path / "slurm", monkeypatch)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    slurm.is_called("gpu07")
    return slurm


def test_job_folders_by_sluid_are_named_even_if_slurm_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    check("slurm-conf", facts_of(tmp_path / "captured", TWO, SLUIDS), NAMES_BY_SLUID)
    check("slurm-conf", facts_of(tmp_path / "old", TWO, BY_NUMBER), "n/a: has no slurmd")
    called_gpu07(tmp_path, monkeypatch)  # it shows no node
    check("slurm-conf", live(facts_of(tmp_path / "live", TWO, SLUIDS)), NAMES_BY_SLUID)
    check("slurm-conf", live(facts_of(tmp_path / "none", TWO, {})), "n/a: Node not found")
