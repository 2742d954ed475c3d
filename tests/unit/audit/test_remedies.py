"""What mends a mismatch: sentences with commands and settings that exist."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from affinityd.audit.judge import Judge
from affinityd.audit.model import Membership, ProcessFacts
from affinityd.audit.remedies import Remedies
from affinityd.slurm.gres_conf import GresConf
from affinityd.topology.model import Topology
from tests.support.audit_facts import (
    GPU,
    KUBERNETES_POD,
    LONE_CONTAINER,
    SLURM_JOB,
    audited,
    process,
    scan_of,
)
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

TWO = made({0: "0-3", 1: "4-7"}, gpus=[1, 0])
PLACE = "GPU 0 is on node 1, near CPUs 4-7"
PCI, OTHER_PCI = "0000:10:00.0", "0000:11:00.0"
OTHER = ("nvidia", 1)
APART = made({0: "0-3", 1: "4-7", 2: "8-11"}, gpus=[1, 2])


def remedies(*processes: ProcessFacts, topology: Topology = TWO) -> list[str | None]:
    """Return what mends each of the processes of a scan."""
    judged = [Judge(topology).judge(facts) for facts in processes]
    known = Remedies(topology, scan_of(topology, *judged))
    return [None if it is None else str(it) for it in map(known.of, judged)]


def remedy(*masks: str, cpuset: str = "0-7", membership: Membership | None = None) -> str:
    (said,) = remedies(process(*masks, cpuset=cpuset, membership=membership or Membership()))
    assert said is not None
    return said


def commands(*processes: ProcessFacts, topology: Topology = TWO) -> list[str | None]:
    """Return the command that mends each of them, without its name and its end."""
    said = remedies(*processes, topology=topology)
    found = (re.search("affinityd pin (.*) mends it now", it or "") for it in said)
    return [it and it[1] for it in found]


@pytest.mark.parametrize(
    ("membership", "said"),
    [
        pytest.param(
            SLURM_JOB,
            f"{PLACE}, and its job was given no CPU there: have Cores=4-7 in the GPU's line of "
            "gres.conf (affinityd slurm gres-conf writes it), and submit with "
            "--gres-flags=enforce-binding",
            id="Slurm",
        ),
        pytest.param(
            KUBERNETES_POD,
            f"{PLACE}, and its pod was given no CPU there: set the kubelet's "
            "topologyManagerPolicy: single-numa-node (or best-effort) and cpuManagerPolicy: "
            "static, and give the pod whole CPUs in the Guaranteed QoS class",
            id="Kubernetes",
        ),
        pytest.param(
            LONE_CONTAINER,
            f"{PLACE}, and its cpuset, 0-3 (container cd34cd34cd34), has no CPU there: whoever set "
            "that is to choose near ones",
            id="a container of no scheduler's",
        ),
        pytest.param(
            None,
            f"{PLACE}, and its cpuset, 0-3, has no CPU there: whoever set that is to choose "
            "near ones",
            id="nobody knows whose",
        ),
    ],
)
def test_an_allocation_is_mended_by_who_made_it(membership: Membership | None, said: str) -> None:
    assert remedy("0-3", cpuset="0-3", membership=membership) == said


def test_the_cores_are_those_that_gres_conf_is_written_with() -> None:
    topology = machine("dgx-a100")
    facts = process("0-15,128-143", gpu=("nvidia", 0), cpuset="0-15", membership=SLURM_JOB)
    (said,) = remedies(facts, topology=topology)
    (line,) = (it for it in GresConf(topology).lines() if "gpu 0 " in it or "/dev/nvidia0 " in it)
    (field,) = (word for word in line.split() if word.startswith("Cores="))
    assert said is not None
    assert f"have {field} in" in said


@pytest.mark.parametrize(
    ("masks", "options"),
    [
        pytest.param(["0-3", "0-3"], "", id="all alike"),
        pytest.param(
            ["4-7", "0-2"],
            "--force ",
            id="a thread that differs from the main one would else be left alone",
        ),
        pytest.param(["0-3", "1"], "", id="a library's thread is left"),
    ],
)
def test_a_mask_is_mended_by_a_pin(masks: list[str], options: str) -> None:
    command = f"affinityd pin {options}--gpus {PCI} 100"
    assert remedy(*masks) == f"{PLACE}, and its cpuset has CPUs there; {command} mends it now"


def test_who_is_not_pinned_is_to_start_so_or_to_be_pinned_now() -> None:
    assert remedy("0-7") == (
        f"it may run on every CPU, and {PLACE}; start it with affinityd exec; "
        f"affinityd pin --gpus {PCI} 100 mends it now"
    )


@pytest.mark.parametrize("uuid", ["GPU-8a1f0c3e", None])
def test_the_gpu_is_named_by_what_means_the_same_in_every_container(uuid: str | None) -> None:
    topology = replace(TWO, gpus=(replace(TWO.gpus[0], uuid=uuid),))
    (said,) = remedies(process("0-3", cpuset="0-7"), topology=topology)
    assert said is not None
    assert f"affinityd pin --gpus {uuid or PCI} 100 " in said


@pytest.mark.parametrize(
    ("membership", "said"),
    [
        pytest.param(
            SLURM_JOB,
            "have Cores=4-7 and Cores=8-11 in the GPUs' lines of gres.conf (affinityd slurm "
            "gres-conf writes it), and submit with --gres-flags=enforce-binding",
            id="Slurm",
        ),
        pytest.param(
            KUBERNETES_POD,
            "set the kubelet's topologyManagerPolicy: best-effort and cpuManagerPolicy: static, "
            "and give the pod whole CPUs in the Guaranteed QoS class",
            id="Kubernetes, where no single node has both",
        ),
    ],
)
def test_an_allocation_far_from_all_of_several_gpus_names_them_all(
    membership: Membership, said: str
) -> None:
    facts = process("0-3", cpuset="0-3", membership=membership, beside=(OTHER,))
    (told,) = remedies(facts, topology=APART)
    assert told is not None
    assert told.startswith("GPUs 0-1 are on nodes 1-2, near CPUs 4-11, and its ")
    assert told.endswith(f" was given no CPU there: {said}")


def test_a_pin_names_all_of_its_gpus() -> None:
    facts = process("0-3", gpu=OTHER, beside=(GPU,), cpuset="0-11")
    (told,) = remedies(facts, topology=APART)
    assert told == (
        "GPUs 0-1 are on nodes 1-2, near CPUs 4-11, and its cpuset has CPUs there; affinityd pin "
        f"--gpus {PCI},{OTHER_PCI} 100 mends it now"
    )


RANK = process("0-3")
RANK_OF_TWO = process("8-9", beside=(OTHER,))
#: As TWO, and a node without a GPU.
THREE = made({0: "0-3", 1: "4-7", 2: "8-11"}, gpus=[1, 0])


def worker(mask: str, pid: int = 200, parent: int = 100) -> ProcessFacts:
    return process(mask, pid=pid, parent=parent, holder=100)


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        pytest.param(
            [RANK, worker("0-3"), worker("0-3", 201, 200)],
            [f"--tree --gpus {PCI} 100"] * 3,
            id="one command for a rank and all that work for it",
        ),
        pytest.param(
            [process("4-7"), worker("0-3")],
            [None, f"--tree --force --gpus {PCI} 100"],
            id="whom a pin of the rank alone left behind",
        ),
        pytest.param(
            [RANK, worker("4-7"), worker("4-5", 201)],
            [f"--tree --gpus {PCI} 100", None, None],
            id="workers that are near need no force",
        ),
        pytest.param(
            [RANK, worker("0-3"), process("4-7", pid=300, parent=200, gpu=OTHER)],
            [f"--gpus {PCI} 100", f"--gpus {PCI} 200", f"--gpus {OTHER_PCI} 300"],
            id="a process below it holds another GPU",
        ),
        pytest.param(
            [RANK, worker("0-3"), process("0-3", pid=300, parent=200)],
            [f"--tree --gpus {PCI} 100"] * 2 + [f"--gpus {PCI} 300"],
            id="or the same one",
        ),
        pytest.param(
            [
                RANK,
                worker("0-3"),
                process("0-3", pid=300, parent=100),
                process("4-7", pid=400, parent=300, gpu=OTHER),
            ],
            [*(f"--gpus {PCI} {pid}" for pid in (100, 200, 300)), f"--gpus {OTHER_PCI} 400"],
            id="another GPU below the one below",
        ),
        pytest.param([worker("0-3")], [f"--gpus {PCI} 200"], id="a rank that was not read"),
        pytest.param(
            [RANK_OF_TWO, replace(worker("8-9"), beside=(OTHER,))],
            [f"--tree --gpus {PCI},{OTHER_PCI} 100"] * 2,
            id="a rank with two GPUs",
        ),
        pytest.param(
            [RANK_OF_TWO, process("8-9", pid=300, parent=100)],
            [f"--gpus {PCI},{OTHER_PCI} 100", f"--gpus {PCI} 300"],
            id="and one below it with one of them",
        ),
    ],
)
def test_a_family_is_mended_as_one(
    processes: list[ProcessFacts], expected: list[str | None]
) -> None:
    assert commands(*processes, topology=THREE) == expected


def test_parents_that_seem_to_go_in_a_circle_come_to_an_end() -> None:
    circle = [process("0-3", pid=pid, parent=300 - pid) for pid in (100, 200)]
    assert commands(*circle) == [f"--gpus {PCI} {facts.pid}" for facts in circle]


COMPUTES = (
    "it may still compute: ask its owner; affinityd audit --watch tells once it has used no CPU "
    "time for 60 s"
)
IDLE = "it has used no CPU time for 61 s: look what it is, then end it: kill 100"


@pytest.mark.parametrize(
    ("facts", "idle", "said"),
    [
        pytest.param(RANK, None, COMPUTES, id="it was looked at once"),
        pytest.param(RANK, 59.0, COMPUTES, id="it used CPU time a minute ago"),
        pytest.param(RANK, 61.0, IDLE, id="it has been idle for longer"),
        pytest.param(
            process("0-3", "0-3", state="Z"), 0.0, COMPUTES, id="only its main thread has ended"
        ),
        pytest.param(
            process("0-3", state="Z"),
            61.0,
            "look at process 50, which has to wait(2) for it or to end",
            id="it has ended",
        ),
        pytest.param(process("0-3", state="Z", parent=1), 0.0, None, id="and init is to notice"),
        pytest.param(
            process("0-3", state="X"), 0.0, "reset the GPU once nobody else uses it", id="a ghost"
        ),
    ],
)
def test_no_remedy_ends_an_orphan_that_still_computes(
    facts: ProcessFacts, idle: float | None, said: str | None
) -> None:
    orphan = audited(facts, "remote", cause="mask", orphan="its job has ended")
    scan = replace(scan_of(TWO, orphan), idle={} if idle is None else {100: idle})
    told = Remedies(TWO, scan).end(orphan)
    assert (None if told is None else str(told)) == said


def test_an_orphan_and_what_works_for_it_have_the_remedy_of_their_placement() -> None:
    orphan = audited(RANK, "remote", cause="mask", orphan="its job has ended")
    its_worker = audited(worker("0-3"), "remote", cause="mask")
    known = Remedies(TWO, scan_of(TWO, orphan, its_worker))
    pins = [remedy.command for it in (orphan, its_worker) if (remedy := known.of(it))]
    assert pins == [f"affinityd pin --tree --gpus {PCI} 100"] * 2
