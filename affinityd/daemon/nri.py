"""The daemon's NRI plugin, in a thread of its own: no plan waits for a runtime, nor it for a plan.

However an adjustment ends, the answer is one with which the container starts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from prometheus_client.core import Metric

from affinityd import config
from affinityd.audit.model import ContainerResources
from affinityd.client.apply import NICS, verbs_files
from affinityd.config.settings import Settings
from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.daemon.metrics import MetricFamily, filled, whole
from affinityd.daemon.state.background import FailureLog
from affinityd.daemon.state.topology_watcher import KnownNode
from affinityd.errors import AffinityError, InvalidRequestError, NoSuchGpuError
from affinityd.kubernetes import nri as session
from affinityd.kubernetes import pods
from affinityd.kubernetes.nri import messages
from affinityd.kubernetes.nri.adjust import (
    FAILED,
    KEPT,
    LATE,
    NO_GPU,
    NOT_CHOSEN,
    OBSERVED,
    OUTCOMES,
    PINNED,
    UNKNOWN,
    Adjustment,
    Rules,
    adjust,
    chosen,
    granted,
)
from affinityd.kubernetes.nri.messages import Container, Pod
from affinityd.kubernetes.pods import devices
from affinityd.linux.cgroup import cpuset_at
from affinityd.linux.protobuf import read, text
from affinityd.threads import started
from affinityd.topology.model import Topology

log = logging.getLogger(__name__)

DEADLINE = 0.4  #: seconds until the answer is an empty one; the runtime would wait for 2 s
KUBELET_SECONDS = 0.1  #: of these, for each question to kubelet
SYNCHRONIZE_SECONDS = 1.5  #: for the containers that run already
FIRST_LOOK = 0.05  #: seconds between two looks whether the machine has been read
NO_NAMESPACE = "none, only pods with the label affinityd=on"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  #: seconds between two connections

MISSED = "missed"
#: Outcome → the state of a container with GPUs for which the plugin was asked.
STATES = {outcome: outcome for outcome in (PINNED, KEPT, OBSERVED)} | dict.fromkeys(
    (UNKNOWN, LATE, FAILED), MISSED
)


class NriPlugin:
    """Adjusts the containers that the runtime creates, whenever there is one."""

    def __init__(
        self, settings: Settings, service: KnownNode, read_again: Callable[[], object]
    ) -> None:
        """Take the runtime's socket and the rules, and the source of the node.

        `read_again` has the machine read soon: for a GPU that it has not.
        """
        self._socket = settings.nri or ""
        self._kubelet = settings.pod_resources
        self._service = service
        self._read_again = read_again
        self._rules = Rules(
            namespaces=settings.nri_namespaces,
            folder=str(Path(settings.socket).absolute().parent) if settings.nri_mount else None,
            nics=config.variables().get(NICS, ""),
            verbs=verbs_files,
            without_request=settings.nri_without_request,
        )
        self.outcomes: Counter[tuple[str, str]] = Counter()  #: by outcome and locality
        self.states: dict[str, tuple[str, str]] = {}  #: container → its state and locality
        self.is_known = False  #: to the runtime
        self.runtime = ""  #: its name and version
        self.names: dict[str, tuple[str, str, str]] = {}  #: id of a container → its names
        self._pinned: dict[str, CpuSet] = {}  # container → the CPUs that it was given
        self._others: set[str] = set()  # containers with a cpuset of kubelet's, or of another's
        self._listed: list[tuple[Pod, Container]] = []  # by a Synchronize that goes on
        self._losses = FailureLog(
            f"no container is adjusted; check that the runtime has NRI on at {self._socket}",
            expected=(OSError, ValueError),
        )
        self._bugs = FailureLog("a container is not adjusted", count=self._failed)

    def start(self) -> None:
        """Connect, and connect again, as long as the daemon runs."""
        threading.Thread(target=self._run, daemon=True).start()

    def metrics(self) -> Iterator[Metric]:
        """Yield its metrics."""
        yield from whole(FAMILIES, self)
        namespaces = ",".join(sorted(self._rules.namespaces))
        yield from filled(INFO, [((self.runtime, namespaces), 1)], ("runtime", "namespaces"))
        for families, label, words, counted in (
            (REQUESTS, "outcome", OUTCOMES, self.outcomes),
            (CONTAINERS, "state", dict.fromkeys(STATES.values()), Counter(self.states.values())),
        ):
            numbers = {(word, ""): 0 for word in words} | dict(counted)
            yield from filled(families, list(numbers.items()), (label, "locality"))

    def _run(self) -> None:
        pause = 0.0
        answers = {
            "Configure": self._configure,
            "CreateContainer": self._create_container,
            "UpdateContainer": self._update_container,
            "Synchronize": self._synchronize,
            "StateChange": self._state_changed,
        }
        while self._service.known is None:  # the runtime tells at once of what runs
            time.sleep(FIRST_LOOK)
        while True:
            began = time.monotonic()
            with self._losses.logged():
                for _ in session.serve(self._socket, answers, self._bugs.logged):
                    self.is_known = True
                    chosen = ", ".join(sorted(self._rules.namespaces)) or NO_NAMESPACE
                    known = "NRI at %s: the runtime knows the plugin; namespaces: %s"
                    log.info(known, self._socket, chosen)
                raise ConnectionError("the runtime closed the connection")
            # A runtime drops a plugin that was late: it is not made to wait at once again.
            is_stable = time.monotonic() - began > LONGEST_PAUSE
            pause = FIRST_PAUSE if is_stable else max(FIRST_PAUSE, min(2 * pause, LONGEST_PAUSE))
            self.is_known = False
            time.sleep(pause)

    def _configure(self, request: bytes) -> bytes:
        """Return a ConfigureResponse; the request names the runtime and its version."""
        self.runtime = f"{text(read(request), 2)} {text(read(request), 3)}".strip()
        return session.SUBSCRIPTION

    def _create_container(self, request: bytes) -> bytes:
        """Return a CreateContainerResponse, within DEADLINE."""
        pod, container = messages.created(request)
        self.names[container.id] = pod.namespace, pod.name, container.name
        made = self._made(pod, container, DEADLINE)
        self._note(container, made)
        return messages.adjusted(made.environment, made.folder, format_list(made.cpus))

    def _update_container(self, request: bytes) -> bytes:
        """Return an UpdateContainerResponse: the CPUs of one that was resized."""
        pod, container = messages.updating(request)
        before = self._pinned.get(container.id)
        if before is None or parse_list(container.cpus) not in {before, frozenset()}:
            if self._pinned.pop(container.id, None):  # the CPUs to come are another's choice
                self._keep(container, Adjustment(KEPT))
            return b""
        made = self._made(pod, replace(container, cpus=""), DEADLINE)
        if made.outcome != PINNED or made.cpus == before:
            return b""
        self._note(container, made)
        return messages.updates({container.id: format_list(made.cpus)})

    def _synchronize(self, request: bytes) -> bytes:
        """Return a SynchronizeResponse: the CPUs of containers that started without the plugin."""
        listed, more = messages.listed(request)
        self._listed += listed
        if more:
            return messages.updates({}, more=True)
        listed, self._listed = self._listed, []
        end = time.monotonic() + SYNCHRONIZE_SECONDS
        self.states, self._pinned, self._others = {}, {}, set()
        self.names = {its.id: (pod.namespace, pod.name, its.name) for pod, its in listed}

        def made(pod: Pod, container: Container) -> Adjustment:
            seconds, quietly = min(DEADLINE, end - time.monotonic()), bool(container.cpus)
            return self._made(pod, replace(container, cpus=""), seconds, quietly=quietly)

        # Those with a cpuset first: which are another's bounds the plans of the rest.
        placed = [(container, made(pod, container)) for pod, container in listed if container.cpus]
        for container, again in placed:
            has = parse_list(container.cpus)
            if again.outcome == PINNED and (has == again.cpus or _is_ours(container)):
                self._keep(container, replace(again, cpus=has))
            else:
                self._keep(container, replace(again, outcome=KEPT if again.cpus else again.outcome))
        given: dict[str, str] = {}
        for pod, container in (pair for pair in listed if not pair[1].cpus):
            now = made(pod, container)
            self._keep(container, now)
            if now.outcome == PINNED:
                given[container.id] = format_list(now.cpus)
                log.info("%s, while it runs", now.note)
            elif now.outcome == LATE:
                log.info("%s", now.note)
        return messages.updates(given)

    def _state_changed(self, event: bytes) -> bytes:
        if (container := messages.removed(event)) is not None:
            self.names.pop(container, None)
            self.states.pop(container, None)
            self._pinned.pop(container, None)
            self._others.discard(container)
        return b""

    def _made(
        self, pod: Pod, container: Container, seconds: float, *, quietly: bool = False
    ) -> Adjustment:
        """Return the changes to a container, within so many seconds."""
        try:
            return started(partial(self._adjusted, pod, container, quietly=quietly)).result(
                max(seconds, 0.0)
            )
        except LateError:
            note = f"a container starts as it is: {DEADLINE} s were too short"
            return Adjustment(LATE, note=note)

    def _note(self, container: Container, made: Adjustment) -> None:
        self.outcomes[made.outcome, made.locality] += 1
        if made.note:
            log.info("%s", made.note)
        self._keep(container, made)

    def _keep(self, container: Container, made: Adjustment) -> None:
        if container.cpus and made.outcome != PINNED:
            self._others.add(container.id)
        if made.outcome == PINNED:
            self._pinned[container.id] = made.cpus
        if state := STATES.get(made.outcome):
            self.states[container.id] = state, made.locality

    def _failed(self) -> None:
        self.outcomes[FAILED, ""] += 1

    def _adjusted(self, pod: Pod, container: Container, *, quietly: bool) -> Adjustment:
        name = f"{pod.namespace}/{pod.name}/{container.name}"
        try:
            if not self._is_chosen(pod, container):
                return Adjustment(NOT_CHOSEN)
            node = self._service.node
            kubelet = Kubelet(self._kubelet)
            names = granted(container) or kubelet.gpus(node.topology, pod, container)
            if not names:
                return Adjustment(NO_GPU)
            within = self._within(pod, kubelet)
            made = adjust(node, pod, container, self._rules, names, within=within)
        except NoSuchGpuError as error:  # maybe of a driver that came after the last reading
            self._read_again()
            why = str(error)
        except (AffinityError, OSError, ValueError) as error:
            why = str(error)
        else:
            return replace(made, note=made.note and f"container {name}: {made.note}")
        if not quietly:
            log.warning("container %s is not adjusted: %s", name, why)
        return Adjustment(UNKNOWN)

    def _is_chosen(self, pod: Pod, container: Container) -> bool:
        """Return whether a pod is chosen. Raises InvalidRequestError for its label."""
        try:
            return chosen(pod, self._rules)
        except InvalidRequestError:
            if granted(container):  # without a GPU it changes nothing
                raise
            return False

    def _within(self, pod: Pod, kubelet: Kubelet) -> CpuSet | None:
        """Return the CPUs that a pod's containers may be given: no other container's own.

        None: that is not known. Raises OSError, ValueError.
        """
        within = cpuset_at(pod.cgroup)
        if within is None or (self._kubelet is None and self._others):
            return None
        return within if kubelet.shared is None else within & kubelet.shared or None


@dataclass(frozen=True)
class Kubelet:
    """The answers of kubelet at the creation of a container, each asked for once at most."""

    path: str | None  #: of its podresources socket; None: it is not asked

    @cached_property
    def _containers(self) -> Sequence[ContainerResources]:
        if self.path is None:
            return ()
        return pods.containers(pods.list_pods(self.path, KUBELET_SECONDS))

    def gpus(self, topology: Topology, pod: Pod, container: Container) -> str:
        """Return the GPUs that it gave the container. Raises OSError, ValueError."""
        mine = pod.namespace, pod.name, container.name
        given = {
            key
            for its in self._containers
            if (its.namespace, its.pod, its.container) == mine
            for key, _ in devices(its, topology)
        }
        return ",".join(gpu.pci_bus_id for gpu in topology.gpus if gpu.key in given)

    @cached_property
    def shared(self) -> CpuSet | None:
        """The CPUs that are neither reserved nor a container's own; None: it gives out none.

        Raises OSError, ValueError.
        """
        if self.path is None:
            return None
        allocatable = pods.allocatable_cpus(self.path, KUBELET_SECONDS)
        if not allocatable:  # by the policy none
            return None
        return allocatable.difference(*(its.cpus for its in self._containers))


def _is_ours(container: Container) -> bool:
    """Return whether a container was given its cpuset when it was created."""
    return container.environment.get("AFFINITYD_CPULIST") == container.cpus


REQUESTS: tuple[MetricFamily[int], ...] = (
    MetricFamily(
        "affinityd_nri_requests_total",
        "Containers that the runtime told of at their creation, or resize, by outcome and by the "
        "locality of their CPUs.",
        lambda number: number,
    ),
)
INFO: tuple[MetricFamily[int], ...] = (
    MetricFamily(
        "affinityd_nri_info",
        "1, by the container runtime that asked last, and the namespaces that are listed.",
        lambda number: number,
    ),
)
CONTAINERS: tuple[MetricFamily[int], ...] = (
    MetricFamily(
        "affinityd_nri_containers",
        "Living containers with GPUs in chosen pods, by the locality of their CPUs and by state: "
        "pinned by affinityd, kept where kubelet or another had set them, observed, missed.",
        lambda number: number,
    ),
)
FAMILIES: tuple[MetricFamily[NriPlugin], ...] = (
    MetricFamily(
        "affinityd_nri_connected",
        "1 while a container runtime knows the NRI plugin, else 0.",
        lambda plugin: plugin.is_known,
    ),
)
