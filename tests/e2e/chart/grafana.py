"""Judges dashboards by Grafana's own models: what they do not know, they do not give back.

Run by the environment `tools.GRAFANA`: reads a JSON list of dashboards, prints a line for each
field that is lost or changed on the way.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

SDK = "grafana_foundation_sdk"


def lost(before: Any, after: Any, path: str = "$") -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Yield the paths that are in the one and not, or not the same, in the other."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, part in before.items():
            yield from lost(part, after.get(name), f"{path}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (part, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(part, other, f"{path}[{number}]")
    elif before != after:
        yield path


def main() -> None:
    """Judge what stdin has."""
    models, encoder, plugins = (
        importlib.import_module(f"{SDK}.{name}")
        for name in ("models.dashboard", "cog.encoder", "cog.plugins")
    )
    plugins.register_default_plugins()
    for document in json.load(sys.stdin):
        read = models.Dashboard.from_json(document)
        back = json.loads(encoder.JSONEncoder().encode(read))
        for path in lost(document, back):
            print(f"{document['title']}: {path}")  # noqa: T201


if __name__ == "__main__":
    main()
