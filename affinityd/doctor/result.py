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
    """There is nothing to judge; says why. A check raises it before it yields anything."""


@dataclass(frozen=True)
class CheckResult:
    """One thing that a check has to say: an entry of the document in JSON."""

    name: str = field(default="", kw_only=True)  #: the check's, where it ran by that
    status: str  #: of STATUSES
    found: str  #: a sentence, which has the name of what was looked at and its value
    remedy: str | None = None  #: what to do about it; None: nothing
    gpus: tuple[int, ...] = ()  #: indices of the GPUs that it is about


CheckResults = Iterator[CheckResult]


def ok(found: str) -> CheckResult:
    """Return that all is well, which counts where nothing else was found."""
    return CheckResult(OK, found)


def warn(found: str, remedy: str, gpus: Iterable[Gpu] = ()) -> CheckResult:
    """Return what may slow ranks down."""
    return CheckResult(WARN, found, remedy, tuple(gpu.index for gpu in gpus))


def fail(found: str, remedy: str, gpus: Iterable[Gpu] = ()) -> CheckResult:
    """Return what does not work."""
    return CheckResult(FAIL, found, remedy, tuple(gpu.index for gpu in gpus))


def concluded(results: CheckResults) -> list[CheckResult]:
    """Return what is left of what a check yields: what is wrong, else that all is well.

    A program that cannot be asked, as Slurm's, is no fault.
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
