"""Remedies of mismatches: sentences with commands and settings that exist."""

import re
from dataclasses import replace

import pytest

from affinityd.audit.judge import Judge
from affinityd.audit.model import ContainerResources, Membership, ProcessFacts
from affinityd.audit.remedies import Remedies, pod_remedy, pod_was_given
from affinityd.cpuset import parse_list
from affinityd.topology.model import Topology
from affinityd.topology.nearness import vicinity
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB, process, scan_of
from tests.support.machines.by_hand import made

TWO = made({0: "0-3", 1: "4-7"}, gpus=[1, 0])
THREE = made({0: "0-3", 1: "4-7", 2: "8-11"}, gpus=[1, 0])  #: node 2 has no GPU
APART = made({0: "0-3", 1: "4-7", 2: "8-11"}, gpus=[1, 2])
PLACE = "GPU 0 is on node 1, near CPUs 4-7"
BOTH = "GPUs 0-1 are on nodes 1-2, near CPUs 4-11"
PCI, OTHER_PCI = "0000:10:00.0", "0000:11:00.0"
GPU, OTHER = ("nvidia", 0), ("nvidia", 1)


def remedies(*processes: ProcessFacts, topology: Topology = TWO) -> list[str | None]:
    judged = [Judge(topology).judge(facts) for facts in processes]
    known = Remedies(topology, scan_of(topology, *judged))
    return [*map(known.of, judged)]


GRES = "have gres.conf as affinityd slurm gres-conf prints it, and submit with"
KUBELET = "set kubelet's topologyManagerPolicy: {policy} and cpuManagerPolicy: static, and give"
CHOOSE = "has no CPU there: set a cpuset with near CPUs"
GUARANTEED = "the pod whole CPUs in the Guaranteed QoS class, and start the pod again"


@pytest.mark.parametrize(
    ("membership", "said"),
    [
        (SLURM_JOB, f"job was given no CPU there: {GRES} --gres-flags=enforce-binding"),
        (KUBERNETES_POD, f"pod was given no CPU there: {KUBELET} {GUARANTEED}"),
        (LONE_CONTAINER, f"cpuset, 0-3 (container cd34cd34cd34), {CHOOSE}"),
        (Membership(), f"cpuset, 0-3, {CHOOSE}"),
    ],
)
def test_the_remedy_for_an_allocation_depends_on_what_made_it(
    membership: Membership, said: str
) -> None:
    far = process("0-3", cpuset="0-3", membership=membership)
    beside = replace(far, beside=(OTHER,))
    policies = ("single-numa-node (or restricted)", "restricted")
    of_one, of_two = (said.format(policy=policy) for policy in policies)
    assert remedies(far) == [f"{PLACE}, and its {of_one}"]
    assert remedies(beside, topology=APART) == [f"{BOTH}, and its {of_two}"]


IN_CPUSET = "and its cpuset has CPUs there"


MASK = f"{PLACE}, {IN_CPUSET}"


@pytest.mark.parametrize(
    ("masks", "why", "options"),
    [
        (["0-3", "0-3"], MASK, ""),
        # Without --force, a thread with another mask than the main thread's is left alone.
        (["4-7", "0-2"], MASK, "--force "),
        (["0-3", "1"], MASK, ""),
        (["0-7"], f"it may run on every CPU, and {PLACE}; start it with affinityd exec", ""),
    ],
)
def test_a_pin_names_gpus_by_names_that_are_valid_in_every_container(
    masks: list[str], why: str, options: str
) -> None:
    facts = process(*masks, cpuset="0-7")
    for name, uuid in (("GPU-8a1f0c3e", "GPU-8a1f0c3e"), (PCI, None)):
        topology = replace(TWO, gpus=(replace(TWO.gpus[0], uuid=uuid),))
        pin = f"affinityd pin {options}--gpus {name} 100"
        assert remedies(facts, topology=topology) == [f"{why}; {pin} fixes it now"]


def test_the_remedy_for_a_pod_is_its_label() -> None:
    """No command in the daemon's own container may pin another pod's process."""
    (remedy,) = remedies(process("0-3", cpuset="0-7", membership=KUBERNETES_POD))
    assert remedy is not None
    assert remedy.startswith(f"{MASK}; label the pod affinityd=on, ")
    assert "affinityd pin" not in remedy


RANK = process("0-3")
RANK_OF_TWO = process("8-9", beside=(OTHER,))


def worker(mask: str, pid: int = 200, parent: int = 100) -> ProcessFacts:
    return process(mask, pid=pid, parent=parent, holder=100)


def below(pid: int, parent: int, mask: str = "0-3", gpu: tuple[str, int] = GPU) -> ProcessFacts:
    return process(mask, pid=pid, parent=parent, gpu=gpu)


