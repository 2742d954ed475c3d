"""The daemon's NRI plugin, in a thread of its own: no plan waits for a runtime, nor it for a plan.

However an adjustment ends, the answer is one with which the container starts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import TimeoutError as LateError
from dataclasses import replace
from functools import partial
from pathlib import Path

from prometheus_client.core import Metric

from affinityd import config
from affinityd.client.apply import NICS, verbs_files
from affinityd.config.settings import Settings
from affinityd.cpuset import format_list
from affinityd.daemon.metrics.families import MetricFamily, each, whole
from affinityd.daemon.state.background import FailureLog
from affinityd.daemon.state.plan_service import PlanService
from affinityd.errors import AffinityError
from affinityd.kubernetes import pods
from affinityd.kubernetes.nri import messages, session
from affinityd.kubernetes.nri.adjust import (
    FAILED,
    LATE,
    NO_GPU,
    NOT_CHOSEN,
    OUTCOMES,
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
from affinityd.threads import started
from affinityd.topology.model import Topology

log = logging.getLogger(__name__)

DEADLINE = 0.2  #: seconds until the answer is an empty one; the runtime would wait for 2 s
KUBELET_SECONDS = 0.1  #: of these, for kubelet
NO_NAMESPACE = "none, only pods with the label affinityd=on"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  #: seconds between two connections


class NriPlugin:
    """Adjusts the containers that the runtime creates, whenever there is one."""

    def __init__(self, settings: Settings, service: PlanService) -> None:
        """Take the runtime's socket and the rules, and the source of the node."""
        self._socket = settings.nri or ""
        self._kubelet = settings.pod_resources
        self._service = service
        self._rules = Rules(
            namespaces=settings.nri_namespaces,
            folder=str(Path(settings.socket).absolute().parent) if settings.nri_mount else None,
            nics=config.variables().get(NICS, ""),
            verbs=verbs_files,
        )
        self.outcomes: Counter[str] = Counter()
        self.is_known = False  #: to the runtime
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

    def _run(self) -> None:
        pause = 0.0
        while True:
            began = time.monotonic()
            with self._losses.logged():
                for _ in session.serve(self._socket, self._create_container, self._bugs.logged):
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

    def _create_container(self, request: bytes) -> bytes:
        """Return a CreateContainerResponse, within DEADLINE."""
        try:
            made = started(partial(self._adjusted, request)).result(DEADLINE)
        except LateError:
            made = Adjustment(
                LATE, note=f"a container starts as it is: {DEADLINE} s were too short"
            )
        self.outcomes[made.outcome] += 1
        if made.note:
            log.info("%s", made.note)
        return messages.adjusted(made.environment, made.folder, format_list(made.cpus))

    def _failed(self) -> None:
        self.outcomes[FAILED] += 1

    def _adjusted(self, request: bytes) -> Adjustment:
        pod, container = messages.created(request)
        if not chosen(pod, self._rules):
            return Adjustment(NOT_CHOSEN)
        name = f"{pod.namespace}/{pod.name}/{container.name}"
        try:
            node = self._service.node
            names = granted(container) or self._by_kubelet(node.topology, pod, container)
            if not names:
                return Adjustment(NO_GPU)
            within = cpuset_at(pod.cgroup)
            made = adjust(node, pod, container, self._rules, names, within=within)
        except (AffinityError, OSError, ValueError) as error:
            log.warning("container %s is not adjusted: %s", name, error)
            return Adjustment(UNKNOWN)
        return replace(made, note=made.note and f"container {name}: {made.note}")

    def _by_kubelet(self, topology: Topology, pod: Pod, container: Container) -> str:
        """Return the GPUs that kubelet gave the container. Raises OSError, ValueError."""
        if self._kubelet is None:
            return ""
        mine = pod.namespace, pod.name, container.name
        answer = pods.list_pods(self._kubelet, KUBELET_SECONDS)
        given = {
            key
            for its in pods.containers(answer)
            if (its.namespace, its.pod, its.container) == mine
            for key, _ in devices(its, topology)
        }
        return ",".join(gpu.pci_bus_id for gpu in topology.gpus if gpu.key in given)


FAMILIES: tuple[MetricFamily[NriPlugin], ...] = (
    MetricFamily(
        "affinityd_nri_requests_total",
        "Containers that the runtime told of at their creation, by outcome.",
        lambda plugin: each(OUTCOMES, plugin.outcomes),
        "outcome",
    ),
    MetricFamily(
        "affinityd_nri_connected",
        "1 while a container runtime knows the NRI plugin, else 0.",
        lambda plugin: plugin.is_known,
    ),
)
