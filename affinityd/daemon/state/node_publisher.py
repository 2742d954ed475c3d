"""Publishes the node as it is now: to clients, the service manager and the log."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from affinityd.daemon.state.background import FailureLog, in_background
from affinityd.daemon.state.plan_service import PlanService
from affinityd.linux.files import sweep
from affinityd.text import count
from affinityd.topology import node_file as nodefile
from affinityd.topology.model import Node

log = logging.getLogger(__name__)


class NodePublisher:
    """Publishes the node after each reading, off the event loop: no plan waits for a disk."""

    def __init__(self, service: PlanService, node_file: Path, *, replayed: bool = False) -> None:
        """Take the source of the node, the path of node.json, and whether it is replayed."""
        self._service = service
        self._node_file = node_file
        self._replayed = replayed
        self.has_been_read = asyncio.Event()  #: set, it has the node published
        self._published: Node | None = None
        self._failures = FailureLog(f"{node_file} could not be written", expected=(OSError,))

    async def run(self) -> None:
        """Publish for ever; of readings meanwhile only the newest."""
        await in_background(lambda: sweep(self._node_file))
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
            nodefile.write(self._node_file, replace(node, replayed=self._replayed))
        notify(f"READY=1\nSTATUS={_state(node)}")
        self._published = node

    def _log(self, node: Node) -> None:
        topology, former = node.topology, self._published.topology if self._published else None
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
