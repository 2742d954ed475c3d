"""The result of a check, and its status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from affinityd.cpuset import several
from affinityd.errors import InvalidRequestError
from affinityd.topology.model import Gpu

NOT_APPLICABLE = "n/a"  #: nothing to look at here, or no source tells: neither good nor bad
OK = "ok"
WARN = "warn"  #: ranks may be slower for it
FAIL = "fail"  #: something does not work

#: From best to worst.
STATUSES = (NOT_APPLICABLE, OK, WARN, FAIL)


class NotApplicableError(Exception):
    """There is nothing to judge, with the reason. A check raises it before it yields anything."""


@dataclass(frozen=True)
class CheckResult:
    """One result of a check: an entry of the document in JSON."""

    name: str = field(default="", kw_only=True)  #: the check's, where it ran by that
    status: str  #: of STATUSES
    found: str  #: a sentence, with the name of the setting and its value
    remedy: str | None = None  #: the remedy; None: none is needed
    gpus: tuple[int, ...] = ()  #: indices of the GPUs that it is about


CheckResults = Iterator[CheckResult]


def ok(found: str) -> CheckResult:
    """Return that all is well, which counts if nothing else was found."""
    return CheckResult(OK, found)


def warn(found: str, remedy: str, gpus: Iterable[Gpu] = ()) -> CheckResult:
    """Return a finding that may slow ranks down."""
    return CheckResult(WARN, found, remedy, tuple(gpu.index for gpu in gpus))


def fail(found: str, remedy: str, gpus: Iterable[Gpu] = ()) -> CheckResult:
    """Return a fault: something that does not work."""
    return CheckResult(FAIL, found, remedy, tuple(gpu.index for gpu in gpus))


def concluded(results: CheckResults) -> list[CheckResult]:
    """Return the results of a check: its findings, else that all is well.

    A program that cannot be run, as Slurm's, is no fault.
    """
    try:
        found = list(results)
    except (NotApplicableError, InvalidRequestError) as why:
        return [CheckResult(NOT_APPLICABLE, str(why))]
    return [it for it in found if it.status != OK] or found


def worst(results: Iterable[CheckResult]) -> str:
    """Return the worst status."""
    return max((result.status for result in results), key=STATUSES.index, default=NOT_APPLICABLE)


def named(gpus: Iterable[Gpu]) -> str:
    """Return `GPU 0`, or `GPUs 0-3`."""
    return several("GPU", (gpu.index for gpu in gpus))
