"""GPUs that are chosen by ranks' CPUs, or assumed: ranks ask alone, and the answers agree."""

from dataclasses import replace

import pytest

from affinityd.cpuset import format_list, format_mask, parse_list
from affinityd.errors import AffinityError
from affinityd.request.devices import narrow_visible
from affinityd.request.formats import render
from affinityd.request.resolve import Reply
from affinityd.topology.model import Topology
from tests.support.asking import ask
from tests.support.machines.facts import machine
from tests.support.tables import cases, words

CHOOSE = "AFFINITYD_CHOOSE_GPU"
NAMES = {
    "SRUN": f"SLURM_JOB_ID=9 SLURM_STEP_ID=0 {CHOOSE}=yes",
    "MPI": "OMPI_COMM_WORLD_LOCAL_RANK={rank} OMPI_COMM_WORLD_LOCAL_SIZE={ranks} choose=gpu",
    "FOUR": "0-15 16-31 32-47 48-63",  # nodes 0 to 3 of MI250X, with GPUs 4,5 2,3 6,7 0,1
    "SLICES": "16-23 48-55",  # of a DGX A100: near GPUs 2,3 and 0,1
    "ALL": ",".join(f"minor:{number}" for number in range(8)),
    "PAIR": "CUDA_VISIBLE_DEVICES=0,2 SLURM_GPUS_ON_NODE=2",
    "ORDER": f"{CHOOSE}=no AFFINITYD_GPU_ORDER",
}


def reply_of(name: str | Topology, rank: int, masks: list[str], variables: str) -> Reply:
    """Return the answer to a rank, if srun or another launcher bound all ranks to these masks."""
    topology, ranks = machine(name) if isinstance(name, str) else name, len(masks)
    given = {
        key: text.format(rank=rank, ranks=ranks, own=masks[rank])
        for key, text in words(variables).items()
    }
    if "SLURM_JOB_ID" in given:
        given = {
            "SLURM_LOCALID": f"{rank}",
            "SLURM_GTIDS": ",".join(map(str, range(ranks))),
            "SLURM_GPUS_ON_NODE": f"{len(topology.gpus)}",
            "SLURM_CPU_BIND_TYPE": "mask_cpu:",
            "SLURM_CPU_BIND_LIST": ",".join(format_mask(parse_list(mask)) for mask in masks),
            **given,
        }
    stated = {key: text for key, text in given.items() if text != "-"}
    return ask(topology, **{"mode": "node", "cpuset": masks[rank], **stated})


def gpus_of(reply: Reply) -> str:
    return ",".join(str(rank.gpu.index) for rank in reply.ranks)


@pytest.mark.parametrize(
    ("name", "variables", "masks", "gpus", "cpus", "told"), cases("chosen.tsv", **NAMES)
)
def test_ranks_that_ask_alone_get_answers_that_agree(
    name: str, variables: str, masks: str, *, gpus: str, cpus: str, told: str
) -> None:
    of_ranks = masks.split()
    replies = [reply_of(name, rank, of_ranks, variables) for rank in range(len(of_ranks))]
    assert " ".join(map(gpus_of, replies)) == gpus
    assert " ".join(format_list(reply.cpus) for reply in replies) == cpus
    # The exported list names the same GPUs, also if the inherited list was reversed.
    lines = render(replies[-1], "shell").splitlines()
    assert f"AFFINITYD_GPUS={format_list(parse_list(gpus.rsplit(maxsplit=1)[-1]))}" in lines
    assert set(told.split()) <= set(lines)


@pytest.mark.parametrize(
    ("name", "variables", "masks", "message"), cases("chosen_refused.tsv", **NAMES)
)
def test_an_unknown_fact_is_an_error_of_one_line(
    name: str, variables: str, masks: str, message: str
) -> None:
    with pytest.raises(AffinityError) as refused:
        reply_of(name, 0, masks.split(), variables)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    "variables", ["LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=1 LOCAL_SIZE=2", "gpus=1"]
)
def test_choose_gpu_has_no_effect_where_the_gpu_is_known(variables: str) -> None:
    reply = reply_of("mi250x", 0, ["0-63"], f"{CHOOSE}=yes {variables}")
    assert gpus_of(reply) == "1"
    assert reply.request.choose is None
    assert reply.visible == {}


