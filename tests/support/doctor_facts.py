"""Facts for the doctor's checks, of machines made for a test, and what a check finds in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from affinityd.cpuset import parse_list
from affinityd.discovery import discover, open_tree
from affinityd.discovery.nvml.report import NvmlReport
from affinityd.doctor.checks.registry import run_checks
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResult
from affinityd.topology.model import Topology
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import put, write_tree

CPU = "sys/devices/system/cpu"
PCI = "sys/bus/pci/devices"

#: Four CPUs and a GPU on each of two nodes.
TWO = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
#: The same GPUs where all CPUs are on one node.
ONE = made({0: "0-7"}, gpus=[0, 0])
NO_GPU = made({0: "0-3", 1: "4-7"}, gpus=[])

Files = Mapping[str, object]


def facts_of(
    root: Path,
    topology: Topology = TWO,
    files: Files | None = None,
    *,
    reserved: str = "",
    nvml: NvmlReport | None = None,
) -> NodeFacts:
    """Write a machine with these files besides its own, and return what is to be judged of it."""
    write_tree(topology, root)
    for path, text in (files or {}).items():
        put(root / path, text)
    tree = open_tree(str(root))
    return NodeFacts(discover(tree, nvml), tree, parse_list(reserved), nvml)


@dataclass(frozen=True)
class Expected:
    """A finding, by parts of its sentences; no remedy: it has none."""

    status: str
    found: str
    remedy: str | None = None
    gpus: tuple[int, ...] = ()

    def of(self, finding: CheckResult) -> Expected:
        """Return a finding as what was expected, wherever it has those parts."""
        has_found = self.found in finding.found
        has_remedy = self.remedy and finding.remedy and self.remedy in finding.remedy
        return replace(
            self,
            status=finding.status,
            found=self.found if has_found else finding.found,
            remedy=self.remedy if has_remedy else finding.remedy,
            gpus=finding.gpus,
        )


def check(name: str, facts: NodeFacts, *expected: Expected) -> None:
    """Hold that a check finds just this."""
    found = run_checks(facts, [name])
    assert len(found) == len(expected), found
    assert [one.of(its) for one, its in zip(expected, found, strict=True)] == list(expected)


def well(found: str) -> Expected:
    return Expected("ok", found)


def n_a(why: str) -> Expected:
    return Expected("n/a", why)
