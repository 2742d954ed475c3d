"""Keeps what the daemon knows of its node current: when it is read anew, and who is told.

A reading is swapped in whole, so a plan is made from one reading or the next, never from both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from affinityd.cpuset import CpuSet
from affinityd.errors import AffinityError
from affinityd.service import Node, Service
from affinityd.topology import Topology

log = logging.getLogger(__name__)

DRIVER_CHECK_SECONDS = 2.0  #: how often a driver is looked for that came or went
DRIVER_RETRY_SECONDS = 30.0  #: how often a driver is asked again that is there and did not answer
MIG_REREAD_SECONDS = 10.0  #: an unknown MIG UUID makes a reading at most so often

#: Reads the machine; the argument says whether its GPU drivers are asked too, or remembered.
Read = Callable[[bool], Topology]


class Keeper:
    """Reads the node at the start, on a signal, and when a sentinel differs."""

    def __init__(
        self,
        service: Service,
        read: Read,
        *,
        online: Callable[[], str | None],
        drivers: Callable[[], object],
        is_driver_silent: Callable[[], bool],
        reserved: CpuSet = frozenset(),
        on_change: Callable[[Node], None],
    ) -> None:
        """Take the sentinels: `online` is read before every answer, `drivers` now and then."""
        self._service = service
        self._read = read
        self._online = online
        self._drivers = drivers
        self._is_driver_silent = is_driver_silent
        self._reserved = reserved
        self._on_change = on_change
        self._node: Node | None = None
        self._seen_online: str | None = None
        self._seen_drivers: object = None
        self._asked_drivers = float("-inf")
        self._reading = asyncio.Lock()
        self._asked = asyncio.Event()

    def is_current(self) -> bool:
        """Whether the CPUs that are online are the ones that were read."""
        return self._node is not None and self._online() == self._seen_online

    async def refresh(self) -> None:
        """Read the CPUs anew if they have changed; what the drivers said is remembered."""
        if self._node is not None and not self.is_current():
            async with self._reading:
                if not self.is_current():  # somebody else may have read them in the meantime
                    await self._reread(ask_drivers=False)

    async def _reread_all(self) -> None:
        async with self._reading:
            await self._reread(ask_drivers=True)

    async def seek_mig(self) -> bool:
        """Read everything anew for a MIG instance that is not known; False: too soon to."""
        async with self._reading:
            due = time.monotonic() - self._asked_drivers >= MIG_REREAD_SECONDS
            if due:
                await self._reread(ask_drivers=True)
            return due

    def ask_to_reread(self) -> None:
        """Have everything read anew, soon: a signal handler's way to say so."""
        self._asked.set()

    async def watch(self) -> None:
        """Read at the start, when asked to, and when drivers come or go; never returns."""
        self._asked.set()
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._asked.wait(), DRIVER_CHECK_SECONDS)
            if self._asked.is_set() or self._drivers_differ():
                self._asked.clear()
                await self._reread_all()

    def _drivers_differ(self) -> bool:
        silent_for = time.monotonic() - self._asked_drivers
        retry = silent_for >= DRIVER_RETRY_SECONDS and self._is_driver_silent()
        return retry or self._drivers() != self._seen_drivers

    async def _reread(self, *, ask_drivers: bool) -> None:
        online, drivers = self._online(), self._drivers()
        try:
            topology = await asyncio.to_thread(self._read, ask_drivers)
        except (AffinityError, OSError) as error:
            log.warning("the machine could not be read: %s", error)
            return
        finally:
            if ask_drivers:
                self._asked_drivers = time.monotonic()
        self._seen_online, self._seen_drivers = online, drivers
        if self._node is None:
            await self._swap(Node(topology, self._reserved))
        elif topology != self._node.topology:
            generation = self._node.generation + 1
            await self._swap(replace(self._node, topology=topology, generation=generation))

    async def _swap(self, node: Node) -> None:
        self._node = node
        self._service.swap(node)
        await asyncio.to_thread(self._on_change, node)
