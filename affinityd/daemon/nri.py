"""The daemon's NRI plugin, in a thread of its own: no plan waits for a runtime, nor it for a plan.

However an adjustment ends, the answer is one with which the container starts. One that was missed
is tried again while it runs, seldom.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from affinityd import config
from affinityd.audit.model import ContainerResources
from affinityd.client.apply import NICS, verbs_files
from affinityd.config.settings import Settings
from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.daemon.state import FailureLog
from affinityd.daemon.state.topology_watcher import KnownNode
from affinityd.errors import AffinityError, InvalidRequestError, NoSuchGpuError
from affinityd.kubernetes import nri as session
from affinityd.kubernetes import pods
from affinityd.kubernetes.nri import messages
from affinityd.kubernetes.nri.adjust import (
    FAILED,
    KEPT,
    LEFT,
    NO_GPU,
    NOT_CHOSEN,
    NOT_PLACED,
    OBSERVED,
    OUTCOMES,
    PINNED,
    PLACED_ANNOTATION,
    UNKNOWN,
    Adjustment,
    adjust,
    granted,
    hides_gpus,
)
from affinityd.kubernetes.nri.choices import Choices, Rules, choices_of, is_chosen, read_choices
from affinityd.kubernetes.nri.messages import Container, Pod
from affinityd.kubernetes.pods import devices
from affinityd.linux.cgroup import cpuset_at
from affinityd.topology.model import Topology

log = logging.getLogger(__name__)

KUBELET_SECONDS = 0.4  #: for its answer; the runtime waits 2 s for the plugin's
FIRST_LOOK = 0.05  #: seconds between two looks whether the machine has been read
NO_NAMESPACE = "none, only pods with the label affinityd=on"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  #: seconds between two attempts
SYNCHRONIZE_SECONDS = 1.0  #: for the containers that run; those that are left are tried again
ATTEMPTS_SECONDS = 0.2  #: for those that are tried again, while the runtime may ask for others

CONNECTED = "1 while a container runtime knows the NRI plugin, else 0."
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


@dataclass
class Known:
    """A living container, and what has become of it."""

    pod: Pod
    container: Container
    made: Adjustment  #: with the cpuset that affinityd gave it, if it did
    is_created: bool  #: the runtime can change it
    pause: float = 0.0  #: seconds between the last two attempts
    is_logged: bool = False  #: why it was missed
    next: float = 0.0  #: when it is tried again, of time.monotonic

    @property
    def is_missed(self) -> bool:
        """Whether it is to be tried again."""
        return self.is_created and self.made.outcome == UNKNOWN

    @property
    def has_others_cpus(self) -> bool:
        """Whether its cpuset is kubelet's, or another's, as far as is known."""
        return bool(self.container.cpus) and not self.made.cpus


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
        self.is_known = False  #: to the runtime
        self._containers: dict[str, Known] = {}  # by id
        self._listed: list[tuple[Pod, Container]] = []  # by a Synchronize that goes on
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

    @property
    def names(self) -> dict[str, tuple[str, str, str]]:
        """The names of namespace, pod and container, by the container's id."""
        return {
            known.container.id: (known.pod.namespace, known.pod.name, known.container.name)
            for known in [*self._containers.values()]
        }

    @property
    def states(self) -> dict[str, tuple[str, str]]:
        """The state and locality of containers with GPUs, by id."""
        states = {}
        for known in [*self._containers.values()]:
            state = STATES.get(known.made.outcome)
            if state and (state != MISSED or granted(known.container)):
                states[known.container.id] = state, known.made.locality
        return states

    def metrics(self) -> Iterator[Metric]:
        """Yield its metrics."""
        yield GaugeMetricFamily("affinityd_nri_connected", CONNECTED, int(self.is_known))
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
            "Configure": session.configure,
            "CreateContainer": self._create_container,
            "UpdateContainer": self._update_container,
            "StopContainer": self._stop_container,
            "Synchronize": self._synchronize,
            "StateChange": self._state_changed,
        }
        while self._service.known is None:  # the runtime tells at once of what runs
            time.sleep(FIRST_LOOK)
        while True:
            began = time.monotonic()
            with self._losses.logged():
                for _ in session.serve(
                    self._socket, answers, self._bugs.logged, self._updates, self._refused
                ):
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
            self._listed = []
            for container in [id_ for id_, known in self._containers.items() if known.is_missed]:
                del self._containers[container]  # the runtime tells of them again
            time.sleep(pause)

    def _create_container(self, request: bytes) -> bytes:
        """Return a CreateContainerResponse."""
        pod, container = messages.created(request)
        known = Known(pod, container, Adjustment(FAILED), is_created=False)
        self._containers[container.id] = known
        made = known.made = self._adjusted(known)
        self._count(made)
        cpus, memory_nodes = format_list(made.cpus), format_list(made.memory_nodes)
        mark = {PLACED_ANNOTATION: f"{cpus} {made.locality}"} if cpus else {}
        return messages.adjusted(made.environment, made.folder, cpus, memory_nodes, mark)

    def _update_container(self, request: bytes) -> bytes:
        """Return an UpdateContainerResponse: the CPUs of one that was resized."""
        pod, container = messages.updating(request)
        if (known := self._containers.get(container.id)) is None:
            return b""
        before = known.made
        if parse_list(container.cpus) not in {before.cpus, frozenset()}:
            known.container = container  # the CPUs to come are another's choice
            if before.outcome in {PINNED, UNKNOWN}:
                known.made = Adjustment(KEPT) if before.cpus else self._adjusted(known)
            return b""
        known.pod, known.container = pod, replace(container, cpus="")
        if before.outcome != PINNED:
            return b""
        made = self._adjusted(known)
        if made.outcome == UNKNOWN:  # it is tried again, and has its CPUs until then
            known.made = replace(made, cpus=before.cpus)
        if made.outcome != PINNED or made.cpus == before.cpus:
            return b""
        known.made = made
        self._count(made)
        return messages.updates({container.id: format_list(made.cpus)})

    def _stop_container(self, request: bytes) -> bytes:
        """Return a StopContainerResponse."""
        self._containers.pop(messages.created(request)[1].id, None)
        return b""

    def _synchronize(self, request: bytes) -> bytes:
        """Return a SynchronizeResponse: the CPUs of containers that started without the plugin."""
        listed, more = messages.listed(request)
        self._listed += listed
        if more:
            return messages.updates({}, more=True)
        # Those with a cpuset first: which are another's bounds the plans of the rest.
        placed = [pair for pair in self._listed if pair[1].cpus]
        others = [pair for pair in self._listed if not pair[1].cpus]
        self._listed = []
        self._containers = {
            container.id: Known(pod, container, Adjustment(UNKNOWN), is_created=True)
            for pod, container in placed + others
        }
        return messages.updates(self._place(SYNCHRONIZE_SECONDS))

    def _place(self, seconds: float) -> dict[str, str]:
        """Try containers that run, for so long at most; return the cpusets of some, by id."""
        cpusets = {}
        ends = time.monotonic() + seconds
        for known in self._containers.values():
            now = time.monotonic()
            if now >= ends:
                break
            if not known.is_missed or now < known.next:
                continue
            known.pause = min(max(2 * known.pause, FIRST_PAUSE), LONGEST_PAUSE)
            known.next = now + known.pause
            known.made = self._adjusted(known, runs=True)
            if known.made.outcome == PINNED and not known.container.cpus:
                cpusets[known.container.id] = format_list(known.made.cpus)
                log.info("%s, while it runs", known.made.note)
            elif known.made.note and known.made.outcome in {LEFT, NOT_PLACED}:
                log.info("%s", known.made.note)
        return cpusets

    def _updates(self) -> tuple[float | None, Mapping[str, bytes]]:
        """Try missed containers again; return the seconds to the next time or None, and changes."""
        cpusets: dict[str, str] = {}
        seconds = self._seconds_until_next()
        if seconds == 0:
            with self._bugs.logged():
                cpusets = self._place(ATTEMPTS_SECONDS)
            seconds = self._seconds_until_next()
        self._resources = None  # the next request comes later
        return seconds, {
            name: messages.updates({name: cpus}, may_fail=False) for name, cpus in cpusets.items()
        }

    def _seconds_until_next(self) -> float | None:
        times = [known.next for known in self._containers.values() if known.is_missed]
        return max(min(times) - time.monotonic(), 0.0) if times else None

    def _refused(self, container: str) -> None:
        """Take that the runtime did not make the change to a container: it is tried again."""
        if known := self._containers.get(container):
            known.made = Adjustment(UNKNOWN)
            log.warning("the runtime refused CPUs for %s, which is tried again", self._name(known))

    def _state_changed(self, event: bytes) -> bytes:
        kind, container = messages.changed(event)
        if kind == messages.REMOVED:
            self._containers.pop(container, None)
        elif kind == messages.CREATED and (known := self._containers.get(container)):
            known.is_created = True
            known.next = time.monotonic() + FIRST_PAUSE
        return b""

    def _count(self, made: Adjustment) -> None:
        self.outcomes[made.outcome, made.locality] += 1
        if made.note:
            log.info("%s", made.note)

    def _failed(self) -> None:
        self.outcomes[FAILED, ""] += 1

    def _name(self, known: Known) -> str:
        return f"container {known.pod.namespace}/{known.pod.name}/{known.container.name}"

    def _adjusted(self, known: Known, *, runs: bool = False) -> Adjustment:
        """Return the changes to a container; `runs`: while it runs. Failures are logged once."""
        name = self._name(known)
        outcome = UNKNOWN
        try:
            if runs and known.container.cpus:
                return self._judge(known)
            made = self._plan(known, self._within(known), runs=runs)
            return replace(made, note=made.note and f"{name}: {made.note}")
        except InvalidRequestError as error:
            outcome, why = NOT_PLACED, f"not adjusted: {error}"
        except (AffinityError, OSError, ValueError) as error:
            why = f"not adjusted, and tried again: {error}"
            if isinstance(error, NoSuchGpuError) and not known.is_logged:
                self._read_again()  # maybe of a driver that came after the last reading
        if not known.is_logged:
            log.warning("%s is %s", name, why)
        known.is_logged = True
        return Adjustment(outcome)

    def _judge(self, known: Known) -> Adjustment:
        """Return what has become of a running container with a cpuset: PINNED where it is ours."""
        # Its pod's author cannot set its annotations. One that was placed while it ran has none.
        cpus = parse_list(known.container.cpus)
        placed, _, locality = known.container.annotations.get(PLACED_ANNOTATION, "").partition(" ")
        if placed == known.container.cpus:
            return Adjustment(PINNED, cpus=cpus, locality=locality)
        bare = replace(known, container=replace(known.container, cpus=""))
        made = self._plan(bare, cpuset_at(known.pod.cgroup), anyway=True)
        return made if made.cpus == cpus else self._plan(known, cpuset_at(known.pod.cgroup))

    def _plan(
        self, known: Known, within: CpuSet | None, *, runs: bool = False, anyway: bool = False
    ) -> Adjustment:
        """Return the changes to a container; `anyway`: also if it is not chosen any more."""
        pod, container = known.pod, known.container
        gpus = granted(container)
        if not gpus and not (self._kubelet and hides_gpus(container)):
            return Adjustment(NO_GPU)
        if not anyway and not is_chosen(pod, self._rules):
            return Adjustment(NOT_CHOSEN)
        node = self._service.node
        gpus = gpus or self._granted_by_kubelet(node.topology, pod, container)
        if not gpus:
            return Adjustment(NO_GPU)
        choices = choices_of(pod, self._rules)
        if anyway:
            choices = replace(choices, switch=config.ON)
        return adjust(
            node,
            replace(pod, asked=max(pod.asked - self._asked_by_siblings(known), 0)),
            container,
            self._rules,
            choices=choices,
            granted=gpus,
            within=within,
            memory=cpuset_at(pod.cgroup, kind="mems") if choices.binds_memory else None,
            runs=runs,
        )

    def _asked_by_siblings(self, known: Known) -> int:
        """Return the CPUs that the other containers of its pod asked for, as far as is known."""
        return sum(
            other.container.asked
            for other in self._containers.values()
            if other.pod.id == known.pod.id and other.container.id != known.container.id
        )

    def _within(self, known: Known) -> CpuSet | None:
        """Return the CPUs that a container may be given, its pod's; None: that is not known.

        Of one without a cpuset beside others that have one: these may be kubelet's exclusive CPUs.
        Raises AffinityError while it is not known whose the cpuset of another one is.
        """
        others = [other for other in self._containers.values() if other.has_others_cpus]
        if others and not known.container.cpus:
            if any(other.made.outcome == UNKNOWN for other in others):
                raise AffinityError("it is not known yet whose the cpusets of other containers are")
            return None
        return cpuset_at(known.pod.cgroup)

    def _granted_by_kubelet(self, topology: Topology, pod: Pod, container: Container) -> str:
        """Return the GPUs that kubelet gave a container. Raises OSError if it does not answer."""
        # Asked once a request, and seldom after a failure: it refuses over 100 calls a second.
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
