"""Stand-ins for slurmd and scontrol; tests/e2e/slurm has the output of the real commands."""

from dataclasses import dataclass
from pathlib import Path

import pytest

SLURMD = """\
#!/bin/sh
echo "$*" >{folder}/asked
[ -e {folder}/slurmd ] || exit 1
cat {folder}/slurmd >&2
! grep -q fatal: {folder}/slurmd
"""

SCONTROL = """\
#!/bin/sh
case "$*" in
*aliases*) cat {folder}/aliases ;;
*hostnames*) cat {folder}/hostnames ;;
*config) cat {folder}/config ;;
*job) cat {folder}/jobs ;;
*) [ -e {folder}/nodes ] && cat {folder}/nodes || {{ echo "Node not found" >&2; exit 1; }} ;;
esac
"""


@dataclass(frozen=True)
class RecordedSlurm:
    """A Slurm whose commands print the files of a folder."""

    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def has(self, lines: str) -> None:
        """Have slurmd print lines of gres.conf as accepted, and lines of other kinds unchanged."""
        printed = (f"Gres {it}" if it.startswith("Name=") else it for it in lines.splitlines())
        (self.folder / "slurmd").write_text("".join(f"slurmd: {line}\n" for line in printed))

    def expects(self, gres: str, *nodes: str) -> None:
        """Have slurmctld show each of the nodes with this Gres=."""
        self.shows(*(f"NodeName={node} Gres={gres} State=IDLE" for node in nodes))

    def runs(self, *jobs: str) -> None:
        """Have slurmctld show these jobs, each as `NUMBER NODES CPU_IDS GPUS`; GPUS may be `-`."""
        lines = []
        for job in jobs:
            number, nodes, cpus, gpus = job.split()
            gres = "" if gpus == "-" else f"gpu:a100:1(IDX:{gpus})"
            lines.append(
                f"JobId={number} JobName=x JobState=RUNNING Reason=None JOB_GRES=gpu:1 "
                f"  Nodes={nodes} CPU_IDs={cpus} Mem=0 GRES={gres} MinCPUsNode=1\n"
            )
        (self.folder / "jobs").write_text("".join(lines))

    def shows(self, *nodes: str) -> None:
        (self.folder / "nodes").write_text("".join(f"{node}\n" for node in nodes))

    def is_called(self, name: str) -> None:
        (self.folder / "aliases").write_text(f"{name}\n")


def recorded_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedSlurm:
    """Put a Slurm first in PATH; its slurm.conf is empty, and its slurmctld knows no node."""
    programs = folder / "programs"
    programs.mkdir(parents=True)
    for name, text in {"slurmd": SLURMD, "scontrol": SCONTROL}.items():
        (programs / name).write_text(text.format(folder=folder))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}", prepend=":")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    for name in ("slurm.conf", "aliases", "jobs"):
        (folder / name).write_text("")
    return RecordedSlurm(folder)
