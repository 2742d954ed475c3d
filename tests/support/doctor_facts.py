"""Makes the facts of machines for the doctor's checks, and compares the findings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from affinityd.cpuset import format_list, parse_list
from affinityd.discovery.nvml import NvmlReport
from affinityd.doctor.checks import run_checks
from affinityd.doctor.facts import CheckResult, NodeFacts
from affinityd.topology.model import Topology
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import tree_of

CPU = "sys/devices/system/cpu"
PCI = "sys/bus/pci/devices"

#: Four CPUs and a GPU on each of two nodes.
TWO = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
#: The same GPUs on a machine with all CPUs on one node.
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
    present = {f"{CPU}/present": format_list(topology.possible | topology.online)}
    return NodeFacts(
        topology, tree_of(root, {**present, **(files or {})}), parse_list(reserved), nvml
    )


def check(name: str, facts: NodeFacts, *expected: str) -> None:
    """Run a check of the doctor, which must have exactly the expected findings.

    A finding is `ok: FOUND` or `warn 0-1: FOUND → REMEDY`, with GPU indices and parts of sentences.
    """
    compare(run_checks(facts, [name]), expected)


def compare(findings: Sequence[CheckResult], expected: Sequence[str]) -> None:
    """Check that these are exactly the expected findings, which are written as for `check`."""
    assert len(findings) == len(expected), findings
    for finding, text in zip(findings, expected, strict=True):
        head, _, sentences = text.partition(": ")
        status, _, gpus = head.partition(" ")
        found, _, remedy = sentences.partition(" → ")
        assert (finding.status, finding.gpus) == (status, tuple(sorted(parse_list(gpus)))), finding
        assert found in finding.found
        assert remedy in (finding.remedy or "")
        assert bool(finding.remedy) == bool(remedy)
