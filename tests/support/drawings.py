"""The drawings that were looked at and found good; re-make them with

    python -m tests.support.drawings

and review the difference as a reader of `affinityd topology` would.
"""

from __future__ import annotations

from pathlib import Path

from affinityd.cli.render.topology import draw
from affinityd.machines import NAMES
from tests.support.machines.facts import machine
from tests.support.paths import DATA

HERE = DATA / "golden"

DRAWN = (
    *NAMES,
    "cloud-vm",
    "lassen",
    "power8",
    "power9",
    "stray-cpus",
    "threadripper-2990wx",
    "two-vendors",
    "uv2000",
    "vm-sockets",
)


def path(name: str) -> Path:
    return HERE / f"topology-{name}.txt"


def drawing(name: str) -> str:
    return "".join(f"{line}\n" for line in draw(machine(name), color=False))


if __name__ == "__main__":
    for drawn in DRAWN:
        path(drawn).write_text(drawing(drawn), encoding="utf-8")
