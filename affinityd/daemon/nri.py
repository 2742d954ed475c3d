"""The daemon's NRI plugin, in a thread of its own: no plan waits for a runtime, nor it for a plan.

However an adjustment ends, the answer is one with which the container starts. One that was missed
is tried again while it runs, seldom.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from affinityd import config
from affinityd.audit.model import ContainerResources
from affinityd.client.apply import NICS, verbs_files
from affinityd.config.settings import Settings
from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.daemon.state.background import FailureLog
from affinityd.daemon.state.topology_watcher import KnownNode
from affinityd.errors import AffinityError, NoSuchGpuError
from affinityd.kubernetes import nri as session
from affinityd.kubernetes import pods
from affinityd.kubernetes.nri import messages
from affinityd.kubernetes.nri.adjust import (
    FAILED,
    KEPT,
    LEFT,
    NO_GPU,
    NOT_CHOSEN,
    OBSERVED,
    OUTCOMES,
    PINNED,
    UNKNOWN,
    Adjustment,
    adjust,
    granted,
    hides_gpus,
)
from affinityd.kubernetes.nri.choices import Choices, Rules, choices_of, read_choices
from affinityd.kubernetes.nri.messages import Container, Pod
from affinityd.kubernetes.pods import devices
from affinityd.linux.cgroup import cpuset_at
from affinityd.linux.protobuf import read, text
from affinityd.topology.model import Topology

log = logging.getLogger(__name__)

KUBELET_SECONDS = 0.4  #: for its answer; the runtime waits 2 s for the plugin's
FIRST_LOOK = 0.05  #: seconds between two looks whether the machine has been read
NO_NAMESPACE = "none, only pods with the label affinityd=on"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  #: seconds between two attempts

CONNECTED = "1 while a container runtime knows the NRI plugin, else 0."
INFO = "1, by the container runtime that asked last, and the namespaces that are listed."
REQUESTS = (
    "Containers that the runtime told of at their creation, or resize, by outcome and by the "
    "locality of their CPUs."
)
CONTAINERS = (
    "Living containers with GPUs in chosen pods, by the locality of their CPUs and by state: "
    "pinned by affinityd, kept where kubelet or another had set them, observed, left where a "
    "change could take the GPU away, missed."
)

MISSED = "missed"
#: Outcome → the state of a container with GPUs for which the plugin was asked.
STATES = {PINNED: PINNED, KEPT: KEPT, OBSERVED: OBSERVED, LEFT: LEFT, UNKNOWN: MISSED}


class NriPlugin:
    """Adjusts the containers that the runtime creates, whenever there is one."""

    def __init__(
        self, settings: Settings, service: KnownNode, read_again: Callable[[], object]
    ) -> None:
        """Take the runtime's socket and the rules, and the source of the node.

        `read_again` has the machine read soon: for a GPU that it has not. Raises
        InvalidRequestError for choices of a namespace that have no meaning.
        """
        self._socket = settings.nri or ""
        self._kubelet = settings.pod_resources
        self._service = service
        self._read_again = read_again
        default = Choices(nics=config.variables().get(NICS, ""))
        self._rules = Rules(
            namespaces={
                name: read_choices(texts, default, f"the namespace {name}: ")
                for name, texts in settings.nri_namespaces.items()
            },
            default=default,
            folder=str(Path(settings.socket).absolute().parent) if settings.nri_mount else None,
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
        self._missed: dict[str, tuple[Pod, Container]] = {}  # to be tried again
        self._pause = FIRST_PAUSE  # until then
        self._next = 0.0  # when, of time.monotonic
        self._resources: Sequence[ContainerResources] | None = None  # by kubelet, for this request
        self._failure = ""  # of kubelet
        self._asks_from = 0.0  # when it is asked again
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
        yield GaugeMetricFamily("affinityd_nri_connected", CONNECTED, int(self.is_known))
        info = GaugeMetricFamily("affinityd_nri_info", INFO, labels=("runtime", "namespaces"))
        info.add_metric([self.runtime, ",".join(sorted(self._rules.namespaces))], 1)
        yield info
        labels = ("outcome", "locality")
        requests = CounterMetricFamily("affinityd_nri_requests_total", REQUESTS, labels=labels)
        containers = GaugeMetricFamily(
            "affinityd_nri_containers", CONTAINERS, labels=("state", "locality")
        )
        for family, words, counted in (
            (requests, OUTCOMES, self.outcomes),
            (containers, STATES.values(), Counter(self.states.values())),
        ):
            numbers = {(word, ""): 0 for word in words} | dict(counted)
            for values, number in numbers.items():
                family.add_metric(values, number)
            yield family

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
                for _ in session.serve(self._socket, answers, self._bugs.logged, self._retry):
                    self.is_known = True
                    self._losses.forget()
                    chosen = ", ".join(sorted(self._rules.namespaces)) or NO_NAMESPACE
                    known = "NRI at %s: the runtime knows the plugin; namespaces: %s"
                    log.info(known, self._socket, chosen)
                raise ConnectionError("the runtime closed the connection")
            # A runtime drops a plugin that was late: it is not made to wait at once again.
            is_stable = time.monotonic() - began > LONGEST_PAUSE
            pause = FIRST_PAUSE if is_stable else max(FIRST_PAUSE, min(2 * pause, LONGEST_PAUSE))
            self.is_known = False
            self._missed = {}  # the runtime tells of them again
            time.sleep(pause)

    def _configure(self, request: bytes) -> bytes:
        """Return a ConfigureResponse; the request names the runtime and its version."""
        self.runtime = f"{text(read(request), 2)} {text(read(request), 3)}".strip()
        return session.SUBSCRIPTION

    def _create_container(self, request: bytes) -> bytes:
        """Return a CreateContainerResponse."""
        pod, container = messages.created(request)
        self.names[container.id] = pod.namespace, pod.name, container.name
        made = self._adjusted(pod, container)
        self._note(pod, container, made)
        cpus, memory_nodes = format_list(made.cpus), format_list(made.memory_nodes)
        return messages.adjusted(made.environment, made.folder, cpus, memory_nodes)

    def _update_container(self, request: bytes) -> bytes:
        """Return an UpdateContainerResponse: the CPUs of one that was resized."""
        pod, container = messages.updating(request)
        before = self._pinned.get(container.id)
        if before is None or parse_list(container.cpus) not in {before, frozenset()}:
            if self._pinned.pop(container.id, None):  # the CPUs to come are another's choice
                self._keep(pod, container, Adjustment(KEPT))
            return b""
        made = self._adjusted(pod, replace(container, cpus=""), runs=True)
        if made.outcome != PINNED or made.cpus == before:
            return b""
        self._note(pod, container, made)
        return messages.updates({container.id: format_list(made.cpus)})

    def _synchronize(self, request: bytes) -> bytes:
        """Return a SynchronizeResponse: the CPUs of containers that started without the plugin."""
        listed, more = messages.listed(request)
        self._listed += listed
        if more:
            return messages.updates({}, more=True)
        listed, self._listed = self._listed, []
        self.states, self._pinned, self._others = {}, {}, set()
        self.names = {its.id: (pod.namespace, pod.name, its.name) for pod, its in listed}
        # Those with a cpuset first: which are another's bounds the plans of the rest.
        placed = [(*pair, self._judged(*pair)) for pair in listed if pair[1].cpus]
        for pod, container, made in placed:
            self._keep(pod, container, made)
        return self._place([pair for pair in listed if not pair[1].cpus])

    def _judged(self, pod: Pod, container: Container) -> Adjustment:
        """Return what has become of a running container with a cpuset: PINNED where it is ours."""
        made = self._adjusted(pod, container)
        if made.outcome == KEPT:
            cpus = parse_list(container.cpus)
            is_ours = container.environment.get("AFFINITYD_CPULIST") == container.cpus
            if is_ours or self._adjusted(pod, replace(container, cpus="")).cpus == cpus:
                return replace(made, outcome=PINNED, cpus=cpus)
        return made

    def _place(self, running: Iterable[tuple[Pod, Container]]) -> bytes:
        """Return the changes to containers that run without a cpuset."""
        cpusets = {}
        for pod, container in running:
            made = self._adjusted(pod, container, runs=True)
            self._keep(pod, container, made)
            if made.outcome == PINNED:
                cpusets[container.id] = format_list(made.cpus)
                log.info("%s, while it runs", made.note)
        return messages.updates(cpusets)

    def _retry(self) -> tuple[float | None, bytes]:
        """Try missed containers again; return the seconds until the next time, and the changes.

        None: no container was missed.
        """
        update = b""
        self._resources = None
        if self._missed and time.monotonic() >= self._next:
            with self._bugs.logged():
                update = self._place([*self._missed.values()])
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._next = time.monotonic() + self._pause
        return max(self._next - time.monotonic(), 0.01) if self._missed else None, update

    def _state_changed(self, event: bytes) -> bytes:
        if (container := messages.removed(event)) is not None:
            for known in (self.names, self.states, self._pinned, self._missed):
                known.pop(container, None)
            self._others.discard(container)
        return b""

    def _note(self, pod: Pod, container: Container, made: Adjustment) -> None:
        self.outcomes[made.outcome, made.locality] += 1
        if made.note:
            log.info("%s", made.note)
        self._keep(pod, container, made)

    def _keep(self, pod: Pod, container: Container, made: Adjustment) -> None:
        if container.cpus and made.outcome != PINNED:
            self._others.add(container.id)
        if made.outcome == PINNED:
            self._pinned[container.id] = made.cpus
        if made.outcome != UNKNOWN:
            self._missed.pop(container.id, None)
        elif container.id not in self._missed:
            self._pause = FIRST_PAUSE
            soon = time.monotonic() + self._pause
            self._next = min(self._next, soon) if self._missed else soon
            self._missed[container.id] = pod, container
        if (state := STATES.get(made.outcome)) and (state != MISSED or granted(container)):
            self.states[container.id] = state, made.locality

    def _failed(self) -> None:
        self.outcomes[FAILED, ""] += 1

    def _adjusted(self, pod: Pod, container: Container, *, runs: bool = False) -> Adjustment:
        """Return the changes to a container; `runs`: they are made while it runs.

        Failures are logged, but not again of one that was missed before.
        """
        name = f"{pod.namespace}/{pod.name}/{container.name}"
        is_new = container.id not in self._missed
        try:
            gpus = granted(container)
            if not gpus and not (self._kubelet and hides_gpus(container)):
                return Adjustment(NO_GPU)
            choices = choices_of(pod, self._rules)
            if choices is None:
                return Adjustment(NOT_CHOSEN)
            node = self._service.node
            gpus = gpus or self._granted_by_kubelet(node.topology, pod, container)
            if not gpus:
                return Adjustment(NO_GPU)
            made = adjust(
                node,
                pod,
                container,
                self._rules,
                choices=choices,
                granted=gpus,
                within=self._within(pod, container),
                memory=cpuset_at(pod.cgroup, kind="mems") if choices.binds_memory else None,
                runs=runs,
            )
            if made.outcome == LEFT:
                log.info("container %s: %s", name, made.note)
            return replace(made, note=made.note and f"container {name}: {made.note}")
        except NoSuchGpuError as error:  # maybe of a driver that came after the last reading
            if is_new:
                self._read_again()
            why = str(error)
        except (AffinityError, OSError, ValueError) as error:
            why = str(error)
        if is_new:
            log.warning("container %s is not adjusted, and tried again: %s", name, why)
        return Adjustment(UNKNOWN)

    def _within(self, pod: Pod, container: Container) -> CpuSet | None:
        """Return the CPUs that a container may be given, its pod's; None: that is not known.

        Of one without a cpuset beside others that have one: these may be kubelet's exclusive CPUs.
        """
        return None if self._others and not container.cpus else cpuset_at(pod.cgroup)

    def _granted_by_kubelet(self, topology: Topology, pod: Pod, container: Container) -> str:
        """Return the GPUs that kubelet gave a container. Raises OSError where it does not answer.

        It is asked once for a request, and after a failure not soon again: it refuses more than
        100 questions a second.
        """
        if self._resources is None and time.monotonic() >= self._asks_from:
            try:
                answer = pods.list_pods(self._kubelet or "", KUBELET_SECONDS)
                self._resources = pods.containers(answer)
            except (OSError, ValueError) as error:
                self._failure = f"kubelet's podresources at {self._kubelet}: {error}"
                self._asks_from = time.monotonic() + FIRST_PAUSE
        if self._resources is None:
            raise OSError(self._failure)
        mine = pod.namespace, pod.name, container.name
        keys = {
            key
            for resources in self._resources
            if resources.names == mine
            for key, _ in devices(resources, topology)
        }
        return ",".join(gpu.pci_bus_id for gpu in topology.gpus if gpu.key in keys)
