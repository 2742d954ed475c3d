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


def own_plan(ended: Document) -> Document:
    """Return the plan that a command printed; it must have ended well."""
    assert ended["status"] == 0, ended["stderr"]
    return dict(json.loads(ended["stdout"]))


def mask(ended: Document) -> str:
    """Return where a command may run, by its /proc/self/status; it must have ended well."""
    assert ended["status"] == 0, ended["stderr"]
    return str(re.findall(r"^Cpus_allowed_list:\t(.*)$", ended["stdout"], re.MULTILINE)[0])


def told(ended: Document) -> dict[str, str]:
    """Return what a command was told by its environment, which it printed last."""
    entries = ended["stdout"].rpartition("\n")[2].split("\0")
    pairs = (entry.partition("=")[::2] for entry in entries)
    return {name: text for name, text in pairs if name.startswith("AFFINITYD_")}


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


def numactl_policy(text: str) -> tuple[str, str]:
    """Return the memory policy of `numactl --show`, and its nodes."""
    rows = dict(re.findall(r"^(policy|preferred):(.*)$", text, re.MULTILINE))
    return rows["policy"].strip(), rows["preferred"].strip()


def mapped(text: str) -> tuple[str, dict[int, int]]:
    """Return a mapping's memory policy, and its pages by node, as the last line of a text has it.

    The line is one of /proc/PID/numa_maps, numa(7).
    """
    line = text.splitlines()[-1]
    policy, _, rest = line.partition(" ")[2].partition(" anon=")
    return policy, {int(node): int(count) for node, count in re.findall(r" N(\d+)=(\d+)", rest)}


def threads(verified: Document) -> list[tuple[str, str]]:
    """Return the placement and the mask of each thread of a document of `affinityd verify`."""
    processes = json.loads(verified["stdout"])["processes"]
    return [(it["placement"], it["cpulist"]) for each in processes for it in each["threads"]]
