"""The host memory of a process, seen from its GPUs: how much is far, why, and what helps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from mmap import PAGESIZE

from affinityd.cpuset import format_list, parse_list, several
from affinityd.linux.files import text
from affinityd.linux.memory_policy import MemoryPolicy, policy_of
from affinityd.linux.processes import status_of
from affinityd.linux.resident import (
    CUDA_MAPPED,
    MAPPED,
    SHARED,
    ResidentMemory,
    resident_memory,
    resident_sizes,
    room_on,
)
from affinityd.text import amount
from affinityd.threads import Readings
from affinityd.topology.nearness import ALLOCATION, LOCAL, REMOTE, UNKNOWN, Vicinity

#: The least far part of memory that a line mentions, and the least that is a mismatch. Some memory
#: of files, and some shared memory, is always far.
MENTIONED, MOST = 0.1, 0.5
LEAST = 2**30  #: bytes of far memory below which a line is shown only on request
#: Seconds for the samples of a scan; a process that the scan does not reach keeps its last sample.
SECONDS = 0.05

MEMORY_LOCALITIES = (LOCAL, REMOTE, UNKNOWN)

#: Causes of far memory, in the order of preference, with the remedy.
POLICY, BY_FIRST, FULL, LATE = "policy", "shared", "full", "late"
REMEDIES = {
    ALLOCATION: (
        "its cpuset (cpuset.mems) allows no memory of a near node: allow one; on Kubernetes set "
        "kubelet's memoryManagerPolicy: Static with its Topology Manager, and start the pod again"
    ),
    POLICY: "its memory policy names far nodes: start it with affinityd exec --memory preferred",
    BY_FIRST: (
        "most of it is shared memory or files, which lie where they were written first: let a "
        "process near the GPU write first; or, if all ranks use the memory, start the rank that "
        "writes it with affinityd exec --memory interleave"
    ),
    FULL: "the near nodes have no room: end or move what fills them, and start the process again",
    LATE: "it took memory before it was pinned: start it with affinityd exec",
    UNKNOWN: "start it with affinityd exec --memory preferred",
}


@dataclass(frozen=True)
class HostMemory:
    """The memory of a process, and the facts that tell why some of it is far."""

    resident: ResidentMemory
    near: frozenset[int]  #: NUMA nodes near its GPUs; empty: not known
    far: frozenset[int]  #: the host's other nodes, without GPU memory such as Grace's
    placement: str  #: placement of the process's CPUs
    policy: MemoryPolicy | None = None  #: policy of the main thread; None: it cannot be read
    refused: float = 0.0  #: bytes since boot for which near nodes had no room (numa_foreign)
    room: float = float("inf")  #: bytes for which near nodes have room now
    allowed: frozenset[int] | None = None  #: the nodes of the process's cpuset; None: not known

    @classmethod
    def of(
        cls, pid: int, near: Vicinity, placement: str, policy: MemoryPolicy | None = None
    ) -> HostMemory:
        """Return the memory of a running process; sizes are 0 if it has ended."""
        stats = [text(f"/sys/devices/system/node/node{node}/numastat") for node in near.memory]
        foreign = [stat.partition("numa_foreign ")[2].split("\n")[0] for stat in stats]
        return cls(
            resident_memory(pid),
            near.memory,
            near.far_memory,
            placement,
            policy,
            sum(int(pages) * PAGESIZE for pages in foreign if pages.isdecimal()),
            sum(map(room_on, near.memory)),
            _allowed(pid),
        )

    @cached_property
    def of_devices(self) -> int:
        """Bytes on nodes without CPUs, which are GPU memory."""
        part = self.resident.part_on(self.resident.nodes - self.near - self.far)
        return round(self.resident.size * part) if part and self.near else 0

    @property
    def size(self) -> int:
        """All bytes of the host's memory, without GPU memory."""
        return self.resident.size - self.of_devices

    @cached_property
    def far_part(self) -> float | None:
        """The far part of the host memory; None: not known, or the sample was too small."""
        return self.resident.part_on(self.far, of=self.near | self.far) if self.near else None

    @property
    def placed(self) -> Mapping[str, int]:
        """Bytes of host memory by locality: local, remote, unknown."""
        if self.far_part is None:
            return {LOCAL: 0, REMOTE: 0, UNKNOWN: self.size}
        far = round(self.size * self.far_part)
        return {LOCAL: self.size - far, REMOTE: far, UNKNOWN: 0}

    @property
    def pinned(self) -> tuple[str, ...]:
        """Signs that some memory is pinned, and so cannot move; empty: there is no sign."""
        buffers = self._buffers(self.resident.nodes)
        sizes = {**self.resident.locked, **({CUDA_MAPPED: buffers} if buffers else {})}
        return tuple(f"{name} {amount(size)}" for name, size in sizes.items())

    @property
    def pinned_far(self) -> int:
        """Bytes of far memory that are probably pinned."""
        return min(
            self.placed[REMOTE], self._buffers(self.far) + sum(self.resident.locked.values())
        )

    def _buffers(self, nodes: frozenset[int]) -> int:
        drawn = self.resident.pages(self.resident.nodes)
        part = self.resident.pages(nodes, {CUDA_MAPPED}) / max(1, drawn)
        return round(self.resident.size * part)

    @property
    def cause(self) -> str | None:
        """Why memory is far: the first of REMEDIES that applies; None: little memory is far."""
        if self.far_part is None or self.far_part < MENTIONED:
            return None
        if self.allowed is not None and self.allowed.isdisjoint(self.near):
            return ALLOCATION
        policy = self.policy or MemoryPolicy(None)
        # If a policy has near and far nodes, the kernel takes near nodes first, or all in turn.
        is_in_turn = (policy.policy or "").endswith("interleave")
        is_sent = policy.nodes - self.near if is_in_turn else not policy.nodes & self.near
        if policy.nodes and is_sent:
            return POLICY
        if self.resident.pages(self.far, (SHARED, MAPPED)) >= self.resident.pages(self.far) / 2:
            return BY_FIRST
        if self.refused >= self.placed[REMOTE] > self.room:
            return FULL
        return UNKNOWN if self.placement == UNKNOWN else LATE

    def is_notable(self, least: float = LEAST) -> bool:
        """Return whether enough memory is far: `least` bytes, and the part MENTIONED of all."""
        return self.cause is not None and self.placed[REMOTE] >= least

    def remedy(self, pid: int | None) -> str | None:
        """Return the remedy, maybe a command that moves `pid`'s memory; None: little is far."""
        if self.cause is None:
            return None
        remedy = REMEDIES[self.cause]
        if self.cause in {ALLOCATION, POLICY, FULL}:
            return remedy
        if self.pinned_far > self.placed[REMOTE] / 2:
            return f"{remedy}; pinned: restart the process near"
        if pid is None:
            return remedy
        here = format_list(self.resident.nodes & self.far)
        near = self.near if self.allowed is None else self.near & self.allowed
        return f"{remedy}; migratepages {pid} {here} {format_list(near)} moves it now"

    def __str__(self) -> str:
        """Return the memory in words: `host memory 212 GiB, 38% far on node 1`."""
        parts = [f"host memory {amount(self.size)}"]
        if self.far_part is None:
            parts.append("on unknown nodes")
        elif self.far_part:
            nodes = several("node", self.resident.nodes & self.far)
            parts.append(f"{self.far_part:.0%} far on {nodes}")
        else:
            parts.append("near")
        if self.of_devices:
            parts.append(f"and {amount(self.of_devices)} of a GPU")
        if self.pinned:
            parts.append(f"likely pinned ({', '.join(self.pinned)})")
        return ", ".join(parts)


