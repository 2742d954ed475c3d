"""The plan of a process: by a daemon, else computed here from its node.json or from sysfs."""

from __future__ import annotations

from affinityd import config
from affinityd.client import http
from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import (
    AffinityError,
    ApplyError,
    DaemonError,
    NoDaemonError,
    UnknownParameterError,
)
from affinityd.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from affinityd.request.environment import Pairs

TIMEOUT = 1.0  #: seconds that a plan may take by default
TOO_LATE = "finding a plan took too long"
DAEMON_SHARE = 0.75  #: the daemon's part of a plan's time; the rest is for a plan without it


class ProcessPlan:
    """A process's plan, read from the lines of the `shell` format."""

    def __init__(
        self,
        text: str,
        source: str = "daemon",
        trouble: str | None = None,
        replayed: str | None = None,
    ) -> None:
        """Raise ValueError, one line, for a text that is no plan.

        `source` is that of the topology: or "node.json" or "sysfs". `trouble` is why no daemon
        planned it; None: there was none, or no trouble. `replayed` is the setting that names
        another machine than this one.
        """
        values = dict(line.partition("=")[::2] for line in text.splitlines())
        try:
            self.cpus: CpuSet = parse_list(values["AFFINITYD_CPULIST"])
            self.allowed: CpuSet = parse_list(values["AFFINITYD_ALLOWED"])
            self.memory_nodes = parse_list(values["AFFINITYD_MEMORY_NODES"])
            self.gpus = parse_list(values.get("AFFINITYD_GPUS", ""))  # the node's own indices
            self.nodes = parse_list(values.get("AFFINITYD_NODES", ""))  # the home nodes
            self.locality = values["AFFINITYD_LOCALITY"]
            self.threads = int(values["AFFINITYD_THREADS"])
            self.switch = config.read_switch(values.get(config.SWITCH, ""))
        except KeyError as error:
            raise ValueError(f"a plan without {error}") from None
        except AffinityError as error:
            raise ValueError(str(error)) from None
        self.rdma = _words(values.get("AFFINITYD_RDMA", ""))  # ports, like mlx5_2:1
        self.warnings = _words(values.get("AFFINITYD_WARNINGS", ""))
        if not self.cpus or not self.cpus <= self.allowed:
            raise ValueError(f"a plan for {quote(values['AFFINITYD_CPULIST'])}")
        if self.threads < 1:
            raise ValueError(f"{self.threads} threads")
        if not self.locality.isalpha():
            raise ValueError(f"locality {quote(self.locality)}")
        self.source = source
        self.trouble = trouble
        self.replayed = replayed


def find_plan(
    query: Pairs,
    sockets: Sequence[str],
    start: float,
    timeout: float,
    *,
    bounded: bool,
) -> ProcessPlan:
    """Return the plan of the process that the query is about.

    `start` is of time.monotonic, `timeout` in seconds. Without a daemon, to read the machine's
    files may take longer, unless it is `bounded`: then a forked child plans, as a process of one
    thread may. Raises AffinityError.
    """
    trouble = None
    try:
        return ask_daemons(query, sockets, start + timeout * DAEMON_SHARE)
    except NoDaemonError:
        pass
    except DaemonError as error:
        trouble = str(error)
    # Imported here: the planner takes as long to import as Python to start.
    from affinityd.client import local_plan  # noqa: PLC0415

    if not bounded:
        return _from_text(local_plan.plan_text(query, sockets, trouble), trouble)
    from affinityd.linux import children  # noqa: PLC0415

    try:
        text = children.run(
            lambda: local_plan.plan_text(query, sockets, trouble).encode(), start + timeout
        )
    except TimeoutError:
        raise ApplyError("; ".join(filter(None, (TOO_LATE, trouble)))) from None
    return _from_text(text.decode(), trouble)


def _from_text(text: str, trouble: str | None) -> ProcessPlan:
    source, replayed, lines = text.split("\n", 2)
    return ProcessPlan(lines, source, trouble, replayed or None)


def ask_daemons(query: Pairs, sockets: Sequence[str], deadline: float) -> ProcessPlan:
    """Return the answer of the first daemon that answers; `deadline` is of time.monotonic.

    Raises DaemonError if none answers, NoDaemonError if there is none, and the refusal of the
    request.
    """
    trouble: DaemonError = NoDaemonError(f"no daemon at {' or '.join(sockets)}")
    for path in sockets:
        try:
            return _ask_daemon(path, query, deadline)
        except NoDaemonError:  # noqa: PERF203 - two paths at most
            continue
        except DaemonError as error:
            if isinstance(trouble, NoDaemonError):  # the first one; the second had no time
                trouble = error
    raise trouble


def _ask_daemon(path: str, query: Pairs, deadline: float) -> ProcessPlan:
    try:
        return ProcessPlan(http.ask_plan(path, query, deadline))
    except UnknownParameterError as error:
        raise DaemonError(f"the daemon at {path} runs another release: {error}") from None
    except ValueError as error:
        raise DaemonError(f"the daemon at {path} answered {error}") from None


def _words(text: str) -> tuple[str, ...]:
    """Return the different words that commas separate."""
    return tuple(filter(None, dict.fromkeys(text.split(","))))
