"""The host memory of a process, seen from its GPUs: how much is far, why, and what helps. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from affinityd.linux.memory_policy import MemoryPolicy
from affinityd.linux.resident import FILES, SHARED
from affinityd.topology.nearness import UNKNOWN

#: Why memory is far, the first that fits.
POLICY = "policy"  #: its memory policy names far nodes, as by numactl
BY_OTHERS = "shared"  #: most of it is shared memory, or files, which another process wrote first
FULL = "full"  #: the near nodes had no room, and have none now
LATE = "late"  #: the process took it before it was bound near its GPUs, or is not bound yet
CAUSES = (POLICY, BY_OTHERS, FULL, LATE, UNKNOWN)


@dataclass(frozen=True)
class FarMemory:
    """The facts about memory that is far from the GPUs of its process."""

    kinds: Mapping[str, float]  #: kind → bytes
    near: frozenset[int]  #: the nodes of near memory
    placement: str  #: of the process's CPUs now
    policy: MemoryPolicy | None = None  #: of its main thread; None: it cannot be read
    refused: float = 0.0  #: bytes that the near nodes had no room for since boot: numa_foreign
    room: float = float("inf")  #: bytes that they have room for now

    @property
    def cause(self) -> str:
        """Why it is far: the first of CAUSES that fits."""
        size = sum(self.kinds.values())
        by_others = self.kinds.get(SHARED, 0) + self.kinds.get(FILES, 0)
        fits = {
            POLICY: self._is_sent_away(),
            BY_OTHERS: by_others >= size / 2,
            FULL: self.refused >= size > self.room,
            LATE: self.placement != UNKNOWN,
            UNKNOWN: True,
        }
        return next(cause for cause in CAUSES if fits[cause])

    def _is_sent_away(self) -> bool:
        """Whether its policy has the kernel take far memory while there is near memory."""
        if self.policy is None:
            return False
        nodes, name = self.policy.nodes, self.policy.policy or ""
        is_in_turn = name.endswith("interleave")
        return bool(nodes - self.near) if is_in_turn else bool(nodes) and not nodes & self.near
