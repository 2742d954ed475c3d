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
from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from tests.e2e.vm.hardware import (
    BARE_NODE,
    CPUS,
    GPU_NODES,
    MEMORY_NODE,
    NODES,
    cpus_of,
    distance,
)
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
    own_plan,
    plan,
    sets,
)

#: The machine is looked at twice: with a CPU that is offline since it booted, and whole.
LOOKS = {"as booted": CPUS - 1, "whole": CPUS}

FIRST_TWO = "gpus=0,1&mode=node"  #: the GPUs of node 3
FIFTH = "gpus=4&mode=node"  #: a GPU of node 7, whose last CPU is offline at first


@pytest.fixture(params=LOOKS)
def look(request: pytest.FixtureRequest, seen: Document) -> Document:
    return dict(seen[request.param])


# The machine, as affinityd and others see it.


@pytest.mark.parametrize("name", LOOKS)
def test_the_machine_is_the_one_that_was_built(seen: Document, name: str) -> None:
    topology = seen[name]["affinityd"]
    assert len(parse_list(topology["online"])) == LOOKS[name]
    assert topology["possible"] == f"0-{CPUS - 1}"
    assert tuple(gpu["numa_node"] for gpu in topology["gpus"]) == GPU_NODES
    assert {gpu["vendor"] for gpu in topology["gpus"]} == {"amd"}


def test_cores_packages_and_nodes_are_lscpus(look: Document) -> None:
    topology, rows = look["affinityd"], lscpu_rows(look["lscpu"])
    assert sets(topology["cores"]) == grouped((core, int(cpu)) for cpu, core, _, _ in rows)
    assert sets(topology["packages"]) == grouped((place, int(cpu)) for cpu, _, place, _ in rows)
    with_cpus = [node for node in topology["nodes"] if node["cpulist"]]
    assert sets(with_cpus) == grouped((node, int(cpu)) for cpu, _, _, node in rows)


def test_cores_packages_and_caches_are_lstopos(look: Document) -> None:
    topology, lstopo = look["affinityd"], look["lstopo"]
    assert sets(topology["cores"]) == lstopo_sets(lstopo["core"])
    assert sets(topology["packages"]) == lstopo_sets(lstopo["package"])
    cpus = [(core["llc"], cpu) for core in topology["cores"] for cpu in parse_list(core["cpulist"])]
    assert grouped(cpus) == lstopo_sets(lstopo["l3"])


def test_numa_nodes_are_lstopos(look: Document) -> None:
    theirs = lstopo_nodes(look["lstopo"]["numanode"])
    # hwloc shows memory without CPUs as that of the CPUs which are nearest: all of a package.
    assert theirs.pop(MEMORY_NODE) == parse_list("0-15")
    nodes = {node["number"]: parse_list(node["cpulist"]) for node in look["affinityd"]["nodes"]}
    # It shows no node without memory.
    assert nodes == {**theirs, MEMORY_NODE: frozenset(), BARE_NODE: parse_list(cpus_of(BARE_NODE))}


def test_a_node_without_memory_is_numactls(look: Document) -> None:
    sizes = {node["number"]: node["memory_bytes"] for node in look["affinityd"]["nodes"]}
    theirs = dict(re.findall(r"^node (\d+) size: (\d+) MB$", look["numactl"], re.MULTILINE))
    assert {number: size >> 20 for number, size in sizes.items()} == {
        int(number): int(size) for number, size in theirs.items()
    }
    assert [number for number, size in sizes.items() if size == 0] == [BARE_NODE]


def test_distances_are_numactls_and_the_firmwares(look: Document) -> None:
    ours = {node["number"]: list(node["distances"].values()) for node in look["affinityd"]["nodes"]}
    everywhere = range(NODES + 1)
    assert ours == numactl_distances(look["numactl"])
    assert ours == {one: [distance(one, other) for other in everywhere] for one in everywhere}


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


def test_each_gpu_is_given_the_cpus_of_its_own_node(seen: Document) -> None:
    planned = plan(seen["plans"]["mode=node"])
    assert cpulists(planned) == [cpus_of(node) for node in GPU_NODES]
    assert of_ranks(planned, "home_node") == list(GPU_NODES)
    assert set(of_ranks(planned, "locality")) == {"local"}
    assert codes(planned) == []


