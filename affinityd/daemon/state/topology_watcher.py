"""The node as known now: kept current, and published to clients, systemd and the log.

A reading replaces the one before as a whole, so no plan mixes parts of both.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from affinityd.config import NODE_FILE
from affinityd.config.settings import Settings
from affinityd.daemon.state import FailureLog, in_background, pause, until_multiple
from affinityd.discovery.machine import Machine
from affinityd.errors import AffinityError, FailingFileError, NotReadyError
from affinityd.linux.files import content, sweep
from affinityd.text import count
from affinityd.topology.document import write_node
from affinityd.topology.model import Node, Topology

log = logging.getLogger(__name__)

DRIVER_CHECK_SECONDS = 2.0  #: how often drivers and RDMA ports are checked
DRIVER_RETRY_SECONDS = 30.0  #: how often a loaded driver that did not answer is queried again


class KnownNode:
    """The node as known now."""

    def __init__(self, node: Node | None = None) -> None:
        self.known = node  #: None before the first reading
        self.failing = "the machine has not been read yet"  #: why there is no reading
        self.has_read = asyncio.Event()

    @property
    def node(self) -> Node:
        """The node. Raises NotReadyError before the first reading."""
        if self.known is None:
            raise NotReadyError(f"{self.failing}; try again in a moment")
        return self.known


class TopologyWatcher(KnownNode):
    """Reads the node at the start, on request, and when something has changed; publishes it."""

    def __init__(self, machine: Machine, settings: Settings) -> None:
        super().__init__()
        self._machine = machine
        self._settings = settings
        self._node_file = Path(settings.socket).with_name(NODE_FILE)
        self._unread = FailureLog(
            "the machine could not be read", expected=(AffinityError, OSError)
        )
        self._unwritten = FailureLog(f"{self._node_file} could not be written", expected=(OSError,))
        self._seen_online: bytes | None = None
        self._seen_ports: object = None
        self._seen_drivers: object = None
        self._asked_drivers = float("-inf")
        self._sought_mig: dict[int | None, float] = {}  #: user → when an instance was last sought
        self._asking = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._is_to_publish = False
        self._published: Node | None = None

    async def first_reading(self) -> None:
        """Wait until the machine has been read for the first time, but at most 0.6 s."""
        if self.known is None:
            await pause(self.has_read, 0.6)  # clients wait for 0.7 s and more

    async def refresh(self) -> None:
        """Read the CPUs again if they have changed; this never waits for a driver."""
        if self.known is not None and not self._is_current():
            async with self._reading:
                if not self._is_current():  # otherwise another request has just read them
                    await self._read()

    async def seek_mig(self, user: int | None) -> None:
        """Read everything again for a MIG instance that a user names, at most every 10 s."""
        async with self._asking:
            recent = time.monotonic() - 10.0
            self._sought_mig = {uid: at for uid, at in self._sought_mig.items() if at > recent}
            if user not in self._sought_mig:
                await self._ask_and_read()
                self._sought_mig[user] = time.monotonic()

    def want_reading(self) -> None:
        """Have everything read again soon: called by a signal handler."""
        self._wanted.set()

    async def watch(self) -> None:
        """Read at the start, on request, and when drivers or RDMA ports change.

        Publishes each reading, off the event loop: no plan waits for a disk. Never returns.
        """
        self._wanted.set()
        while True:
            await pause(self._wanted, until_multiple(DRIVER_CHECK_SECONDS))
            if self.known is None or self._wanted.is_set() or self._drivers_differ():
                self._wanted.clear()
                async with self._asking:
                    await self._ask_and_read()
            elif await self._ports() != self._seen_ports:
                async with self._reading:
                    await self._read()
            if self._is_to_publish:
                self._is_to_publish = False
                await in_background(self._publish)

    async def _ports(self) -> object:
        """Return the ports' states, from a thread if there are ports: adapters may be slow."""
        if self._seen_ports:
            return await in_background(self._machine.ports)
        return self._machine.ports()

    def _is_current(self) -> bool:
        file = self._machine.online_file
        return file is None or content(file) in {None, self._seen_online}

    def _drivers_differ(self) -> bool:
        if self._machine.drivers() != self._seen_drivers:
            return True
        due = time.monotonic() - self._asked_drivers >= DRIVER_RETRY_SECONDS
        return due and self._machine.lacks_nvml()

    async def _ask_and_read(self) -> None:
        self._seen_drivers = self._machine.drivers()
        await in_background(self._machine.query_drivers)
        self._asked_drivers = time.monotonic()
        async with self._reading:
            await self._read()

    async def _read(self) -> None:
        file = self._machine.online_file
        online = None if file is None else content(file)
        ports = await in_background(self._machine.ports)
        with self._unread.logged():
            try:
                topology = await in_background(self._machine.read)
            except FailingFileError as error:
                self.failing = str(error)
                raise
            # Files may be missing while something is mounted or plugged in. So a reading that
            # differs is repeated up to four times, until two in a row are equal.
            for _ in range(4):
                if self.known is None or topology == self.known.topology:
                    break
                await asyncio.sleep(0.1)
                before = topology
                topology = await in_background(self._machine.read)
                if topology == before:
                    break
            self._seen_online = online
            self._seen_ports = ports
            if self.known is None:
                reserved = self._settings.reserved_cpus
                switch = self._settings.switch
                replayed = self._settings.replays
                self.known = Node(topology, reserved, replayed=replayed, switch=switch)
            elif topology != self.known.topology:
                generation = self.known.generation + 1
                self.known = replace(self.known, topology=topology, generation=generation)
            else:
                log.info("read again: nothing has changed")
            self.has_read.set()
            self._is_to_publish = True

    def _publish(self) -> None:
        node = self.node
        before = self._published
        if node is not before:
            _log(node, before)
        # Write the file after each reading, changed or not: it may have been deleted, or the disk
        # was full.
        with self._unwritten.logged():
            if before is None:
                sweep(self._node_file)
            write_node(self._node_file, node)
        notify(f"READY=1\nSTATUS={_state(node.topology)}")
        self._published = node


def _log(node: Node, before: Node | None) -> None:
    topology = node.topology
    former = None if before is None else before.topology
    if former is None or replace(former, nics=topology.nics) != topology:  # ports may flap
        log.info("%s (generation %d)", _state(topology), node.generation)
    for notice in topology.notices:
        if former is None or notice not in former.notices:  # log a notice only when it is new
            log.warning("%s", notice)
    if topology.online <= node.reserved:
        log.warning("every online CPU is reserved: no plan can be made")


def _state(topology: Topology) -> str:
    return (
        f"{topology.name}: {count(len(topology.online), 'CPU')}, "
        f"{count(len(topology.nodes), 'NUMA node')}, {count(len(topology.gpus), 'GPU')}"
    )


def notify(state: str) -> None:
    """Tell a state like `READY=1` to the service manager, if it listens: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket name, unix(7)
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
        manager.settimeout(1.0)  # do not wait long if the manager's queue is full
        manager.sendto(state.encode(), address)
