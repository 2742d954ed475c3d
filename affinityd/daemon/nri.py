"""The daemon's NRI plugin, in its own thread: plans and the runtime never wait for each other.

However an adjustment ends, the answer lets the container start. A container that was missed is
tried again while it runs, at long intervals.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

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
    PLACED_ANNOTATION,
    Adjustment,
    Outcome,
    adjust,
    granted,
    hides_gpus,
)
from affinityd.kubernetes.nri.choices import Choices, Rules, choices_of, is_chosen, read_choices
from affinityd.kubernetes.nri.messages import Container, Pod
from affinityd.kubernetes.pods import devices
from affinityd.linux.cgroup import cpuset_at
from affinityd.topology.model import GpuKey, Topology

log = logging.getLogger(__name__)

KUBELET_SECONDS = 0.4  #: seconds for kubelet's answer; the runtime waits 2 s for the plugin
FIRST_LOOK = 0.05  #: seconds between two checks whether the machine has been read
FIRST_PAUSE = 1.0  #: seconds between the first two attempts
LONGEST_PAUSE = 30.0
SYNCHRONIZE_SECONDS = 1.0  #: seconds for running containers; the rest is tried later
ATTEMPTS_SECONDS = 0.2  #: seconds for missed containers, as the runtime may be waiting

#: Outcome → state of a container with GPUs, after the runtime asked the plugin.
STATE_OF_OUTCOME: Mapping[Outcome, str] = {
    "pinned": "pinned",
    "kept": "kept",
    "observed": "observed",
    "left": "left",
    "unknown": "missed",
}


@dataclass
class Known:
    """A living container, and the outcome of its last adjustment."""

    pod: Pod
    container: Container
    adjustment: Adjustment  #: changes to it, with the cpuset that affinityd gave it, if any
    is_created: bool  #: whether the runtime can change it: it has been created
    pause: float = 0.0  #: seconds between the last two attempts
    is_logged: bool = False  #: whether the reason for missing it was logged
    next: float = 0.0  #: when it is tried again, in time.monotonic

    @property
    def is_missed(self) -> bool:
        """Whether it will be tried again."""
        return self.is_created and self.adjustment.outcome == "unknown"

    @property
    def has_others_cpus(self) -> bool:
        """Whether its cpuset is kubelet's or another program's, as far as known."""
        return bool(self.container.cpus) and not self.adjustment.cpus


class NriPlugin:
    """Adjusts the containers that the runtime creates, while a runtime is there."""

    def __init__(
        self, settings: Settings, service: KnownNode, read_again: Callable[[], object]
    ) -> None:
        """Take the runtime's socket and the rules, and the source of the node.

        `read_again` has the machine read soon, for a GPU that the node lacks. Raises
        InvalidRequestError for unknown choices of a namespace.
        """
        self._socket = settings.nri or ""
        self._kubelet = settings.pod_resources
        self._service = service
        self._read_again = read_again
        default = Choices(nics=config.variables().get(NICS, ""))
        namespaces = {}
        for name, texts in settings.nri_namespaces.items():
            namespaces[name] = read_choices(texts, default, f"the namespace {name}: ")
        folder = None
        if settings.nri_mount:
            folder = str(Path(settings.socket).absolute().parent)
        self._rules = Rules(
            namespaces=namespaces,
            default=default,
            folder=folder,
            verbs=verbs_files,
            without_request=settings.nri_without_request,
        )
        self.outcomes: Counter[tuple[str, str]] = Counter()  #: containers, by outcome and locality
        self.is_known = False  #: whether the runtime knows the plugin
        self._containers: dict[str, Known] = {}  # by id
        self._listed: list[bytes] = []  # the requests of a Synchronize that has more
        self._unread: Iterator[tuple[Pod, Container]] | None = None  # of a whole Synchronize
        self._resources: Sequence[ContainerResources] | None = None  # kubelet's answer
        self._failure = ""  # the last error of kubelet
        self._failure_is_logged = False
        self._asks_from = 0.0  # when kubelet may be asked again
        self._losses = FailureLog(
            f"no container is adjusted; check that the runtime has NRI on at {self._socket}",
            expected=(OSError, ValueError),
        )
        self._bugs = FailureLog("a container is not adjusted", count=self._failed)

    def start(self) -> None:
        """Connect, and reconnect, as long as the daemon runs."""
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def names(self) -> dict[str, tuple[str, str, str]]:
        """The names of namespace, pod and container, by the container's id."""
        names = {}
        for known in [*self._containers.values()]:
            container = known.container
            names[container.id] = (known.pod.namespace, known.pod.name, container.name)
        return names

    @property
    def states(self) -> dict[str, tuple[str, str]]:
        """The state and locality of containers with GPUs, by id."""
        states = {}
        for known in [*self._containers.values()]:
            state = STATE_OF_OUTCOME.get(known.adjustment.outcome)
            if state and (state != "missed" or granted(known.container)):
                states[known.container.id] = (state, known.adjustment.locality)
        return states

    def metrics(self) -> Iterator[Metric]:
        """Yield the plugin's metrics."""
        yield GaugeMetricFamily(
            "affinityd_nri_connected",
            "1 while a container runtime knows the NRI plugin, else 0.",
            int(self.is_known),
        )
        requests = CounterMetricFamily(
            "affinityd_nri_requests_total",
            "Containers that the runtime announced when created or resized, by outcome and by the "
            "locality of their CPUs.",
            labels=("outcome", "locality"),
        )
        _add_counts(requests, get_args(Outcome), self.outcomes)
        yield requests
        containers = GaugeMetricFamily(
            "affinityd_nri_containers",
            "Living containers with GPUs in chosen pods, by the locality of their CPUs and by "
            "state: pinned by affinityd, kept where another program had set them, observed, "
            "left where a change could take the GPU away, missed.",
            labels=("state", "locality"),
        )
        _add_counts(containers, STATE_OF_OUTCOME.values(), Counter(self.states.values()))
        yield containers

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
        while self._service.known is None:  # once connected, the runtime lists its containers
            time.sleep(FIRST_LOOK)
        while True:
            began = time.monotonic()
            with self._losses.logged():
                for _ in session.serve(
                    self._socket, answers, self._bugs.logged, self._updates, self._refused
                ):
                    self.is_known = True
                    self._losses.forget()
                    self._log_connected()
                raise ConnectionError("the runtime closed the connection")
            # A runtime drops a plugin that was late: do not make it wait again at once.
            if time.monotonic() - began > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            else:
                pause = max(FIRST_PAUSE, min(2 * pause, LONGEST_PAUSE))
            self.is_known = False
            self._listed = []
            self._unread = None
            for container, known in [*self._containers.items()]:
                if known.is_missed:
                    del self._containers[container]  # the runtime will list these containers again
            time.sleep(pause)

    def _log_connected(self) -> None:
        names = ", ".join(sorted(self._rules.namespaces))
        names = names or "none, only pods with the label affinityd=on"
        log.info("NRI at %s: the runtime knows the plugin; namespaces: %s", self._socket, names)

    def _create_container(self, request: bytes) -> bytes:
        pod, container = messages.created(request)
        known = Known(pod, container, Adjustment("failed"), is_created=False)
        self._containers[container.id] = known
        adjustment = self._adjusted(known)
        known.adjustment = adjustment
        self._count(adjustment)
        cpus = format_list(adjustment.cpus)
        annotations = {}
        if cpus:
            annotations[PLACED_ANNOTATION] = f"{cpus} {adjustment.locality}"
        return messages.adjusted(
            adjustment.environment,
            adjustment.folder,
            cpus,
            format_list(adjustment.memory_nodes),
            annotations,
        )

    def _update_container(self, request: bytes) -> bytes:
        """Return an UpdateContainerResponse: the CPUs of a container that was resized."""
        pod, container = messages.updating(request)
        self._read_list()
        known = self._containers.get(container.id)
        if known is None:
            return b""
        before = known.adjustment
        cpus = parse_list(container.cpus)
        if cpus and cpus != before.cpus:
            known.container = container  # another program chooses the new CPUs
            if before.outcome in {"pinned", "unknown"}:
                known.adjustment = Adjustment("kept") if before.cpus else self._adjusted(known)
            return b""
        known.pod = pod
        known.container = replace(container, cpus="")
        if before.outcome != "pinned":
            return b""
        adjustment = self._adjusted(known)
        if adjustment.outcome == "unknown":  # it is tried again, and keeps its CPUs until then
            known.adjustment = replace(adjustment, cpus=before.cpus)
        if adjustment.outcome != "pinned" or adjustment.cpus == before.cpus:
            return b""
        known.adjustment = adjustment
        self._count(adjustment)
        return messages.updates({container.id: format_list(adjustment.cpus)})

    def _stop_container(self, request: bytes) -> bytes:
        self._read_list()
        self._containers.pop(messages.created(request)[1].id, None)
        return b""

    def _synchronize(self, request: bytes) -> bytes:
        """Return a SynchronizeResponse: the CPUs of containers that started without the plugin."""
        ends = time.monotonic() + SYNCHRONIZE_SECONDS
        self._listed.append(request)
        if messages.has_more(request):
            return messages.updates({}, more=True)
        self._unread = messages.listed(self._listed)
        self._listed = []
        self._containers = {}
        return messages.updates(self._place(ends))

    def _read_list(self, ends: float = float("inf")) -> None:
        """Read the containers that the runtime has listed, until the time is up."""
        for pod, container in self._unread or ():
            known = Known(pod, container, Adjustment("unknown"), is_created=True)
            self._containers[container.id] = known
            if time.monotonic() >= ends:
                return
        self._unread = None

    def _place(self, ends: float) -> dict[str, str]:
        """Adjust running containers until the time is up; return the new cpusets by id."""
        cpusets = {}
        self._read_list(ends)
        # Containers with a cpuset first: the CPUs that other programs set limit later plans.
        for known in sorted(self._containers.values(), key=lambda known: not known.container.cpus):
            now = time.monotonic()
            if now >= ends:
                break
            if not known.is_missed or now < known.next:
                continue
            known.pause = min(max(2 * known.pause, FIRST_PAUSE), LONGEST_PAUSE)
            known.next = now + known.pause
            known.adjustment = self._adjusted(known, runs=True)
            if known.adjustment.outcome == "pinned" and not known.container.cpus:
                cpusets[known.container.id] = format_list(known.adjustment.cpus)
                log.info("%s, while it runs", known.adjustment.note)
            elif known.adjustment.note and known.adjustment.outcome in {"left", "unplaced"}:
                log.info("%s", known.adjustment.note)
        return cpusets

    def _updates(self) -> tuple[float | None, Mapping[str, bytes]]:
        """Adjust missed containers; return seconds to the next attempt or None, and the changes."""
        cpusets: dict[str, str] = {}
        seconds = self._seconds_until_next()
        if seconds == 0:
            with self._bugs.logged():
                cpusets = self._place(time.monotonic() + ATTEMPTS_SECONDS)
            seconds = self._seconds_until_next()
        self._resources = None  # kubelet is asked again at the next request
        changes = {}
        for container, cpus in cpusets.items():
            changes[container] = messages.updates({container: cpus}, may_fail=False)
        return seconds, changes

    def _seconds_until_next(self) -> float | None:
        if self._unread:
            return 0.0
        times = [known.next for known in self._containers.values() if known.is_missed]
        if not times:
            return None
        return max(min(times) - time.monotonic(), 0.0)

    def _refused(self, container: str) -> None:
        """Note that the runtime refused a change to a container: it is tried again."""
        if known := self._containers.get(container):
            known.adjustment = Adjustment("unknown")
            log.warning("the runtime refused CPUs for %s, which is tried again", self._name(known))

    def _state_changed(self, event: bytes) -> bytes:
        kind, container = messages.changed(event)
        if kind == messages.REMOVED:
            self._read_list()
            self._containers.pop(container, None)
        elif kind == messages.CREATED and (known := self._containers.get(container)):
            known.is_created = True
            known.next = time.monotonic() + FIRST_PAUSE
        return b""

    def _count(self, adjustment: Adjustment) -> None:
        self.outcomes[adjustment.outcome, adjustment.locality] += 1
        if adjustment.note:
            log.info("%s", adjustment.note)

    def _failed(self) -> None:
        self.outcomes["failed", ""] += 1

    def _name(self, known: Known) -> str:
        return f"container {known.pod.namespace}/{known.pod.name}/{known.container.name}"

    def _adjusted(self, known: Known, *, runs: bool = False) -> Adjustment:
        """Return the changes to a container; `runs`: it runs already. Failures are logged once."""
        name = self._name(known)
        is_logged = known.is_logged
        outcome: Outcome = "unknown"
        try:
            if runs and known.container.cpus:
                return self._judge(known)
            adjustment = self._plan(known, runs=runs)
            if not adjustment.note:
                return adjustment
            return replace(adjustment, note=f"{name}: {adjustment.note}")
        except InvalidRequestError as error:
            outcome = "unplaced"
            why = f"not adjusted: {error}"
        except (AffinityError, OSError, ValueError) as error:
            why = f"not adjusted, and will be tried again: {error}"
            if str(error) == self._failure:  # one line for all containers, until kubelet answers
                is_logged = self._failure_is_logged
                self._failure_is_logged = True
            if isinstance(error, NoSuchGpuError):
                if known.pause == LONGEST_PAUSE:  # the machine was read again meanwhile
                    outcome = "unplaced"
                elif not known.is_logged:
                    self._read_again()  # the GPU's driver may have been loaded
        if not is_logged:
            log.warning("%s is %s", name, why)
        known.is_logged = True
        return Adjustment(outcome)

    def _judge(self, known: Known) -> Adjustment:
        """Return the outcome for a running container: "pinned" if affinityd set its cpuset."""
        # A pod's author cannot set this annotation. A container placed while it ran lacks it.
        cpus = parse_list(known.container.cpus)
        placed, _, locality = known.container.annotations.get(PLACED_ANNOTATION, "").partition(" ")
        if placed == known.container.cpus:
            return Adjustment("pinned", cpus=cpus, locality=locality)
        bare = replace(known, container=replace(known.container, cpus=""))
        adjustment = self._plan(bare, anyway=True)
        if adjustment.cpus == cpus:
            return adjustment
        return self._plan(known)

    def _plan(self, known: Known, *, runs: bool = False, anyway: bool = False) -> Adjustment:
        """Return the changes to a container; `anyway`: even if it is no longer chosen."""
        pod, container = known.pod, known.container
        gpus = granted(container)
        if not gpus and not (self._kubelet and hides_gpus(container)):
            return Adjustment("no_gpu")
        if not anyway and not is_chosen(pod, self._rules):
            return Adjustment("not_chosen")
        node = self._service.node
        gpus = gpus or self._granted_by_kubelet(node.topology, pod, container)
        if not gpus:
            return Adjustment("no_gpu")
        choices = choices_of(pod, self._rules)
        if anyway:
            choices = replace(choices, switch=config.ON)
        within = cpuset_at(pod.cgroup) if anyway else self._within(known)
        memory = None
        if choices.binds_memory:
            memory = cpuset_at(pod.cgroup, kind="mems")
        return adjust(
            node,
            replace(pod, asked=max(pod.asked - self._asked_by_siblings(known), 0)),
            container,
            self._rules,
            choices=choices,
            granted=gpus,
            within=within,
            memory=memory,
            runs=runs,
        )

    def _asked_by_siblings(self, known: Known) -> int:
        """Return how many CPUs the other containers of its pod asked for, as far as known."""
        asked = 0
        for other in self._containers.values():
            if other.pod.id == known.pod.id and other.container.id != known.container.id:
                asked += other.container.asked
        return asked

    def _within(self, known: Known) -> CpuSet | None:
        """Return the CPUs of a container's pod, which the container may be given; None: not known.

        If only other containers have cpusets, those CPUs may be exclusive CPUs of kubelet. Raises
        AffinityError while it is not known which program set the cpuset of another container.
        """
        others = [other for other in self._containers.values() if other.has_others_cpus]
        if known.container.cpus:
            return cpuset_at(known.pod.cgroup)
        if self._unread or any(other.adjustment.outcome == "unknown" for other in others):
            raise AffinityError(
                "it is not known yet which program set the cpusets of other containers"
            )
        return None if others else cpuset_at(known.pod.cgroup)

    def _granted_by_kubelet(self, topology: Topology, pod: Pod, container: Container) -> str:
        """Return the GPUs that kubelet gave a container. Raises OSError if it does not answer."""
        # Ask once for each request, and seldom after a failure: kubelet refuses over 100 calls a
        # second.
        if self._resources is None and time.monotonic() >= self._asks_from:
            try:
                answer = pods.list_pods(self._kubelet or "", KUBELET_SECONDS)
                self._resources = pods.containers(answer)
                self._failure_is_logged = False
            except (OSError, ValueError) as error:
                self._failure = f"kubelet's podresources at {self._kubelet}: {error}"
                self._asks_from = time.monotonic() + FIRST_PAUSE
        if self._resources is None:
            raise OSError(self._failure)
        keys: set[GpuKey] = set()
        for resources in self._resources:
            if resources.names == (pod.namespace, pod.name, container.name):
                keys.update(key for key, _ in devices(resources, topology))
        return ",".join(gpu.pci_bus_id for gpu in topology.gpus if gpu.key in keys)


def _add_counts(
    family: CounterMetricFamily | GaugeMetricFamily,
    words: Iterable[str],
    counts: Mapping[tuple[str, str], int],
) -> None:
    """Add a sample for each counted word and locality, and a 0 for each word without a count."""
    samples = {(word, ""): 0 for word in words}
    samples.update(counts)
    for labels, number in samples.items():
        family.add_metric(labels, number)
