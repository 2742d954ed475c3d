"""A replayed node of two NUMA nodes on which real processes of this machine can be placed.

Its CPUs 0 and 1 are this machine's. Each of its NUMA nodes has one of these CPUs and one GPU.
"""

import os
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.config import NODE_FILE
from affinityd.topology.document import write_node
from affinityd.topology.model import Node, Topology
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import write_tree

TOPOLOGY = made({0: "0,1022", 1: "1,1023"}, gpus=[1, 0])

ALL = frozenset(os.sched_getaffinity(0))
FAR, NEAR = frozenset({0}), frozenset({1})  #: of GPU 0


def use_small_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make commands plan on the small node, whatever is set up on this machine."""
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))
    monkeypatch.setenv("AFFINITYD_SOCKET", os.fspath(tmp_path / "none.sock"))
    monkeypatch.setenv("AFFINITYD_ROOT", os.fspath(write_tree(TOPOLOGY, tmp_path / "root")))
    # Processes here may use half of the node's CPUs, which would count as a request for so many.
    monkeypatch.setenv("AFFINITYD_CPUS", "none")
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def publish(tmp_path: Path, topology: Topology, *, replayed: bool = False) -> None:
    write_node(tmp_path / NODE_FILE, Node(topology, replayed=replayed))


def refused(capsys: pytest.CaptureFixture[str], *words: str, status: int = 2) -> str:
    """Check that a command refuses with one line on stderr, and return the line."""
    try:
        code: object = main(words)
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (status, "", 1)
    return said.err
