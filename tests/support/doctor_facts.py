"""Facts for the doctor's checks, of machines made for a test, and what a check finds in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from affinityd.cpuset import format_list, parse_list
from affinityd.discovery.nvml.report import NvmlReport
from affinityd.doctor.checks.registry import run_checks
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResult
from affinityd.topology.model import Topology
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import tree_of

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
    """Return what is to be judged of a machine with these files besides those of its CPUs."""
    present = {f"{CPU}/present": format_list(topology.possible | topology.online)}
    return NodeFacts(
        topology, tree_of(root, {**present, **(files or {})}), parse_list(reserved), nvml
    )


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


def expect(text: str) -> Expected:
    """Read `ok: found`, or `warn 0-1: found → remedy`, where the numbers are those of GPUs."""
    head, _, sentences = text.partition(": ")
    status, _, gpus = head.partition(" ")
    found, _, remedy = sentences.partition(" → ")
    return Expected(status, found, remedy or None, tuple(sorted(parse_list(gpus))))


def check(name: str, facts: NodeFacts, *expected: str | Expected) -> None:
    """Hold that a check finds just this."""
    wanted = [expect(it) if isinstance(it, str) else it for it in expected]
    found = run_checks(facts, [name])
    assert len(found) == len(wanted), found
    assert [one.of(its) for one, its in zip(wanted, found, strict=True)] == wanted


def n_a(why: str) -> Expected:
    return Expected("n/a", why)
