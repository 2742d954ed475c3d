"""The errors between a request and its answer.

A message is one line that quotes the wrong value and says what would be right.
"""

from __future__ import annotations


class AffinityError(Exception):
    """Base of all errors for a caller; `status` is the HTTP status, `title` a short name."""

    status = 500
    title = "Internal error"
    exit_code = 1


GPUAffinityError = AffinityError  #: its name in the library gpu_affinity


class InvalidRequestError(AffinityError):
    """A parameter is unknown, repeated, empty or malformed."""

    status = 422
    title = "Malformed request"
    exit_code = 2


class UnknownParameterError(InvalidRequestError):
    """A parameter has no meaning in this release."""

    title = "Unknown parameter"


class NoSuchGpuError(AffinityError):
    """A named GPU does not exist here, or the caller may not see it."""

    status = 404
    title = "No such GPU"


class UnsatisfiableError(AffinityError):
    """The machine, or the caller's part of it, is too small for the request."""

    status = 409
    title = "Cannot be satisfied"


class BoundError(UnsatisfiableError):
    """The user bound the process to CPUs, and affinityd does not change that."""

    title = "Left as it is"


class NotReadyError(AffinityError):
    """The topology has not been read yet."""

    status = 503
    title = "No topology yet"


class BusyError(NotReadyError):
    """The daemon lacks some resource for the moment."""

    title = "Too busy"


class NotScannedError(NotReadyError):
    """The processes have not been scanned yet, or never are."""

    title = "No scan"


class TreeError(AffinityError):
    """A `--root` or `--machine` that names no readable machine."""

    exit_code = 2


class FailingFileError(TreeError):
    """A file of the machine that exists, and cannot be read."""

    exit_code = 1


class TargetError(AffinityError):
    """A process that does not exist, or whose files cannot be read."""

    exit_code = 2


class OutputError(AffinityError):
    """A file that cannot be written."""


class ApplyError(AffinityError):
    """A plan that the kernel did not take."""


class DaemonError(AffinityError):
    """A daemon that hangs, closes the connection, has no topology, or answers nonsense."""


class NoDaemonError(DaemonError):
    """No process listens at a daemon's address."""


class ListenError(AffinityError):
    """An address that cannot be listened on."""


class FatalError(AffinityError):
    """The daemon ends; its supervisor starts it again."""


#: The errors that refuse a request, in the daemon or in a client.
REFUSAL_ERRORS = (
    InvalidRequestError,
    UnknownParameterError,
    NoSuchGpuError,
    UnsatisfiableError,
    BoundError,
)
