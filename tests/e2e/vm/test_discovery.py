"""A real kernel on a machine with many NUMA nodes, which are hardly ever at hand: affinityd in it.

The machine is virtual (hardware.py). What was seen in it (guest_discovery.py) is judged here.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from tests.e2e.vm.hardware import BARE_NODE, CPUS, GPU_NODES, MEMORY_NODE, NODES, cpus_of, distance
from tests.e2e.vm.reading import (
    Document,
    codes,
    cpulists,
    grouped,
    lscpu_rows,
    lstopo_nodes,
    lstopo_sets,
    numactl_distances,
    of_ranks,
    plan,
    sets,
)

#: The machine is looked at twice: with a CPU that is offline since it booted, and whole.
LOOKS = {"as booted": CPUS - 1, "whole": CPUS}

FIRST_TWO = "gpus=0,1&mode=node"  #: the GPUs of node 3
FIFTH = "gpus=4&mode=node"  #: a GPU of node 7, whose last CPU is offline at first


@pytest.fixture(params=LOOKS)
def look(request: pytest.FixtureRequest, seen: Document) -> Document:
    return {**seen[request.param], "CPUs": LOOKS[request.param]}


# The machine, as affinityd and others see it.


def test_the_machine_is_the_one_that_was_built(look: Document) -> None:
    topology = look["affinityd"]
    assert len(parse_list(topology["online"])) == look["CPUs"]
    assert topology["possible"] == f"0-{CPUS - 1}"
    found = [(gpu["vendor"], gpu["numa_node"]) for gpu in topology["gpus"]]
    assert found == [("amd", node) for node in GPU_NODES]


def test_cores_packages_caches_and_nodes_are_lscpus_and_lstopos(look: Document) -> None:
    topology, rows, lstopo = look["affinityd"], lscpu_rows(look["lscpu"]), look["lstopo"]
    by_core, by_package, by_node = (
        grouped((row[column], int(row[0])) for row in rows) for column in (1, 2, 3)
    )
    assert sets(topology["cores"]) == by_core == lstopo_sets(lstopo["core"])
    assert sets(topology["packages"]) == by_package == lstopo_sets(lstopo["package"])
    assert sets(node for node in topology["nodes"] if node["cpulist"]) == by_node
    cpus = [(core["llc"], cpu) for core in topology["cores"] for cpu in parse_list(core["cpulist"])]
    assert grouped(cpus) == lstopo_sets(lstopo["l3"])
    theirs = lstopo_nodes(lstopo["numanode"])
    # hwloc shows memory without CPUs as that of the CPUs which are nearest: all of a package.
    assert theirs.pop(MEMORY_NODE) == parse_list("0-15")
    nodes = {node["number"]: parse_list(node["cpulist"]) for node in topology["nodes"]}
    # It shows no node without memory.
    assert nodes == {**theirs, MEMORY_NODE: frozenset(), BARE_NODE: parse_list(cpus_of(BARE_NODE))}


def test_memory_and_distances_are_numactls_and_the_firmwares(look: Document) -> None:
    nodes = look["affinityd"]["nodes"]
    sizes = {str(node["number"]): str(node["memory_bytes"] >> 20) for node in nodes}
    assert sizes == dict(re.findall(r"^node (\d+) size: (\d+) MB$", look["numactl"], re.MULTILINE))
    assert [number for number, size in sizes.items() if size == "0"] == [str(BARE_NODE)]
    rows = {node["number"]: list(node["distances"].values()) for node in nodes}
    every = range(NODES + 1)
    assert rows == numactl_distances(look["numactl"])
    assert rows == {one: [distance(one, other) for other in every] for one in every}


def test_the_network_adapter_beside_a_gpu_is_nearest_to_it(look: Document) -> None:
    topology = look["affinityd"]
    nodes = {gpu["pci_bus_id"]: gpu["numa_node"] for gpu in topology["gpus"]}
    assert len(topology["nics"]) == len(set(GPU_NODES))
    for nic in topology["nics"]:
        assert len(nic["names"]) == 1
        near = {gpu for gpu, nearness in nic["nearness"].items() if nearness == "PHB"}
        assert near == {gpu for gpu, node in nodes.items() if node == nic["numa_node"]}


# What the daemon answers.


def test_the_daemons_socket_is_for_everybody(seen: Document) -> None:
    assert seen["socket"] == ["0o666", "0o755"]


#: What is asked → where the ranks are to run.
PLANS = {
    "mode=node": [cpus_of(node) for node in GPU_NODES],
    "gpus=0,1": ["12-13", "14-15"],
    "gpus=0&mode=all&scope=socket": ["0-15"],
    "gpus=0,1&scope=socket&share=requested": ["0-1,4-5,8-9,12-13", "2-3,6-7,10-11,14-15"],
    "gpus=all&mode=even": [cpus_of(node) for node in range(NODES)],
    "gpus=0,1,2&mode=core_complex": [cpus_of(3), cpus_of(3), cpus_of(1)],
    "gpus=0&cpuset=16-19": ["16-19"],
}


def test_ranks_are_planned_as_each_mode_says(seen: Document) -> None:
    assert {query: cpulists(plan(seen["plans"][query])) for query in PLANS} == PLANS
    even = plan(seen["plans"]["gpus=all&mode=even"])
    far = ["remote" if node != home else "local" for home, node in enumerate(GPU_NODES)]
    assert of_ranks(even, "locality") == far


def test_a_gpu_s_home_is_its_node_and_its_memory_a_nearest_one_s(seen: Document) -> None:
    planned = plan(seen["plans"]["mode=node"])
    assert of_ranks(planned, "home_node") == list(GPU_NODES)
    assert set(of_ranks(planned, "locality")) == {"local"}
    assert codes(planned) == []
    memory = dict(zip(GPU_NODES, of_ranks(planned, "memory_node"), strict=True))
    assert distance(BARE_NODE, memory.pop(BARE_NODE)) == 12
    assert all(node == own for own, node in memory.items())


# CPUs that come and go. The daemon asks for no event: it looks before each answer.

#: After which change → the CPUs of GPU 0 and 1, of GPU 4, all that are online, the generation.
MOMENTS = {
    "one offline since boot": (["12-15", "12-15"], ["28-30"], "0-30", 1),
    "all online": (["12-15", "12-15"], ["28-31"], "0-31", 2),
    "all online, remembered": (["12-15", "12-15"], ["28-31"], "0-31", 2),
    "one taken offline": (["13-15", "13-15"], ["28-31"], "0-11,13-31", 3),
    "a node taken offline": (["0-3", "4-7"], ["28-31"], "0-11,16-31", 4),
    "all back online": (["12-15", "12-15"], ["28-31"], "0-31", 5),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_next_answer_has_just_the_cpus_that_are_online(seen: Document, moment: str) -> None:
    """Every change is one generation, and the same question none."""
    first_two, fifth, online, generation = MOMENTS[moment]
    then = seen["hotplug"][moment]
    plans = [plan(then["answers"][query]) for query in (FIRST_TWO, FIFTH)]
    assert [cpulists(it) for it in plans] == [first_two, fifth]
    assert plans[0]["allowed"]["cpulist"] == then["node file"]["topology"]["online"] == online
    generations = {it["generation"] for it in (*plans, then["node file"])}
    assert generations == {generation}


def test_a_node_whose_cpus_are_all_offline_keeps_its_gpus_and_the_nearest_are_home(
    seen: Document,
) -> None:
    planned = plan(seen["hotplug"]["a node taken offline"]["answers"][FIRST_TWO])
    ranks = [(it["numa_node"], it["home_node"], it["locality"]) for it in planned["ranks"]]
    assert ranks == [(3, 0, "remote"), (3, 1, "remote")]
    assert codes(planned) == ["remote_home", "remote_home"]


# A snapshot, which leaves the machine.


@pytest.fixture(scope="module")
def archive(seen: Document, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("snapshot") / "node.tar.xz"
    path.write_bytes(base64.b64decode(seen["snapshot"]["archive"]))
    return path


def replayed(archive: Path, command: str, *arguments: str) -> Document:
    program = (sys.executable, "-m", "affinityd", command, "--root", str(archive))
    words = (*program, *arguments, "--format", "json")
    ended = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(ended.stdout))


def test_a_snapshot_and_its_plans_are_those_of_its_machine(seen: Document, archive: Path) -> None:
    assert replayed(archive, "topology") == {**seen["snapshot"]["topology"], "name": "node"}
    for arguments, there in seen["snapshot"]["plans"]:
        here = replayed(archive, "plan", *arguments)
        assert there["allowed"] == {"cpulist": "0-31", "source": "caller", "within": "0-31"}
        assert here["allowed"] == {"cpulist": "0-31", "source": "node", "within": None}
        assert {**here, "allowed": None} == {**there, "allowed": None, "node": "node"}


def test_a_snapshot_has_no_network_address(seen: Document, archive: Path) -> None:
    addresses = seen["snapshot"]["addresses"]
    assert len(addresses) == len(set(GPU_NODES))
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        files = [tar.extractfile(member) for member in members if member.isfile()]
        text = "\n".join(f"{member.name}\n{member.linkname}" for member in members)
        text += "".join(file.read().decode() for file in files if file)
    assert "0000:13:00.0" in text  # an adapter is in it
    for address in addresses:
        assert address not in text.lower()
        assert address.replace(":", "") not in text.lower()


# Signals.


def test_sighup_has_the_machine_read_anew_and_sigterm_leaves_no_socket(seen: Document) -> None:
    signals = seen["signals"]
    before, after = plan(signals["before"]), plan(signals["after SIGHUP"])
    assert after["generation"] == before["generation"] + 1
    assert [len(it["ranks"]) for it in (before, after)] == [len(GPU_NODES), len(GPU_NODES) - 1]
    # The kernel does not know the last one's node any more, which is its bridge's.
    last = after["ranks"][-1]
    assert last["numa_node"] == GPU_NODES[-1]
    assert "bridge" in last["reasons"][0]
    assert signals["status"] == 0
    assert "affinityd.sock" not in signals["left"]
    assert "node.json" in signals["left"]


# Troubles.


def test_a_cpu_that_comes_and_goes_in_a_storm_is_in_answers_only_while_it_is_there(
    seen: Document,
) -> None:
    changes, answers = seen["storm"]["changes"], seen["storm"]["answers"]
    ahead, beyond = (0.0, 0.0, True), (float("inf"), float("inf"), True)
    #: Since when a state may be seen, until when, and whether the CPU is online then.
    spells = [
        (began, until, online)
        for (began, _, online), (_, until, _) in pairwise([ahead, *changes, beyond])
    ]
    right = {True: "12-15\n12-15\n", False: "13-15\n13-15\n"}
    wrong = [
        answer
        for answer in answers
        if not any(
            answer[2:] == [200, right[online]]
            for since, until, online in spells
            if since <= answer[1] and answer[0] <= until
        )
    ]
    assert wrong == []
    assert {text for *_, text in answers} == set(right.values())
    assert len(changes) >= 4
    assert seen["storm"]["after"] == right[True]


def test_a_clock_that_jumps_changes_no_plan_and_no_scans_age(seen: Document) -> None:
    assert len(seen["clock"]) == 4
    for look in seen["clock"].values():
        assert (look["plan"], look["ready"]) == (seen["clock"]["before"]["plan"], 200)
        (age,) = look["ages"]
        assert 0 <= age < 100
