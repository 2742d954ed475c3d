"""What the node is now, told to clients, the service manager and the log."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from affinityd import nodefile
from affinityd.notify import notify
from affinityd.service import Node

log = logging.getLogger(__name__)


class Publisher:
    """Tells clients, the service manager and the log what the node is now."""

    def __init__(self, node_file: Path, *, replayed: bool = False) -> None:
        """Take where node.json is to be, and whether its node is another machine's."""
        self._node_file = node_file
        self._replayed = replayed
        self._told: tuple[str, ...] = ()  # a notice is news once

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
        try:
            nodefile.write(self._node_file, replace(node, replayed=self._replayed))
        except OSError as error:
            log.warning("%s could not be written: %s", self._node_file, error.strerror)
        notify(f"READY=1\nSTATUS={state}")
