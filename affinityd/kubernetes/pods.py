"""Names the pods of processes, by kubelet's podresources: asked once for a scan."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.facts.job import Job
from affinityd.audit.facts.kubelet import KubeletConfig
from affinityd.audit.model import AuditedProcess, NamedPods
from affinityd.kubernetes import kubelet_config, podresources
from affinityd.kubernetes.container_match import Candidate, is_of_pod, with_containers
from affinityd.linux.files import numbered
from affinityd.linux.processes import PROC, credentials
from affinityd.topology.model import Topology

UNKNOWN = (
    "kubelet's podresources at {socket}: {error}: pods that began since are not named; "
    "mount kubelet's folder pod-resources there, or set --pod-resources off"
)
#: Of the CPU manager, by whether kubelet gives exclusive CPUs.
POLICIES = {True: "static", False: "none", None: None}


class KubeletPods:
    """Kubelet's last answer, and its settings, which are read again when it has started again."""

    def __init__(self, path: str, proc: str = PROC) -> None:
        """Take kubelet's socket, and the path of /proc."""
        self._path = path
        self._proc = proc
        self._answer: bytes | None = None
        self._topology: Topology | None = None
        self._jobs: frozenset[Job | None] = frozenset()  # pods that there were at that answer
        self._candidates: Sequence[Candidate] = ()
        self._started: tuple[int, int] | None = None  # by its socket, which it makes again
        self._config: KubeletConfig | None = None

    def name(self, topology: Topology, found: list[AuditedProcess]) -> NamedPods:
        """Return the processes, those of pods with what kubelet gave their containers.

        Without an answer, the last one counts, for the pods of that time: later ones may have been
        given the same devices. Kubelet is not asked if none of the processes is in a pod.
        """
        jobs = frozenset(it.facts.membership.job for it in filter(is_of_pod, found))
        if not jobs:
            return NamedPods(found)
        notices = []
        try:
            deadline = time.monotonic() + podresources.TIMEOUT
            self._ask(topology, deadline)
            self._jobs = jobs
            self._ask_settings(deadline)
        except (OSError, ValueError) as error:
            notices = [UNKNOWN.format(socket=self._path, error=error)]

        def device_files(pid: int) -> frozenset[GpuKey]:
            dev = f"{self._proc}/{pid}/root/dev"
            minors, renders = set(numbered(dev, "nvidia")), set(numbered(f"{dev}/dri", "renderD"))
            return frozenset(
                gpu.key
                for gpu in topology.gpus
                if gpu.minor in minors or gpu.render_minor in renders
            )

        known = [it for it in found if it.facts.membership.job in self._jobs]
        named = {it.facts.pid: it for it in with_containers(self._candidates, known, device_files)}
        processes = [named.get(it.facts.pid, it) for it in found]
        return NamedPods(processes, tuple(notices), self._config)

    def _ask(self, topology: Topology, deadline: float) -> None:
        """Read the answer. Raises OSError, ValueError."""
        answer = podresources.list_pods(self._path, _left(deadline))
        if answer != self._answer or topology is not self._topology:
            self._candidates = Candidate.all_of(podresources.containers(answer), topology)
            self._answer, self._topology = answer, topology

    def _ask_settings(self, deadline: float) -> None:
        """Read the settings of a new kubelet. Raises OSError, ValueError."""
        made = Path(self._path).stat()
        if (made.st_ino, made.st_mtime_ns) != self._started:
            self._config = self._settings(deadline)
            self._started = made.st_ino, made.st_mtime_ns

    def _settings(self, deadline: float) -> KubeletConfig:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_left(deadline))
            connection.connect(self._path)
            pid = credentials(connection).pid
        config = kubelet_config.read(pid, self._proc)
        if config.cpu_policy is not None:
            return config
        gives = podresources.gives_cpus(self._path, _left(deadline))
        return replace(config, cpu_policy=POLICIES[gives])


def _left(deadline: float) -> float:
    """Return the seconds until a deadline. Raises TimeoutError after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
