"""What public planners answer on the same machines; collected where their answers are at hand.

A folder `shared/conformance` beside the checkout holds them: `cases.json` has machines and plans,
`visible.json` what a driver makes of values of CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from affinityd.request.devices import ComputeDevice, VisibleDevices
from affinityd.request.visible_devices import read_visible
from affinityd.topology.model import Core, Gpu, NumaNode, Topology
from tests.support.asking import ask, cpulists
from tests.support.paths import REPOSITORY

HERE = REPOSITORY.parent / "shared" / "conformance"

Case = dict[str, Any]

CASES: dict[str, Any] = json.loads((HERE / "cases.json").read_text())
VISIBLE: dict[str, Any] = json.loads((HERE / "visible.json").read_text())

VENDORS = {"0x10de": "nvidia", "0x19e5": "huawei"}
#: The parameters of a request that a case may have, by the names of both.
PARAMETERS = (
    "mode",
    "scope",
    "multithreading",
    "balanced",
    "min_physical_cores",
    "max_physical_cores",
    "cpuset",
)


def _topology(facts: Case) -> Topology:
    groups = {(core["node"], core["llc"]): core["cpus"] for core in reversed(facts["cores"])}
    return Topology(
        name=facts["name"],
        cores=tuple(
            Core(
                tuple(core["cpus"]),
                core["node"],
                core["package"],
                None,
                min(groups[core["node"], core["llc"]]),
            )
            for core in facts["cores"]
        ),
        nodes=tuple(
            NumaNode(node, None, dict(enumerate(facts["distances"][node])))
            for node in range(facts["nodes"])
        ),
        gpus=tuple(
            Gpu(index, VENDORS[gpu["vendor"]], gpu["pci"], gpu["node"])
            for index, gpu in enumerate(facts["gpus"])
        ),
    )


MACHINES = {facts["name"]: _topology(facts) for facts in CASES["machines"]}


def _groups(cases: Iterable[Case]) -> dict[str, list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        parts = (case[name] for name in ("peer", "mode", "scope", "multithreading") if name in case)
        groups.setdefault(" ".join(parts), []).append(case)
    return groups


GROUPS = _groups(CASES["cases"])


def _mismatches(cases: Iterable[Case]) -> Iterator[str]:
    for case in cases:
        asked = {name: str(case[name]) for name in PARAMETERS if case.get(name) is not None}
        gpus = ",".join(map(str, case["gpus"]))
        got = cpulists(ask(MACHINES[case["machine"]], gpus=gpus, share="requested", **asked))
        if got != case["expected"]:
            yield f"{case}: {got}"


@pytest.mark.parametrize("group", GROUPS)
def test_plans_are_those_of_the_public_planner(group: str) -> None:
    assert list(_mismatches(GROUPS[group])) == []


def test_all_721_plans_are_compared() -> None:
    assert sum(map(len, GROUPS.values())) == 721


DEVICES = tuple(
    ComputeDevice(Gpu(index, "nvidia", "0000:00:00.0", None, uuid=uuid))
    for index, uuid in enumerate(VISIBLE["uuids"])
)


@pytest.mark.parametrize("case", VISIBLE["cases"], ids=lambda case: repr(case["visible"]))
def test_a_visible_device_list_is_read_as_by_the_driver(case: Case) -> None:
    given = VisibleDevices(dict(enumerate(DEVICES)), DEVICES, by_name=False)
    seen = read_visible(case["visible"], given).by_index.values()
    assert [device.gpu.index for device in seen] == case["devices"]


def test_all_48_visible_device_lists_are_compared() -> None:
    assert len(VISIBLE["cases"]) == 48
