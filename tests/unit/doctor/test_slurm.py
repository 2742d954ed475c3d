"""The check of what Slurm does to jobs with GPUs."""

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd import __version__
from tests.support.doctor_facts import TWO, Files, check, facts_of
from tests.support.machines.by_hand import made
from tests.support.paths import REPOSITORY
from tests.support.recorded_slurm import RecordedSlurm, recorded_slurm
from tests.unit.doctor.test_checks import live

PACKAGES = {0: "0-3", 1: "4-7"}
NODE = made(PACKAGES, gpus=[0, 1], packages=PACKAGES)
#: Four GPUs, two on each of two packages.
FOUR = replace(NODE, gpus=tuple(replace(NODE.gpus[it // 2], index=it, minor=it) for it in range(4)))
FITS = "ok: jobs without GPUs leave most cores"
RESTRICTED = "RestrictedCoresPerGPU=2(0-7)"


@pytest.mark.parametrize(
    ("line", "jobs", "expected"),
    [
        ("", ["7 gpu07 0-1 -", "8 gpu07 4-7 0"], FITS),
        (
            "",
            ["7 gpu07 0-1 -", "9 gpu[06-07] 2 -", "8 gpu07 4-7 0", "5 login1 0-7 -"],
            (
                "warn 0-1: CPU jobs (7,9) have 3 of the 4 cores near GPUs 0-1 → "
                "RestrictedCoresPerGPU=2"
            ),
        ),
        (RESTRICTED, ["7 gpu07 0-7 -"], FITS),
    ],
)
def test_cpu_jobs_on_cores_near_gpus_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, jobs: list[str], expected: str
) -> None:
    slurm = called_gpu07(tmp_path, monkeypatch)
    slurm.shows(f"NodeName=gpu07 Gres=gpu:4 Sockets=2 CoresPerSocket=4 {line} State=IDLE")
    slurm.runs(*jobs)
    (slurm.folder / "hostnames").write_text("gpu06\ngpu07\n")
    check("slurm-conf", live(facts_of(tmp_path / "node", FOUR)), expected)


def called_gpu07(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedSlurm:
    slurm = recorded_slurm(tmp_path / "slurm", monkeypatch)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    slurm.is_called("gpu07")
    return slurm


OURS = (REPOSITORY / "slurm/task_prolog.sh").read_text()
OF_0_2 = OURS.replace(f"# affinityd {__version__}\n", "")
BESIDE = {"opt/pinning.sh": ""}
SITES = "[ ! -x /opt/task_prolog.sh ] || /opt/task_prolog.sh\n"


@pytest.mark.parametrize(
    ("setting", "files", "expected"),
    [
        (
            "/opt/task_prolog.sh",
            {"opt/task_prolog.sh": OURS, **BESIDE},
            f"ok: of affinityd {__version__}",
        ),
        (
            "/opt/task_prolog.sh",
            {"opt/task_prolog.sh": OURS},
            "warn: /opt/pinning.sh cannot be read: no task is pinned → install the scripts of",
        ),
        (
            "/opt/task_prolog.sh",
            {"opt/task_prolog.sh": OF_0_2, **BESIDE},
            "warn: /opt/task_prolog.sh is of affinityd 0.2 or older → install the scripts of",
        ),
        (
            "/etc/own",
            {"etc/own": SITES, "opt/task_prolog.sh": OURS.replace(__version__, "0.0.9"), **BESIDE},
            f"warn: /opt/task_prolog.sh is of affinityd 0.0.9, this is {__version__} → pinning.sh",
        ),
        ("/etc/own", {"etc/own": "echo affinityd\n"}, "n/a: TaskProlog=/etc/own does not run"),
        ("/etc/own", {}, "warn: TaskProlog=/etc/own cannot be read: each task dies → put a script"),
        ("(null)", {}, "n/a: slurm.conf has no TaskProlog="),
    ],
)
def test_a_task_prolog_that_does_not_pin_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, files: Files, expected: str
) -> None:
    slurm = called_gpu07(tmp_path, monkeypatch)
    config = f"TaskPluginParam         = (null type)\nTaskProlog              = {setting}\n"
    (slurm.folder / "config").write_text(config)
    check("slurm-scripts", live(facts_of(tmp_path / "node", TWO, files)), expected)


def test_without_slurm_no_script_is_looked_for(tmp_path: Path) -> None:
    check("slurm-scripts", facts_of(tmp_path), "n/a: has no slurmd")