_Name = tuple[int, int]  #: pid and start


class MemoryMeter:
    """Samples the memory of processes in turns, and keeps the last sample of each process."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds  # for one look
        self._found: dict[_Name, HostMemory] = {}  # the oldest first
        self._readings: Readings[_Name, HostMemory] = Readings()

    def look(
        self, processes: Mapping[_Name, tuple[Vicinity, str]], users: Mapping[int, int | None]
    ) -> Mapping[int, HostMemory]:
        """Return the memory of processes by pid; for some processes it may be only the size.

        `processes`: pid and start → the surroundings of its GPUs, and the placement of its CPUs.
        `users`: pid → uid.
        """
        end = time.monotonic() + self._seconds
        self._found = {name: it for name, it in self._found.items() if name in processes}
        for name in [*(processes.keys() - self._found.keys()), *self._found]:
            with suppress(FutureTimeoutError):  # the last sample remains valid
                sample = partial(_sample, name[0], *processes[name])
                memory = self._readings.result(name, sample, users.get(name[0]))
                self._found.pop(name, None)
                self._found[name] = memory
            if time.monotonic() > end:
                break
        sizes = {
            pid: HostMemory(resident_sizes(pid), near.memory, near.far_memory, placement)
            for (pid, start), (near, placement) in processes.items()
            if (pid, start) not in self._found
        }
        return {**sizes, **{pid: it for (pid, _), it in self._found.items()}}


def _allowed(pid: int) -> frozenset[int] | None:
    with suppress(ValueError):
        return parse_list(status_of(pid, "Mems_allowed_list")) or None
    return None


def _sample(pid: int, near: Vicinity, placement: str) -> HostMemory:
    memory = HostMemory.of(pid, near, placement)
    if memory.cause is None:
        return memory
    return replace(memory, policy=policy_of(pid))  # may walk many pages
