"""A task of Slurm, by what slurmstepd tells TaskProlog=: the plan requests that follow. Pure.

Sources: slurm.conf(5), "TaskProlog"; srun(1) and sbatch(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from affinityd.request.environment import default_mode
from affinityd.request.environment_cpus import asked_cpus, without_defaults
from affinityd.request.launchers import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from affinityd.request.environment import Question


def task_questions(given: Question, environ: Mapping[str, str]) -> Iterator[Question]:
    """Yield the plan requests of a task: the next one where the one before names no GPU here.

    `given` are parameters: what the script saw, with the GPUs of the job as prolog.sh noted them,
    and what site and job chose.
    """
    tasks = environ.get("SLURM_GTIDS", "").count(",") + 1
    facts = {
        "visible": _visible(environ),
        "step_gpus": _positive(environ.get("SLURM_GPUS_ON_NODE")),
        "job_cpus": _job_cpus(environ.get("SLURM_JOB_CPUS_PER_NODE", "")),
    }
    if tasks > 1:
        facts |= {
            "ranks": f"{tasks}",
            "rank": environ.get("SLURM_LOCALID"),
            "gpu_bind": environ.get("SLURMD_TRES_BIND"),
            "cpu_bind": environ.get("SLURM_CPU_BIND_LIST"),
        }
    known = {name: text for name, text in facts.items() if text}
    chosen = without_defaults(given)
    asked = {} if "task_cpus" in given else asked_cpus(environ, tasks)
    question = {"mode": default_mode(chosen), **asked, **known, **chosen}
    if job := question.pop("job", None):
        yield {**question, **_granted(question, job), "job": job}
    if tasks > 1:  # each GPU of the node has cores of its own
        question = {"share": "node", **question}
    yield question


def _visible(environ: Mapping[str, str]) -> str | None:
    """Return the request's `visible`: Slurm gives several vendors' variables the same value."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        return environ["CUDA_VISIBLE_DEVICES"]
    rocr = environ.get("ROCR_VISIBLE_DEVICES")
    return f"ROCR_VISIBLE_DEVICES={rocr}" if rocr else None


def _granted(question: Question, job: str) -> dict[str, str]:
    """Return what a task has that may open more devices than its step's: its job's.

    That is one which is not bound, where nothing keeps it from the node's other devices.
    """
    files = question.get("granted", "").split(",")
    is_step_s = question.get("step_gpus") == f"{len(files)}"
    return {} if "visible" in question or is_step_s else {"granted": job}


def _job_cpus(text: str) -> str | None:
    """Read `8`, or `8(x2)` of two nodes; None where nodes differ."""
    return None if "," in text else _positive(text.partition("(")[0])


def _positive(text: str | None) -> str | None:
    return f"{number(text)}" if number(text) else None
