"""node.json: what the daemon knows, published beside its socket for clients that outlive it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from affinityd import codec
from affinityd.cpuset import format_list, parse_list
from affinityd.service import Node

NAME = "node.json"
VERSION = 1


def write(path: Path, node: Node) -> None:
    """Write a node atomically, readable by everybody. Raises OSError."""
    text = json.dumps(
        {
            "version": VERSION,
            "generation": node.generation,
            "settings": {"reserved_cpus": format_list(node.reserved)},
            "topology": codec.to_dict(node.topology),
        }
    )
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{NAME}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path) -> Node:
    """Read a node back. Raises OSError; ValueError for what is no node of this version."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise ValueError(f"{path} is not a node file of version {VERSION}")
    try:
        return Node(
            topology=codec.from_dict(data["topology"]),
            reserved=parse_list(data["settings"]["reserved_cpus"]),
            generation=data["generation"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} lacks {error}") from None
