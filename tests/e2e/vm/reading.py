"""What a guest's report says, in the words of its tests."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from affinityd.cpuset import CpuSet, parse_list, parse_mask

Document = dict[str, Any]


def plan(reply: Document) -> Document:
    """Return the plan that the daemon answered; it must be one."""
    assert reply["status"] == 200, reply["text"]
    return dict(json.loads(reply["text"]))


def of_ranks(planned: Document, key: str) -> list[Any]:
    """Return what a plan says under one key, rank by rank."""
    return [rank[key] for rank in planned["ranks"]]


def cpulists(planned: Document) -> list[Any]:
    return of_ranks(planned, "cpulist")


def codes(planned: Document) -> list[str]:
    """Return the codes of a plan's warnings."""
    return [warning["code"] for warning in planned["warnings"]]


def sets(items: Iterable[Document]) -> set[CpuSet]:
    """Return the CPUs of each item of a topology."""
    return {parse_list(item["cpulist"]) for item in items}


def grouped(pairs: Iterable[tuple[object, int]]) -> set[CpuSet]:
    """Return the CPUs that have the same key, for every key."""
    groups: dict[object, set[int]] = defaultdict(set)
    for key, cpu in pairs:
        groups[key].add(cpu)
    return set(map(frozenset, groups.values()))


def lstopo_sets(text: str) -> set[CpuSet]:
    """Return the CPUs of each object that `lstopo --cpuset` printed."""
    return {parse_mask(mask) for mask in re.findall(r"cpuset=(\S+)", text)}


def lstopo_nodes(text: str) -> dict[int, CpuSet]:
    """Return the CPUs of each NUMA node by its number."""
    found = re.findall(r"P#(\d+).* cpuset=(\S+)", text)
    return {int(number): parse_mask(mask) for number, mask in found}


def lscpu_rows(text: str) -> list[list[str]]:
    """Return the columns of each CPU."""
    return [line.split(",") for line in text.splitlines() if not line.startswith("#")]


def numactl_distances(text: str) -> dict[int, list[int]]:
    """Return each node's row of `numactl -H`."""
    rows = re.findall(r"^ +(\d+):(.*)$", text.partition("node distances:")[2], re.MULTILINE)
    return {int(node): [int(value) for value in values.split()] for node, values in rows}


# What guests' scripts say of what they ran.

#: What they gave a command, and were not told by it.
GIVEN = ("TIMEOUT", "SOCKET", "MODE")


def place(ended: Document) -> dict[str, str]:
    """Return where a command was, what it was told, without the prefix, and what was said.

    It printed its /proc/self/status, and its environment last.
    """
    status, _, environ = ended["stdout"].rpartition("\n")
    mask = re.findall(r"^Cpus_allowed_list:\t(.*)$", status, re.MULTILINE)
    told = dict(re.findall(r"(?:^|\0)AFFINITYD_(\w+)=([^\0]*)", environ))
    told = {name: text for name, text in told.items() if name not in GIVEN}
    return {"mask": "".join(mask), **told, "said": ended["stderr"]}


def filled(ended: Document) -> dict[str, Any]:
    """Return the memory policy of a command by numactl and by numa_maps, and its pages by node.

    It printed `numactl --show`, and last the line of its largest mapping: numa(7).
    """
    shown, _, line = ended["stdout"].rstrip("\n").rpartition("\n")
    by_numactl = dict(re.findall(r"^(policy|preferred): ?(.*?) *$", shown, re.MULTILINE))
    policy, _, pages = line.partition(" ")[2].partition(" anon=")
    found = {node: int(count) for node, count in re.findall(r" N(\d+)=(\d+)", pages)}
    said = ended["stderr"].splitlines()
    return {**by_numactl, "maps": policy, "pages": found, "said": said, "status": ended["status"]}


def plans(metrics: str) -> float:
    """Return how many plans a daemon has made."""
    return sum(map(float, re.findall(r"^affinityd_plans_total\{.*\} (.*)$", metrics, re.MULTILINE)))
