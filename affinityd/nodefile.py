"""node.json: what the daemon knows, published beside its socket for clients that outlive it."""

from __future__ import annotations

import errno
import json
from pathlib import Path

from affinityd import codec
from affinityd.cpuset import format_list
from affinityd.jsonvalue import JsonValue
from affinityd.service import Node
from affinityd.whole import write_whole

NAME = "node.json"
VERSION = 1
MAX_BYTES = 64 * 1024 * 1024  #: 65,536 CPUs take 10


def write(path: Path, node: Node) -> None:
    """Write a node atomically, readable by everybody. Raises OSError."""
    text = json.dumps(
        {
            "version": VERSION,
            "generation": node.generation,
            "replayed": node.replayed,
            "settings": {"reserved_cpus": format_list(node.reserved)},
            "topology": codec.to_dict(node.topology),
        }
    )
    write_whole(path, f"{text}\n")


def read(path: Path) -> Node:
    """Read a node back. Raises OSError; ValueError, one line, for what is no node."""
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise OSError(errno.EINVAL, "it is no file, or far too large for a node")
    try:
        data = JsonValue(json.loads(path.read_text(encoding="utf-8")), path.name)
    except RecursionError:
        raise ValueError(f"{path.name} is too deep to be a node") from None
    if data["version"].number() != VERSION:
        raise ValueError(f"{path.name} is of version {data['version'].value}, not {VERSION}")
    generation = data["generation"].number()
    if generation < 1:
        raise ValueError(f"{path.name}.generation is {generation}; the first is 1")
    return Node(
        topology=codec.from_dict(data["topology"].value),
        reserved=data["settings"]["reserved_cpus"].cpus(),
        generation=generation,
        replayed=data["replayed"].boolean(),
    )
