"""Plans equal the answers of public planners that tests/data/conformance records."""

import json
from typing import Any

import pytest

from affinityd.request.devices import ComputeDevice, VisibleDevices, read_visible
from affinityd.topology.model import Core, Gpu, NumaNode, Topology
from tests.support.asking import ask, cpulists
from tests.support.paths import REPOSITORY

HERE = REPOSITORY / "tests/data/conformance"

Case = dict[str, Any]

CASES: dict[str, Any] = json.loads((HERE / "cases.json").read_text())
VISIBLE: dict[str, Any] = json.loads((HERE / "visible.json").read_text())

VENDORS = {"0x10de": "nvidia", "0x19e5": "huawei"}
#: The parameters of a case, which have the same names in a request.
PARAMETERS = (
    *("mode", "scope", "multithreading", "balanced", "cpuset"),
    *("min_physical_cores", "max_physical_cores"),
)


def _topology(facts: Case) -> Topology:
    caches: dict[tuple[int, int], int] = {}
    for core in facts["cores"]:
        caches.setdefault((core["node"], core["llc"]), min(core["cpus"]))
    cores = (
        Core(
            tuple(core["cpus"]),
            core["node"],
            core["package"],
            None,
            caches[core["node"], core["llc"]],
        )
        for core in facts["cores"]
    )
    nodes = (
        NumaNode(node, None, dict(enumerate(facts["distances"][node])))
        for node in range(facts["nodes"])
    )
    gpus = (
        Gpu(index, VENDORS[gpu["vendor"]], gpu["pci"], gpu["node"])
        for index, gpu in enumerate(facts["gpus"])
    )
    return Topology(facts["name"], tuple(cores), tuple(nodes), tuple(gpus))


MACHINES = {facts["name"]: _topology(facts) for facts in CASES["machines"]}


def _answer(case: Case) -> list[str]:
    asked = {name: str(case[name]) for name in PARAMETERS if case.get(name) is not None}
    gpus = ",".join(map(str, case["gpus"]))
    return cpulists(ask(MACHINES[case["machine"]], gpus=gpus, share="requested", **asked))


@pytest.mark.parametrize("mode", sorted({case["mode"] for case in CASES["cases"]}))
def test_plans_are_those_of_the_public_planner(mode: str) -> None:
    cases = [case for case in CASES["cases"] if case["mode"] == mode]
    assert [case for case in cases if _answer(case) != case["expected"]] == []


DEVICES = tuple(
    ComputeDevice(Gpu(index, "nvidia", "0000:00:00.0", None, uuid=uuid))
    for index, uuid in enumerate(VISIBLE["uuids"])
)


@pytest.mark.parametrize("case", VISIBLE["cases"], ids=lambda case: repr(case["visible"]))
def test_a_visible_device_list_is_read_as_by_the_driver(case: Case) -> None:
    every = VisibleDevices(dict(enumerate(DEVICES)), DEVICES)
    seen = read_visible(case["visible"], every).by_index.values()
    assert [device.gpu.index for device in seen] == case["devices"]