def test_the_memory_of_a_gpu_whose_node_has_none_is_a_nearest_ones(seen: Document) -> None:
    planned = plan(seen["plans"]["mode=node"])
    memory = dict(zip(GPU_NODES, of_ranks(planned, "memory_node"), strict=True))
    assert distance(BARE_NODE, memory.pop(BARE_NODE)) == 12
    assert all(node == own for own, node in memory.items())


def test_two_gpus_of_a_node_divide_its_cores(seen: Document) -> None:
    query = "gpus=0,1&mode=unique_contiguous&share=requested&format=cpulist"
    assert seen["plans"][query]["text"] == "12-13\n14-15\n"
    assert cpulists(plan(seen["plans"]["gpus=0,1"])) == ["12-13", "14-15"]


def test_a_socket_is_the_nodes_of_a_package(seen: Document) -> None:
    assert cpulists(plan(seen["plans"]["gpus=0&mode=all&scope=socket"])) == ["0-15"]


def test_the_other_cores_of_a_socket_are_dealt_to_its_near_ones(seen: Document) -> None:
    planned = plan(seen["plans"]["gpus=0,1&scope=socket&share=requested"])
    assert cpulists(planned) == ["0-1,4-5,8-9,12-13", "2-3,6-7,10-11,14-15"]


def test_even_cuts_the_machine_wherever_the_gpus_are(seen: Document) -> None:
    planned = plan(seen["plans"]["gpus=all&mode=even"])
    assert cpulists(planned) == [cpus_of(node) for node in range(NODES)]
    far = ["remote" if node != home else "local" for home, node in enumerate(GPU_NODES)]
    assert of_ranks(planned, "locality") == far


def test_core_complex_gives_the_cache_of_the_gpus_node(seen: Document) -> None:
    planned = plan(seen["plans"]["gpus=0,1,2&mode=core_complex"])
    assert cpulists(planned) == [cpus_of(3), cpus_of(3), cpus_of(1)]


# CPUs that come and go. The daemon asks for no event: it looks before each answer.