@pytest.mark.parametrize(("value", "vendor", "numbers", "expected"), cases("narrowed.tsv"))
def test_a_list_of_visible_devices_is_restricted_to_the_chosen_gpus(
    value: str, vendor: str, numbers: str, expected: str
) -> None:
    given = [int(number) for number in numbers.split(",")]
    assert "=".join(narrow_visible(value.replace("\\n", "\n") or None, vendor, given)) == expected


def test_gpus_that_no_variable_chooses_are_refused() -> None:
    with pytest.raises(AffinityError, match=r"^choose: no variable is known .+ GPUs of 1da3$"):
        narrow_visible(None, "1da3", [0])
    with pytest.raises(AffinityError, match="is no UUID"):
        narrow_visible("GPU-$(id)", "nvidia", [0])


def test_a_rank_gets_its_gpus_in_its_own_numbering() -> None:
    turned = "ROCR_VISIBLE_DEVICES=7,6,5,4,3,2,1,0;HIP_VISIBLE_DEVICES=5,4,3,2"
    reply = reply_of(
        "mi250x", 0, ["32-39", "16-23"], f"{NAMES['SRUN']} SLURM_GPUS_ON_NODE=4 visible={turned}"
    )
    assert gpus_of(reply) == "4,5"  # nodes 1 and 0, with GPUs 2 to 5, are equally far from node 2
    assert "HIP_VISIBLE_DEVICES=3,2" in render(reply, "shell").splitlines()
    assert all(render(reply, form) for form in ("json", "map_gpu"))


def test_all_gpus_of_a_rank_have_the_number_of_the_rank() -> None:
    reply = reply_of("mi250x", 1, ["0-127", "0-127"], NAMES["MPI"])
    assert [(rank.rank, rank.gpu.index) for rank in reply.ranks] == [
        (1, gpu) for gpu in range(4, 8)
    ]
    assert render(reply, "map_gpu") == "--gpu-bind=mask_gpu:0xf,0xf0\n"


@pytest.mark.parametrize("masks", ["0-15 16-31 32-47 48-63", "0-127 0-127"])
def test_if_the_place_of_a_gpu_is_unknown_no_rank_chooses(masks: str) -> None:
    topology, of_ranks = machine("mi250x"), masks.split()
    gpus = [
        replace(gpu, numa_node=None if gpu.index == 6 else gpu.numa_node) for gpu in topology.gpus
    ]
    for rank in range(len(of_ranks)):
        with pytest.raises(AffinityError, match=r"^choose: the machine does not say .+ GPU 6 is"):
            reply_of(replace(topology, gpus=tuple(gpus)), rank, of_ranks, NAMES["SRUN"])


def test_stated_cpus_take_precedence_over_the_caller_s_mask() -> None:
    stated = {"cpuset": "32-47", "mask": "0-15", "may_use": "0-127", "gpus_per_rank": "2"}
    reply = ask(machine("mi250x"), mode="node", choose="gpu", **stated)
    assert (gpus_of(reply), format_list(reply.cpus)) == ("6,7", "32-47")


def test_a_bound_caller_without_variables_may_be_one_rank_of_several() -> None:
    two = {"mode": "node", "choose": "gpu", "rank": "1", "ranks": "2"}
    with pytest.raises(AffinityError, match=r"not known: the caller is bound to 0-15: give"):
        ask(machine("mi250x"), mask="0-15", may_use="0-127", **two)
    for known in ({"mask": "0-15"}, {"mask": "0-7", "may_use": "0-127", "cpuset": "0-15"}, {}):
        assert gpus_of(ask(machine("mi250x"), **known, **two)) == "4,5,6,7"
