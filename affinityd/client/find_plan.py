"""The plan of a process: by a daemon, else computed here from its node.json or from sysfs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from affinityd.client import http as client
from affinityd.config import switch
from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.errors import (
    AffinityError,
    ApplyError,
    DaemonError,
    InvalidRequestError,
    NoDaemonError,
)
from affinityd.planner import LOCALITIES
from affinityd.request.environment import first_answer
from affinityd.text import quote

if TYPE_CHECKING:
    from affinityd.request.environment import Question

    #: Lines of the `shell` format; the other fields of a ProcessPlan: source, trouble, replayed.
    LocalPlan = tuple[Mapping[str, str], str, str | None, str | None]

TIMEOUT = 1.0  #: seconds that a plan may take by default
UNKNOWN_PARAMETER = "unknown parameter"  #: begins an older daemon's refusal of a newer client
TOO_LATE = "finding a plan took too long"
DAEMON_SHARE = 0.75  #: the daemon's part of a plan's time; the rest is for a plan without it


class ProcessPlan:
    """A process's plan, from the lines of the `shell` format.

    `source` is the source of the topology: "daemon", "node.json" or "sysfs". `trouble` is why no
    daemon planned it, or why a node.json was not trusted; None: there was no daemon, or no trouble.
    `replayed` is the setting that names another machine than this one to plan on; None: none does,
    or a daemon planned. `gpus` are the node's own indices, `nodes` the home nodes; both are empty
    if an older daemon does not send them, and `rdma`, the ports of RDMA devices, is None. The plan
    is applied if `switch` is on.
    """

    __slots__ = (
        *("allowed", "cpus", "gpus", "locality", "memory_nodes", "nodes", "rdma", "replayed"),
        *("source", "switch", "threads", "trouble", "warnings"),
    )

    def __init__(
        self,
        lines: Mapping[str, str],
        source: str,
        trouble: str | None = None,
        replayed: str | None = None,
    ) -> None:
        """Raise ValueError, one line, for lines that are no plan."""
        try:
            self.cpus: CpuSet = parse_list(lines["AFFINITYD_CPULIST"])
            self.allowed: CpuSet = parse_list(lines["AFFINITYD_ALLOWED"])
            self.memory_nodes = parse_list(lines["AFFINITYD_MEMORY_NODES"])
            self.gpus = parse_list(lines.get("AFFINITYD_GPUS", ""))
            self.nodes = parse_list(lines.get("AFFINITYD_NODES", ""))
            self.locality = lines["AFFINITYD_LOCALITY"]
            self.threads = int(lines["AFFINITYD_THREADS"])
        except KeyError as error:
            raise ValueError(f"a plan without {error}") from None
        ports = lines.get("AFFINITYD_RDMA")
        self.rdma = None if ports is None else tuple(filter(None, ports.split(",")))
        warnings = lines.get("AFFINITYD_WARNINGS", "").split(",")
        self.warnings = tuple(filter(None, dict.fromkeys(warnings)))
        if not self.cpus or not self.cpus <= self.allowed:
            raise ValueError(f"a plan for {quote(lines['AFFINITYD_CPULIST'])}")
        if self.threads < 1:
            raise ValueError(f"{self.threads} threads")
        if self.locality not in LOCALITIES:
            raise ValueError(f"locality {quote(self.locality)}")
        try:
            self.switch = switch.read(lines.get(switch.VARIABLE, ""))
        except AffinityError as error:
            raise ValueError(str(error)) from None
        self.source = source
        self.trouble = trouble
        self.replayed = replayed


def find_plan(
    questions: Sequence[Question],
    sockets: Sequence[str],
    start: float,
    timeout: float,
    *,
    bounded: bool,
) -> ProcessPlan:
    """Return the plan of the process that the questions are about.

    `start` is of time.monotonic, `timeout` in seconds. Without a daemon, to read the machine's
    files may take longer, unless it is `bounded`: then a forked child plans, as a process of one
    thread may. Raises AffinityError.
    """
    try:
        return ask_daemons(questions, sockets, start + timeout * DAEMON_SHARE)
    except NoDaemonError:
        trouble = None
    except DaemonError as error:
        trouble = str(error)
    if not bounded:
        return ProcessPlan(*plan_locally(questions, sockets, trouble))
    from affinityd.client.forked import run_forked  # noqa: PLC0415 - only where there is no daemon

    try:
        found = run_forked(lambda: plan_locally(questions, sockets, trouble), start + timeout)
    except TimeoutError:
        raise ApplyError("; ".join(filter(None, (TOO_LATE, trouble)))) from None
    return ProcessPlan(*found)


def ask_daemons(
    questions: Sequence[Question], sockets: Sequence[str], deadline: float
) -> ProcessPlan:
    """Return the answer of the first daemon that answers; `deadline` is of time.monotonic.

    Raises DaemonError if none answers, NoDaemonError if there is none, and the refusal of the
    request.
    """
    trouble: DaemonError = NoDaemonError(f"no daemon at {' or '.join(sockets)}")
    for path in sockets:
        try:
            return first_answer(questions, _asker(path, deadline))
        except NoDaemonError:  # noqa: PERF203 - two paths at most
            continue
        except DaemonError as error:
            if isinstance(trouble, NoDaemonError):  # the first one; the second had no time
                trouble = error
    raise trouble


def plan_locally(
    questions: Sequence[Question], sockets: Sequence[str], trouble: str | None = None
) -> LocalPlan:
    """Return a daemon's answer, computed from its node.json, else from this machine's files.

    Raises AffinityError, with the errors before it.
    """
    # Imported here: the planner takes as long to import as Python to start.
    from affinityd.client import local_plan  # noqa: PLC0415
    from affinityd.request import formats  # noqa: PLC0415

    known = local_plan.find_node(sockets)
    trouble = trouble or known.doubt
    try:
        reply = local_plan.plan_on_node(known.node, questions)
    except AffinityError as error:
        raise type(error)("; ".join(filter(None, (str(error), trouble, known.replayed)))) from None
    return _assignments(formats.render(reply, "shell")), known.source, trouble, known.replayed


def _asker(path: str, deadline: float) -> Callable[[Question], ProcessPlan]:
    return lambda question: _ask_daemon(path, question, deadline)


def _ask_daemon(path: str, question: Question, deadline: float) -> ProcessPlan:
    try:
        text = client.ask_plan(path, question, deadline)
    except InvalidRequestError as error:
        if str(error).startswith(UNKNOWN_PARAMETER):
            raise DaemonError(f"the daemon at {path} runs another release: {error}") from None
        raise
    try:
        place = ProcessPlan(_assignments(text), "daemon")
        beyond = place.cpus - parse_list(question["cpuset"])
    except ValueError as error:
        raise DaemonError(f"the daemon at {path} answered {error}") from None
    if beyond:
        raise DaemonError(
            f"the daemon at {path} gave CPUs that are not allowed: {format_list(beyond)}"
        )
    return place


def _assignments(text: str) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in text.splitlines())