#: After which change → the CPUs of GPU 0 and 1, of GPU 4, and all that are online.
MOMENTS = {
    "one offline since boot": (["12-15", "12-15"], ["28-30"], "0-30"),
    "all online": (["12-15", "12-15"], ["28-31"], "0-31"),
    "one taken offline": (["13-15", "13-15"], ["28-31"], "0-11,13-31"),
    "a node taken offline": (["0-3", "4-7"], ["28-31"], "0-11,16-31"),
    "all back online": (["12-15", "12-15"], ["28-31"], "0-31"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_next_answer_has_just_the_cpus_that_are_online(seen: Document, moment: str) -> None:
    first_two, fifth, online = MOMENTS[moment]
    answers = seen["hotplug"][moment]["answers"]
    assert cpulists(plan(answers[FIRST_TWO])) == first_two
    assert cpulists(plan(answers[FIFTH])) == fifth
    assert plan(answers[FIRST_TWO])["allowed"]["cpulist"] == online
    assert seen["hotplug"][moment]["node file"]["topology"]["online"] == online


def test_every_change_is_one_generation_and_the_same_question_none(seen: Document) -> None:
    generations = [1, 2, 2, 3, 4, 5]
    moments = seen["hotplug"].values()
    for query in (FIRST_TWO, FIFTH):
        answered = [plan(moment["answers"][query])["generation"] for moment in moments]
        assert answered == generations
    assert [moment["node file"]["generation"] for moment in moments] == generations


def test_a_node_whose_cpus_are_all_offline_keeps_its_gpus_and_the_nearest_are_home(
    seen: Document,
) -> None:
    planned = plan(seen["hotplug"]["a node taken offline"]["answers"][FIRST_TWO])
    assert of_ranks(planned, "numa_node") == [3, 3]
    assert of_ranks(planned, "home_node") == [0, 1]
    assert of_ranks(planned, "locality") == ["remote", "remote"]
    assert codes(planned) == ["remote_home", "remote_home"]


# Jobs, which plan for themselves.

#: Which job → the CPUs that it may use, those that it is given for GPU 0, and where they are.
JOBS = {
    "a mask on the other package": ("16-19", "16-19", 4, "remote"),
    "a cpuset on the GPU's node": ("12-13", "12-13", 3, "local"),
    "a cpuset near and far": ("0-3,28-31", "0-3", 0, "remote"),
    "a mask in a cpuset": ("10-13", "12-13", 3, "local"),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_is_planned_on_what_it_may_use(seen: Document, job: str) -> None:
    allowed, cpulist, home, locality = JOBS[job]
    planned = own_plan(seen["jobs"][job])
    assert (planned["allowed"]["cpulist"], planned["allowed"]["source"]) == (allowed, "caller")
    assert cpulists(planned) == [cpulist]
    assert of_ranks(planned, "home_node") == [home]
    assert of_ranks(planned, "locality") == [locality]
    assert codes(planned) == ["remote_home"] * (locality == "remote")


def test_a_job_far_from_its_gpu_is_refused_in_one_line_if_it_is_strict(seen: Document) -> None:
    ended = seen["jobs"]["a mask on the other package, strict"]
    assert ended["status"] == 1
    assert ended["stdout"] == ""
    assert re.fullmatch(r"affinityd plan: strict: .*node 3.*node 4.*\n", ended["stderr"])


def test_a_jobs_own_plan_is_the_daemons_for_its_cpus(seen: Document) -> None:
    own = own_plan(seen["jobs"]["a mask on the other package"])
    assert own["ranks"] == plan(seen["plans"]["gpus=0&cpuset=16-19"])["ranks"]
    refused = json.loads(seen["plans"]["gpus=0&cpuset=16-19&strict=true"]["text"])
    assert refused["status"] == 409
    assert refused["detail"] in seen["jobs"]["a mask on the other package, strict"]["stderr"]


# A snapshot, which leaves the machine.


@pytest.fixture(scope="module")
def archive(seen: Document, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("snapshot") / "node.tar.xz"
    path.write_bytes(base64.b64decode(seen["snapshot"]["archive"]))
    return path


def replayed(archive: Path, command: str, *arguments: str) -> Document:
    program = (sys.executable, "-m", "affinityd", command, "--root", str(archive))
    ended = subprocess.run(
        [*program, *arguments, "--format", "json"], check=True, stdout=subprocess.PIPE, text=True
    )
    return dict(json.loads(ended.stdout))


def test_a_snapshot_is_the_machine_it_was_taken_of(seen: Document, archive: Path) -> None:
    topology = replayed(archive, "topology")
    assert topology["name"] == "node"
    assert topology == {**seen["snapshot"]["topology"], "name": "node"}


def test_plans_on_a_snapshot_are_those_of_its_machine(seen: Document, archive: Path) -> None:
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


def test_sighup_has_the_machine_read_anew(seen: Document) -> None:
    before, after = plan(seen["signals"]["before"]), plan(seen["signals"]["after SIGHUP"])
    assert len(before["ranks"]) == len(GPU_NODES)
    assert len(after["ranks"]) == len(GPU_NODES) - 1
    assert after["generation"] == before["generation"] + 1


def test_a_gpu_whose_node_the_kernel_does_not_know_is_where_its_bridge_is(seen: Document) -> None:
    last = plan(seen["signals"]["after SIGHUP"])["ranks"][-1]
    assert last["numa_node"] == GPU_NODES[-1]
    assert "bridge" in last["reasons"][0]


def test_sigterm_is_a_good_end_that_leaves_no_socket(seen: Document) -> None:
    assert seen["signals"]["status"] == 0
    assert "affinityd.sock" not in seen["signals"]["left"]
    assert "node.json" in seen["signals"]["left"]


# Troubles.


def test_a_cpu_that_comes_and_goes_in_a_storm_is_in_answers_only_while_it_is_there(
    seen: Document,
) -> None:
    changes = seen["storm"]["changes"]
    #: Since when a state may be seen, until when, and whether the CPU is online then.
    spells = [(0.0, changes[0][1], True)] + [
        (began, after[1], online)
        for (began, _, online), after in zip(
            changes, [*changes[1:], (0, float("inf"))], strict=True
        )
    ]
    right = {True: "12-15\n12-15\n", False: "13-15\n13-15\n"}
    wrong = [
        answer
        for answer in seen["storm"]["answers"]
        if not any(
            answer[2:] == [200, right[online]]
            for since, until, online in spells
            if since <= answer[1] and answer[0] <= until
        )
    ]
    assert wrong == []
    assert {text for *_, text in seen["storm"]["answers"]} == set(right.values())
    assert len(changes) >= 4
    assert seen["storm"]["after"] == right[True]


def test_a_clock_that_jumps_changes_no_plan_and_no_scans_age(seen: Document) -> None:
    assert len(seen["clock"]) == 4
    before = seen["clock"]["before"]
    for look in seen["clock"].values():
        assert (look["plan"], look["ready"]) == (before["plan"], 200)
        (age,) = look["ages"]
        assert 0 <= age < 100
