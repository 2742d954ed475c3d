"""Keeps the daemon's topology current, and publishes it: to clients, systemd and the log.

A reading is swapped in whole, so a plan is made from one reading or the next, never from both.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from affinityd.config import ON
from affinityd.cpuset import CpuSet
from affinityd.daemon.state.background import FailureLog, in_background, pause, until_multiple
from affinityd.daemon.state.plan_service import PlanService
from affinityd.errors import AffinityError
from affinityd.linux.files import sweep
from affinityd.text import count
from affinityd.topology.document import write_node
from affinityd.topology.model import Node, Topology

log = logging.getLogger(__name__)

DRIVER_CHECK_SECONDS = 2.0  #: how often drivers and RDMA ports are looked at
DRIVER_RETRY_SECONDS = 30.0  #: how often a loaded driver is queried again that gave no answer
FIRST_SECONDS = 0.6  #: that a plan waits for the first reading; clients wait for 0.7 s and more
MIG_REREAD_SECONDS = 10.0  #: an unknown MIG UUID makes a reading at most so often


class TopologySource(Protocol):
    """A machine that can be read again and again."""

    def query_drivers(self) -> None:
        """Ask its GPU drivers, which may take long; their answers are remembered."""

    def read(self) -> Topology:
        """Read its files, and join them with its drivers' answers. Raises AffinityError."""

    def online(self) -> object:
        """Return a value that changes when a CPU comes or goes: one small read."""

    def drivers(self) -> object:
        """Return a value that changes when a driver comes or goes."""

    def ports(self) -> object:
        """Return a value that changes when a port of an RDMA device goes up or down."""

    def lacks_nvml(self) -> bool:
        """Whether a driver is there that did not answer."""


class TopologyWatcher:
    """Reads the node at the start, on request, and when something has changed."""

    def __init__(
        self,
        service: PlanService,
        machine: TopologySource,
        *,
        reserved: CpuSet,
        switch: str = ON,
        on_read: Callable[[], None],
    ) -> None:
        """Take the user of the readings, and the function called after each of them."""
        self._service = service
        self._machine = machine
        self._reserved = reserved
        self._switch = switch
        self._on_read = on_read
        self._failures = FailureLog(
            "the machine could not be read", expected=(AffinityError, OSError)
        )
        self._seen_online: object = None
        self._seen_ports: object = None
        self._seen_drivers: object = None
        self._asked_drivers = self._sought_mig = float("-inf")
        self._asking = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._wanted = asyncio.Event()

    def _is_current(self) -> bool:
        return self._machine.online() == self._seen_online

    async def first_reading(self) -> None:
        """Return when the machine has been read for the first time, or FIRST_SECONDS later."""
        if self._service.known is None:
            await pause(self._service.has_read, FIRST_SECONDS)

    async def refresh(self) -> None:
        """Read the CPUs again if they have changed; this waits for no driver."""
        if self._service.known is not None and not self._is_current():
            await self._read(unless=self._is_current)

    async def seek_mig(self) -> None:
        """Read everything again for an unknown MIG instance, unless that was done recently."""
        async with self._asking:
            if time.monotonic() - self._sought_mig >= MIG_REREAD_SECONDS:
                await self._ask_and_read()
                self._sought_mig = time.monotonic()

    def want_reading(self) -> None:
        """Have everything read again, soon: for a signal handler."""
        self._wanted.set()

    async def watch(self) -> None:
        """Read at the start, when that is wanted, and when drivers or RDMA ports differ.

        Never returns.
        """
        self._wanted.set()
        while True:
            await pause(self._wanted, until_multiple(DRIVER_CHECK_SECONDS))
            unread = self._service.known is None
            if unread or self._wanted.is_set() or self._drivers_differ():
                self._wanted.clear()
                async with self._asking:
                    await self._ask_and_read()
            elif await self._ports() != self._seen_ports:
                await self._read()

    async def _ports(self) -> object:
        """Return the ports' states; where there are some, from a thread: adapters may be slow."""
        return (
            await in_background(self._machine.ports) if self._seen_ports else self._machine.ports()
        )

    def _drivers_differ(self) -> bool:
        if self._machine.drivers() != self._seen_drivers:
            return True
        due = time.monotonic() - self._asked_drivers >= DRIVER_RETRY_SECONDS
        return due and self._machine.lacks_nvml()

    async def _ask_and_read(self) -> None:
        self._seen_drivers = self._machine.drivers()
        await in_background(self._machine.query_drivers)
        self._asked_drivers = time.monotonic()
        await self._read()

    async def _read(self, *, unless: Callable[[], bool] = lambda: False) -> None:
        async with self._reading:
            if unless():  # another request has read it meanwhile
                return
            online = self._machine.online()
            ports = await in_background(self._machine.ports)
            with self._failures.logged():
                topology = await in_background(self._machine.read)
                self._seen_online, self._seen_ports = online, ports
                self._swap(topology)
                self._on_read()

    def _swap(self, topology: Topology) -> None:
        node = self._service.known
        if node is None:
            self._service.swap(Node(topology, self._reserved, switch=self._switch))
        elif topology != node.topology:
            generation = node.generation + 1
            self._service.swap(replace(node, topology=topology, generation=generation))
        else:
            log.info("read again: nothing has changed")


class NodePublisher:
    """Publishes the node after each reading, off the event loop: no plan waits for a disk."""

    def __init__(self, service: PlanService, path: Path, *, replayed: bool = False) -> None:
        """Take the source of the node, `path` of node.json, and whether it is replayed."""
        self._service = service
        self._path = path
        self._replayed = replayed
        self.has_been_read = asyncio.Event()  #: set, it has the node published
        self._published: Node | None = None
        self._failures = FailureLog(f"{path} could not be written", expected=(OSError,))

    async def run(self) -> None:
        """Publish for ever; of readings meanwhile only the newest."""
        await in_background(lambda: sweep(self._path))
        while True:
            await self.has_been_read.wait()
            self.has_been_read.clear()
            await in_background(self._publish)

    def _publish(self) -> None:
        node = self._service.known
        if node is None:
            return
        if node is not self._published:
            self._log(node)
        # A file that was deleted, or that the disk had no room for, comes back with any reading.
        with self._failures.logged():
            write_node(self._path, replace(node, replayed=self._replayed))
        notify(f"READY=1\nSTATUS={_state(node)}")
        self._published = node

    def _log(self, node: Node) -> None:
        topology = node.topology
        former = self._published.topology if self._published else None
        if former is None or replace(former, nics=topology.nics) != topology:  # a port may flap
            log.info("%s (generation %d)", _state(node), node.generation)
        for notice in topology.notices:
            if former is None or notice not in former.notices:  # a notice is news once
                log.warning("%s", notice)
        if topology.online <= node.reserved:
            log.warning("every online CPU is reserved: no plan can be made")


def _state(node: Node) -> str:
    topology = node.topology
    return (
        f"{topology.name}: {count(len(topology.online), 'CPU')}, "
        f"{count(len(topology.nodes), 'NUMA node')}, {count(len(topology.gpus), 'GPU')}"
    )


def notify(state: str) -> None:
    """Tell the service manager, if one listens, a state like `READY=1`: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace, unix(7)
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
        manager.sendto(state.encode(), address)
