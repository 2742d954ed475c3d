"""Whether every user's jobs reach the daemon, its node.json is right, and settings are known.

Commands ignore unknown settings silently: a job inherits many variables, and the settings file
may have lines for other programs.
"""

from __future__ import annotations

import difflib
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from affinityd import config
from affinityd.client import ask_daemon
from affinityd.config import NODE_FILE, removed, settings
from affinityd.cpuset import format_list
from affinityd.doctor.facts import (
    ENVIRONMENT,
    CheckResults,
    DaemonFacts,
    NodeFacts,
    NotApplicableError,
    fail,
    ok,
    warn,
)
from affinityd.errors import AffinityError
from affinityd.linux.processes import credentials
from affinityd.text import count
from affinityd.topology.document import read_node
from affinityd.topology.model import Node, Topology


def probe(path: str, timeout: float = 1.0) -> DaemonFacts:
    """Return the facts of the daemon whose socket is at a path; if it answers, read its metrics.

    `timeout` is for each query; the default is that of every client.
    """
    daemon = replace(_listener(path, timeout), published=_published(Path(path)))
    if not daemon.status:
        return daemon
    deadline = time.monotonic() + timeout
    with suppress(AffinityError, ValueError):
        metrics = ask_daemon.fetch(path, "/metrics", deadline, most=64 * 2**20)
        return replace(daemon, nri=_nri_samples(metrics))
    return daemon


def _listener(path: str, timeout: float) -> DaemonFacts:
    daemon = DaemonFacts(path)
    deadline = time.monotonic() + timeout
    try:
        with closing(ask_daemon.connect(path, deadline)) as connection:
            daemon = replace(daemon, listens=True, pid=credentials(connection).pid or None)
            answer = ask_daemon.get(connection, "/readyz", deadline)
        return replace(daemon, status=ask_daemon.parse(answer)[0])
    except TimeoutError:
        if daemon.listens:
            error = f"no answer within {timeout:.1g} s"
        else:
            error = "it accepts no more connections: its queue is full"
        return replace(daemon, listens=True, error=error)
    except (OSError, ValueError) as fault:
        return replace(daemon, is_denied=isinstance(fault, PermissionError), error=_reason(fault))


def _published(socket: Path) -> Node | str:
    file = socket.with_name(NODE_FILE)
    try:  # this process may not be allowed to see whether the file exists
        return read_node(file) if file.exists() else "it does not exist"
    except (OSError, ValueError) as error:
        return _reason(error)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.strerror:  # "path too long" has no errno
        return error.strerror
    return str(error)


