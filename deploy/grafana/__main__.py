"""Writes the dashboards into a folder: `python -m deploy.grafana FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.fleet import fleet
from deploy.grafana.node import node


def main(folder: str) -> None:
    """Write each dashboard to the file of its uid."""
    for board in (fleet(), node()):
        text = json.dumps(board, cls=JSONEncoder, indent=2, ensure_ascii=False)
        Path(folder, f"{board.uid}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
