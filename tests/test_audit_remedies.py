"""What mends a mismatch: sentences with commands and settings that exist."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.audit.judge import Judge
from affinityd.audit.model import Membership
from affinityd.slurm import writer
from tests.auditing import KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB, process
from tests.machines.by_hand import made
from tests.machines.facts import machine

TWO = made({0: "0-3", 1: "4-7"}, gpus=[1])
PLACE = "GPU 0 is on node 1"
PCI = "0000:10:00.0"


def remedy(*masks: str, cpuset: str = "0-7", membership: Membership | None = None) -> str:
    facts = process(*masks, cpuset=cpuset, membership=membership or Membership())
    said = Judge(TWO).judge(facts).remedy
    assert said is not None
    return said


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
            "that is to choose from CPUs 4-7",
            id="a container of no scheduler's",
        ),
        pytest.param(
            None,
            f"{PLACE}, and its cpuset, 0-3, has no CPU there: whoever set that is to choose from "
            "CPUs 4-7",
            id="nobody knows whose",
        ),
    ],
)
def test_an_allocation_is_mended_by_who_made_it(membership: Membership | None, said: str) -> None:
    assert remedy("0-3", cpuset="0-3", membership=membership) == said


def test_the_cores_are_those_that_gres_conf_is_written_with() -> None:
    topology = machine("dgx-a100")
    facts = process("0-15,128-143", gpu=("nvidia", 0), cpuset="0-15", membership=SLURM_JOB)
    said = Judge(topology).judge(facts).remedy
    (line,) = (it for it in writer.write(topology) if "gpu 0 " in it or "/dev/nvidia0 " in it)
    (field,) = (word for word in line.split() if word.startswith("Cores="))
    assert said is not None
    assert f"have {field} in" in said


@pytest.mark.parametrize(
    ("masks", "command"),
    [
        pytest.param(["0-3", "0-3"], f"affinityd pin --gpus {PCI} 100 mends", id="all alike"),
        pytest.param(
            ["4-7", "0-2"],
            f"affinityd pin --force --gpus {PCI} 100 mends",
            id="a thread that differs from the main one would else be left alone",
        ),
        pytest.param(
            ["0-3", "1"], f"affinityd pin --gpus {PCI} 100 mends", id="a library's thread is left"
        ),
    ],
)
def test_a_mask_is_mended_by_a_pin(masks: list[str], command: str) -> None:
    assert remedy(*masks) == f"{PLACE}, and its cpuset has CPUs there: {command} that"


def test_who_is_not_pinned_is_to_start_so_or_to_be_pinned_now() -> None:
    assert remedy("0-7") == (
        f"it may run on every CPU, and {PLACE}: start it with affinityd exec; "
        f"affinityd pin --gpus {PCI} 100 mends that now"
    )


@pytest.mark.parametrize("uuid", ["GPU-8a1f0c3e", None])
def test_the_gpu_is_named_by_what_means_the_same_in_every_container(uuid: str | None) -> None:
    topology = replace(TWO, gpus=(replace(TWO.gpus[0], uuid=uuid),))
    said = Judge(topology).judge(process("0-3", cpuset="0-7")).remedy
    assert said is not None
    assert f"affinityd pin --gpus {uuid or PCI} 100 " in said
