"""Slurm's numbers of cores are hwloc's logical ones, on captured trees and on written ones."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from affinityd.cpuset import parse_mask
from affinityd.discovery import discover, open_tree
from affinityd.slurm.cores import in_slurms_order
from bench.discovery import LSTOPO, lstopo_environment
from tests.e2e.lstopo.test_lstopo import TREES

#: What slurmd has hwloc leave out: xcpuinfo.c (xcpuinfo_hwloc_topo_load).
LEFT_OUT = ("l1cache", "l2cache", "l4cache", "l5cache", "misc")


@pytest.mark.parametrize("tree", TREES)
def test_a_core_has_the_number_that_lstopo_gives_it(
    tree: Callable[[Path], tuple[Path, Path]], tmp_path: Path
) -> None:
    root, unpacked_root = tree(tmp_path)
    filters = [word for kind in LEFT_OUT for word in ("--filter", f"{kind}:none")]
    done = subprocess.run(
        [LSTOPO, "--of", "xml", "--no-io", "--disallowed", *filters],
        env=lstopo_environment(unpacked_root),
        check=True,
        capture_output=True,
        text=True,
    )
    objects = ET.fromstring(done.stdout).iter("object")  # noqa: S314 - lstopo's own output
    sets = [it.attrib["cpuset"] for it in objects if it.get("type") == "Core"]
    masks = [
        "".join(word.removeprefix("0x").rjust(8, "0") for word in text.split(",")) for text in sets
    ]
    ours = in_slurms_order(discover(open_tree(str(root)), None))
    assert [frozenset(core.cpus) for core in ours] == [parse_mask(mask) for mask in masks]