def _nri_samples(text: str) -> Mapping[str, float] | None:
    """Return the samples of the NRI plugin, by name with labels; None: no plugin runs."""
    samples = {}
    for line in text.splitlines():
        if line.startswith("affinityd_nri_"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    return samples or None


def daemon(facts: NodeFacts) -> CheckResults:
    """Judge the daemon of this machine: its socket, node.json, its answers and its process."""
    daemon = facts.daemon
    if daemon is None:
        raise NotApplicableError("the machine is replayed, and has no daemon")
    misspelled = list(variables(facts))
    if daemon.absent and not misspelled:
        raise NotApplicableError(
            f"no daemon listens at {' or '.join(daemon.absent)}, and none is needed: affinityd "
            "exec and bind plan by themselves; if one listens elsewhere, name it with --socket"
        )
    yield from misspelled
    if daemon.absent:
        return
    yield from socket(daemon)
    yield from published_node(daemon, facts.topology)
    yield ok(f"{daemon.path} answers (process {daemon.pid or 'unknown'})")


#: Every AFFINITYD_* name without a number in it.
OUR_VARIABLES = (
    "AFFINITYD",
    *(f"{config.PREFIX}{name.upper()}" for name in settings.SETTING_NAMES),
    *config.PARAMETER_VARIABLES.values(),
    # Commands, prologs and pods read these, besides the settings.
    "AFFINITYD_CHOOSE_GPU",
    "AFFINITYD_CONFIG",
    "AFFINITYD_CPUS",
    "AFFINITYD_DRAIN",
    "AFFINITYD_GPU_ORDER",
    "AFFINITYD_JOB_CPUS",
    "AFFINITYD_JOB_GPUS",
    "AFFINITYD_MEMORY",
    "AFFINITYD_MPS_DEVICES",
    "AFFINITYD_NICS",
    "AFFINITYD_THREADS",
    "AFFINITYD_TIMEOUT",
    "AFFINITYD_URL",
    "AFFINITYD_VERBOSE",
    # affinityd sets these for jobs.
    "AFFINITYD_ALLOWED",
    "AFFINITYD_CPULIST",
    "AFFINITYD_GPUS",
    "AFFINITYD_LOCALITY",
    "AFFINITYD_MEMORY_NODES",
    "AFFINITYD_NODES",
    "AFFINITYD_PINNED_FOR",
    "AFFINITYD_RDMA",
    "AFFINITYD_NEAR",
    "AFFINITYD_REPLAYED",
    "AFFINITYD_SLICE",
    "AFFINITYD_UNPINNED",
    "AFFINITYD_VISIBLE_MEMORY_NODES",
    "AFFINITYD_WARNINGS",
)
RANKS = f"{config.PREFIX}RANK_"  #: `shell` format: AFFINITYD_RANK_0_CPULIST


def variables(facts: NodeFacts) -> CheckResults:
    """Judge the names of AFFINITYD_* variables, and of the settings file's keys."""
    for variable, where in facts.variables:
        name = variable.upper()
        if variable in OUR_VARIABLES or name.startswith(RANKS):
            continue
        # Kubernetes sets …_SERVICE_HOST and …_PORT for a Service.
        if where == ENVIRONMENT and {"SERVICE", "PORT"} & {*name.split("_")}:
            continue
        if variable in removed.VARIABLES:
            yield warn(
                f"{variable} in {where} is removed, and ignored", removed.VARIABLES[variable]
            )
            continue
        # Names that belong to other programs are less similar.
        similar = difflib.get_close_matches(name, OUR_VARIABLES, n=1, cutoff=0.9)
        if similar:
            remedy = f"did you mean {similar[0]}?"
        elif name.startswith(config.PREFIX):
            remedy = "leave it out; docs/settings.md lists the settings"
        else:
            continue
        yield warn(f"{variable} in {where} is not a setting of affinityd, and is ignored", remedy)


def socket(daemon: DaemonFacts) -> CheckResults:
    """Judge whether a daemon answers, every user reaches it, and no other socket is there."""
    if daemon.is_denied:
        yield fail(
            f"this user may not connect to {daemon.path}: {daemon.error}",
            "let every user reach it: chmod 755 the folders and 666 the socket; or run "
            "affinityd doctor as root",
        )
    elif daemon.status != HTTPStatus.OK:
        yield fail(
            f"no ready daemon at {daemon.path}: {daemon.error or f'it answered {daemon.status}'}",
            "systemctl enable --now affinityd, or affinityd serve as root; journalctl -u affinityd "
            "says why a running daemon is not ready; --socket names another socket",
        )
    wrong = list(_wrong_modes(Path(daemon.path).absolute()))
    if wrong:
        yield warn(
            "not all users' jobs reach the daemon, or others may replace its socket: "
            + ", ".join(wrong),
            "chmod 755 the folders and 666 the socket; in the unit RuntimeDirectoryMode=0755",
        )


def _wrong_modes(path: Path) -> Iterator[str]:
    """Yield the folders that keep other users from the socket, or let them replace it."""
    if path.is_relative_to("/run/user") or path.is_relative_to(config.runtime_folder()):
        return
    for place in (*reversed(path.parents), path):
        try:
            mode = stat.S_IMODE(place.stat().st_mode)
        except OSError:  # the folder does not exist, or is hidden
            return
        needed = stat.S_IXOTH
        if place == path:
            needed = stat.S_IROTH | stat.S_IWOTH
        is_systems = place == Path(config.SYSTEM_SOCKET).parent
        is_writable = mode & (stat.S_IWGRP | stat.S_IWOTH)
        if mode & needed != needed or (is_systems and is_writable):
            yield f"{place} is {mode:04o}"


def may_exist(path: Path) -> bool:
    """Whether a path exists, or permissions hide whether it does."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _machine_words(topology: Topology) -> Mapping[str, str]:
    return {
        "name": topology.name,
        "online CPUs": format_list(topology.online),
        "GPUs": ", ".join(gpu.pci_bus_id for gpu in topology.gpus) or "none",
    }


def _difference(node: Node, topology: Topology) -> str:
    """Return why node.json seems to describe another machine; empty: it does not."""
    published = _machine_words(node.topology)
    for fact, here in _machine_words(topology).items():
        if published[fact] != here:
            return f"its {fact}: {published[fact]}, here: {here}"
    if node.replayed:
        return "it describes a replayed machine"
    return ""


def published_node(daemon: DaemonFacts, topology: Topology) -> CheckResults:
    """Judge whether node.json, from which ranks plan without the daemon, describes this machine."""
    node = daemon.published
    fault = ""
    if isinstance(node, Node):
        fault = _difference(node, topology)
    elif daemon.listens:
        fault = node
    if fault:
        yield warn(
            f"ranks cannot plan from {Path(daemon.path).with_name(NODE_FILE)} without the daemon: "
            + fault,
            "let the daemon write to its folder, and give a daemon that replays a machine another "
            "folder; then systemctl reload affinityd. If no daemon runs, remove the file",
        )


def nri(facts: NodeFacts) -> CheckResults:
    """Judge whether a container runtime asks the daemon, and no container was missed."""
    samples = facts.daemon.nri if facts.daemon else None
    if not samples:
        raise NotApplicableError("no listening daemon adjusts containers")
    if samples.get("affinityd_nri_connected") == 0:
        yield fail(
            "no container runtime knows the NRI plugin: containers start on all CPUs of their pods",
            "turn NRI on in the runtime's configuration, or correct --nri "
            "(kubernetes.nri.socketFolder of the chart); the daemon's log says why",
        )
    yield ok("a container runtime asks the daemon")
    missed = 0
    for name, value in samples.items():
        if 'state="missed"' in name:
            missed += int(value)
    if missed:
        yield warn(
            f"{count(missed, 'container')} with GPUs were to be placed by NRI, and were not",
            "repair what the daemon's log names with `is not adjusted`; the daemon tries again",
        )
