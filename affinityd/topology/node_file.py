"""node.json: what the daemon knows, published beside its socket for clients that outlive it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from affinityd.config import switch
from affinityd.cpuset import format_list
from affinityd.errors import InvalidRequestError
from affinityd.json_reader import JsonValue
from affinityd.linux.atomic_write import write_whole
from affinityd.linux.files import read_regular
from affinityd.topology import serialization
from affinityd.topology.node import Node

NAME = "node.json"
VERSION = 1
BOOT_ID = "/proc/sys/kernel/random/boot_id"  #: random(4): another one after each boot
MAX_BYTES = 64 * 1024 * 1024  #: 65,536 CPUs take 10


def write(path: Path, node: Node) -> None:
    """Write a node atomically, readable by everybody. Raises OSError."""
    text = json.dumps(
        {
            "version": VERSION,
            "boot_id": _boot_id(),
            "generation": node.generation,
            "replayed": node.replayed,
            "settings": {"reserved_cpus": format_list(node.reserved), "switch": node.switch},
            "topology": serialization.to_dict(node.topology),
        }
    )
    write_whole(path, f"{text}\n")


def read(path: Path) -> Node:
    """Read a node back. Raises OSError; ValueError, one line, for what is no node."""
    text = read_regular(os.fspath(path), MAX_BYTES).decode()
    try:
        data = JsonValue(json.loads(text), path.name)
    except RecursionError:
        raise ValueError(f"{path.name} is too deep to be a node") from None
    if data["version"].number() != VERSION:
        raise ValueError(f"{path.name} is of version {data['version'].value}, not {VERSION}")
    if not _is_of_now(data):
        raise ValueError(f"{path.name} is another machine's, or from before this one was booted")
    generation = data["generation"].number()
    if generation < 1:
        raise ValueError(f"{path.name}.generation is {generation}; the first is 1")
    return Node(
        topology=serialization.from_dict(data["topology"].value),
        reserved=data["settings"]["reserved_cpus"].cpus(),
        generation=generation,
        replayed=data["replayed"].boolean(),
        switch=_switch(data["settings"]),
    )


def _switch(settings: JsonValue) -> str:
    """Return the switch, which a daemon of an earlier release does not write. Raises ValueError."""
    said = settings.get("switch")
    try:
        return switch.ON if said is None else switch.read(said.text(), said.where)
    except InvalidRequestError as error:
        raise ValueError(str(error)) from None


def _is_of_now(data: JsonValue) -> bool:
    """Whether this machine wrote it since it was booted, as far as both sides can tell."""
    wrote, here = data.get("boot_id"), _boot_id()
    return wrote is None or here is None or wrote.text() == here


def _boot_id() -> str | None:
    """Return what names this machine from boot to boot; None where a sandbox hides it."""
    try:
        return read_regular(BOOT_ID, MAX_BYTES).decode().strip()
    except OSError:
        return None
