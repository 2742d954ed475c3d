"""The query of a plan: its parameters, and variables of an environment. Pure.

Scripts that start programs pass their raw variables on as `env=NAME=VALUE`, without
interpreting them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from affinityd.config import PARAMETER_VARIABLES, plan_parameters
from affinityd.cpuset import parse_list
from affinityd.errors import InvalidRequestError
from affinityd.request.environment import VISIBLE, process_questions
from affinityd.request.launchers import JOB_CPUS, SLURM_TASK, VARIABLES, cpus_to_plan_on
from affinityd.request.parameters import Parameter, Request, parse_request, plain
from affinityd.text import quote

if TYPE_CHECKING:
    from affinityd.request.environment import Question

SLURM = "SLURM_JOB_ID"  #: is set where TaskProlog= runs
#: Variables that may be passed on.
PASSED = frozenset(
    (
        *(name for names in VISIBLE.values() for name in names),
        *VARIABLES,
        *PARAMETER_VARIABLES.values(),
        *(JOB_CPUS, "AFFINITYD_CPULIST", "AFFINITYD_ALLOWED"),
        *(SLURM, "SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_GTIDS", "SLURM_GPUS_ON_NODE"),
        *("SLURM_CPUS_PER_TASK", "SLURM_JOB_CPUS_PER_NODE", "SLURM_CPU_BIND_LIST"),
        "SLURMD_TRES_BIND",
    )
)
OTHERS = frozenset(VARIABLES) - {SLURM_TASK}  #: do not count where TaskProlog= runs
#: The vendor of granted GPUs, by their names; of others any vendor's variables count.
VENDORS = {"minor:": "nvidia", "drm:": "amd"}
ENV = "env"
VARIABLE = Parameter(
    str,
    "a variable of the caller's environment, like LOCAL_RANK=3; given once for each variable",
    {"type": "array", "items": {"type": "string"}},
)


def parse_query(pairs: Iterable[tuple[str, str]]) -> tuple[Request, ...]:
    """Read (name, value) pairs: the request, or several, each for where the one before is retried.

    Raises InvalidRequestError, which names the first that is wrong.
    """
    given = list(pairs)
    variables = [text for name, text in given if name == ENV]
    stated = [(name, text) for name, text in given if name != ENV]
    request = parse_request(stated)
    if not variables:
        return (request,)
    meant = _questions(dict(stated), _environment(variables))
    return tuple(parse_request(question.items()) for question in meant)


def _environment(assignments: Iterable[str]) -> dict[str, str]:
    """Read NAME=VALUE texts. Raises InvalidRequestError."""
    environ: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidRequestError(f"env: {quote(text)} is not NAME=VALUE")
        if name not in PASSED:
            known = ", ".join(sorted(PASSED))
            raise InvalidRequestError(f"env: {quote(name)} is not read; known are {known}")
        if name in environ:
            raise InvalidRequestError(f"env: {name} is given twice; give it once")
        try:
            environ[name] = plain(value)
        except ValueError as error:
            raise InvalidRequestError(f"env: {name}: {error}") from None
    return environ


def _questions(stated: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Question]:
    """Yield the requests of an environment; stated parameters override it."""
    said = {name: text for name, text in environ.items() if text}
    given = {**plan_parameters(said), **stated}
    mask = given.pop("cpuset", None)
    cpus = None if mask is None else cpus_to_plan_on(environ, parse_list(mask))
    granted = given.get("granted", "")
    vendors = [vendor for prefix, vendor in VENDORS.items() if granted.startswith(prefix)]
    is_slurm_s = SLURM in environ
    own = {name: it for name, it in environ.items() if not (is_slurm_s and name in OTHERS)}
    for question in process_questions(given, own, cpus, None, vendors, leaves_slice=is_slurm_s):
        # Without a note of the job's GPUs tasks keep to their GPU's own block of the node.
        has_siblings = is_slurm_s and "ranks" in question and "job" not in question
        yield {"share": "node", **question} if has_siblings else question
