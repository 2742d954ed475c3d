"""What the node is now, told to clients, the service manager and the log."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace
from pathlib import Path

from affinityd.daemon.state.background import in_background
from affinityd.daemon.state.sd_notify import notify
from affinityd.linux.atomic_write import sweep
from affinityd.topology import node_file as nodefile
from affinityd.topology.node import Node

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0  #: how often the node file is looked for


class NodePublisher:
    """Tells clients, the service manager and the log what the node is now."""

    def __init__(self, node_file: Path, *, replayed: bool = False) -> None:
        """Take where node.json is to be, and whether its node is another machine's."""
        self._node_file = node_file
        self._replayed = replayed
        self._told: tuple[str, ...] = ()  # a notice is news once
        self._node: Node | None = None
        self._trouble = ""  # why the file is not there, or is not the newest
        self._turn = threading.Lock()

    def publish(self, node: Node) -> None:
        """Tell of a new reading."""
        topology = node.topology
        state = (
            f"{topology.name}: {len(topology.online)} CPUs, {len(topology.nodes)} NUMA nodes, "
            f"{len(topology.gpus)} GPUs"
        )
        log.info("%s (generation %d)", state, node.generation)
        for notice in topology.notices:
            if notice not in self._told:
                log.warning("%s", notice)
        self._told = topology.notices
        if topology.online <= node.reserved:
            log.warning("every online CPU is reserved: no plan can be made")
        with self._turn:
            if self._node is None:
                sweep(self._node_file)
            self._node = replace(node, replayed=self._replayed)
            self._write(self._node)
        notify(f"READY=1\nSTATUS={state}")

    async def stay_published(self) -> None:
        """Write the node file again whenever it is gone, or could not be written; never returns."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await in_background(self._mend)

    def _mend(self) -> None:
        with self._turn:
            if self._node and (self._trouble or not self._node_file.is_file()):
                self._write(self._node)

    def _write(self, node: Node) -> None:
        try:
            nodefile.write(self._node_file, node)
        except OSError as error:
            if str(error.strerror) != self._trouble:
                log.warning("%s could not be written: %s", self._node_file, error.strerror)
            self._trouble = str(error.strerror)
        else:
            self._trouble = ""
