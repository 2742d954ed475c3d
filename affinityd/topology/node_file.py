"""node.json: the topology, published beside the daemon's socket for clients that outlive it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from affinityd import config
from affinityd.cpuset import format_list, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.json_codec import CpuList, decode, dumps, parsed
from affinityd.linux.files import read_regular, text, write_whole
from affinityd.topology.document import TopologyDocument, from_document, to_document
from affinityd.topology.model import Node

NAME = config.NODE_FILE
VERSION = 1
BOOT_ID = "/proc/sys/kernel/random/boot_id"  #: random(4): another one after each boot
MAX_BYTES = 64 * 1024 * 1024  #: 65,536 CPUs take 10


@dataclass(frozen=True)
class NodeFileHead:
    """The fields that decide whether to read the rest."""

    version: int
    boot_id: str | None  #: of the machine, as long as it runs; None: a sandbox hides it


@dataclass(frozen=True)
class NodeSettings:
    """The daemon's settings that count for a plan."""

    reserved_cpus: CpuList
    switch: str = config.ON  #: an earlier release does not write it


@dataclass(frozen=True)
class NodeFile(NodeFileHead):
    """The file."""

    generation: int
    replayed: bool
    settings: NodeSettings
    topology: TopologyDocument


def write(path: Path, node: Node) -> None:
    """Write a node atomically, readable by every user. Raises OSError."""
    file = NodeFile(
        version=VERSION,
        boot_id=text(BOOT_ID) or None,
        generation=node.generation,
        replayed=node.replayed,
        settings=NodeSettings(format_list(node.reserved), node.switch),
        topology=to_document(node.topology),
    )
    write_whole(path, f"{dumps(file)}\n".encode())


def read(path: Path) -> Node:
    """Read a node back. Raises OSError; ValueError, one line, if it is no node."""
    data = parsed(read_regular(os.fspath(path), MAX_BYTES), path.name)
    head, here = decode(NodeFileHead, data, path.name), text(BOOT_ID)
    if head.version != VERSION:
        raise ValueError(f"{path.name} is of version {head.version}, not {VERSION}")
    if head.boot_id and here and head.boot_id != here:  # a sandbox may hide either
        raise ValueError(f"{path.name} is another machine's, or from before this one was booted")
    file = decode(NodeFile, data, path.name)
    if file.generation < 1:
        raise ValueError(f"{path.name}.generation is {file.generation}; the first is 1")
    return Node(
        topology=from_document(file.topology),
        reserved=parse_list(file.settings.reserved_cpus),
        generation=file.generation,
        replayed=file.replayed,
        switch=_switch(file.settings.switch, f"{path.name}.settings.switch"),
    )


def _switch(text: str, where: str) -> str:
    try:
        return config.read_switch(text, where)
    except InvalidRequestError as error:
        raise ValueError(str(error)) from None