WITH_WORKER = [RANK, worker("0-3")]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([*WITH_WORKER, worker("0-3", 201, 200)], ["--tree 0 100"] * 3),
        ([process("4-7"), worker("0-3")], [None, "--tree --force 0 100"]),
        # Workers that are near need no force.
        ([RANK, worker("4-7"), worker("4-5", 201)], ["--tree 0 100", None, None]),
        # A descendant holds another GPU, or the same one, or has a descendant with another GPU.
        ([*WITH_WORKER, below(300, 200, "4-7", OTHER)], ["0 100", "0 200", "1 300"]),
        ([*WITH_WORKER, below(300, 200)], ["--tree 0 100", "--tree 0 100", "0 300"]),
        ([RANK, below(300, 100), below(400, 300, "4-7", OTHER)], ["0 100", "0 300", "1 400"]),
        ([worker("0-3")], ["0 200"]),  # the worker's rank was not read
        ([RANK_OF_TWO, replace(worker("8-9"), beside=(OTHER,))], ["--tree 0,1 100"] * 2),
        # The search ends though the parents seem to go in a circle.
        ([below(100, 200), below(200, 100)], ["0 100", "0 200"]),
    ],
)
def test_one_remedy_pins_a_process_with_its_family(
    found: list[ProcessFacts], expected: list[str | None]
) -> None:
    said = (it or "" for it in remedies(*found, topology=THREE))
    pinned = (re.search("affinityd pin (.*) fixes it now", it) for it in said)
    pins = [it and it[1].replace(PCI, "0").replace(OTHER_PCI, "1") for it in pinned]
    assert [it and it.replace("--gpus ", "") for it in pins] == expected


COMPUTES = "it may still compute: ask its user, and end it when its CPU time (ps -o time= PID)"
WAIT = "check process 50, which must wait(2) for it or end"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (RANK, COMPUTES),
        (process("0-3", "0-3", state="Z"), COMPUTES),  # only its main thread has ended
        (process("0-3", state="Z"), WAIT),
        (process("0-3", state="Z", parent=1), ""),  # init must reap it
        (process("0-3", state="X"), "reset the GPU when no other process uses it"),
    ],
)
def test_no_remedy_ends_an_orphan_that_still_computes(facts: ProcessFacts, said: str) -> None:
    orphan = replace(Judge(TWO).judge(facts), orphan="its job has ended")
    end = Remedies(TWO, scan_of(TWO, orphan)).end(orphan) or ""
    assert (end.startswith(said), bool(end)) == (True, bool(said))


#: Two GPUs, on nodes 0 and 1; each core has two CPUs.
NODE = made({0: "0-3", 1: "4-7"}, gpus=[0, 1], threads=2, siblings="adjacent")

OF_PLUGIN = {"nvidia.com/gpu": frozenset(("GPU-0",))}
GIVEN = ContainerResources(
    "team", "train", "main", OF_PLUGIN, frozenset(), parse_list("4-7"), frozenset((0,))
)
SHARED, SPLIT = (replace(GIVEN, cpus=parse_list(cpus)) for cpus in ("", "3-5"))
ALIGN = "set kubelet's topologyManagerPolicy: single-numa-node (or restricted)"
STATIC = " and cpuManagerPolicy: static, and give the pod whole CPUs in the Guaranteed QoS class"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "its pod was given no CPU"),
        (GIVEN, "kubelet gave team/train the exclusive CPUs 4-7, no CPU"),
        (SPLIT, "kubelet gave team/train the exclusive CPUs 3-5, only 1 CPU"),
        (SHARED, "kubelet gave team/train the shared CPUs 4-7, no CPU"),
    ],
)
def test_a_remedy_says_which_cpus_kubelet_gave_a_container(
    given: ContainerResources | None, said: str
) -> None:
    assert pod_was_given(vicinity(NODE, NODE.gpus[:1]), parse_list("4-7"), given) == said


ON_BOTH, ON_NONE, ON_1 = (replace(GIVEN, nodes=frozenset(it)) for it in ((0, 1), (), (1,)))
BY_CLAIM = replace(GIVEN, devices={}, claims=frozenset(("gpu.nvidia.com/gpu-0",)))


@pytest.mark.parametrize(
    ("given", "gpus", "named"),
    [
        (None, 1, f"{ALIGN}{STATIC}, and start the pod again"),
        (GIVEN, 1, f"{ALIGN}, and start the pod again"),
        (SHARED, 1, f"{ALIGN}{STATIC}"),
        (ON_BOTH, 2, "set kubelet's topologyManagerPolicy: restricted, and start"),
        (ON_NONE, 1, "have the device plugin tell kubelet the NUMA nodes of its GPUs"),
        (ON_1, 1, "correct the device plugin: it tells kubelet the wrong NUMA nodes, node 1"),
        (BY_CLAIM, 1, "claim CPUs by DRA too"),
    ],
)
def test_the_remedy_is_the_setting_that_prevents_the_mismatch(
    given: ContainerResources | None, gpus: int, named: str
) -> None:
    assert named in pod_remedy(vicinity(NODE, NODE.gpus[:gpus]), given)
