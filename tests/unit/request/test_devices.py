"""Which GPU a name means: granted, visible, and named devices, in the node's own numbering."""

from dataclasses import replace

import pytest

from affinityd.errors import InvalidRequestError, NoSuchGpuError
from affinityd.request.devices import ComputeDevice, Doubt, VisibleDevices, read_visible
from affinityd.request.formats import render
from affinityd.request.task import Task, names_unknown_mig
from affinityd.topology.model import Gpu, MigInstance, Topology
from tests.support.asking import ask, codes
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import cases, rows, words


def _named(gpu: Gpu) -> Gpu:
    return replace(
        gpu,
        uuid=f"GPU-{gpu.index // 2}{gpu.index}0000",
        minor=7 - gpu.index,  # reversed, as it may be on real machines
        mig=(MigInstance("MIG-a1"), MigInstance("MIG-a2")) if gpu.index == 5 else (),
    )


def _with_names(topology: Topology) -> Topology:
    return replace(topology, gpus=tuple(map(_named, topology.gpus)))


#: GPU 0 is GPU-000000 and minor 7, 1 is GPU-010000, 2 is GPU-120000 …; 5 has MIG-a1 and MIG-a2.
EIGHT = _with_names(machine("dgx-a100"))
#: An NVIDIA GPU 0 at 0000:08:00.0 and an AMD GPU 0 at 0000:44:00.0.
TWO_VENDORS = machine("threadripper-2990wx")
TWO_VENDORS = replace(
    TWO_VENDORS,
    gpus=tuple(
        replace(gpu, uuid=f"GPU-{gpu.vendor}", render_minor=128 + place)
        for place, gpu in enumerate(TWO_VENDORS.gpus)
    ),
)
#: CUDA counts the faster model first; it is not known which of the two is faster.
TWO_MODELS = _with_names(machine("mixed-models"))
NODES = {
    "eight": EIGHT,
    "vendors": TWO_VENDORS,
    "models": TWO_MODELS,
    **{name: machine(name) for name in ("laptop", "mixed-models")},
}


def indices(topology: Topology, asked: str) -> str:
    ranks = ask(topology, **words(f"mode=node {asked}")).ranks
    return " ".join(str(rank.gpu.index) for rank in ranks)


@pytest.mark.parametrize(("asked", "expected"), cases("meant_gpus.tsv"))
def test_names_and_indices_mean_these_gpus(asked: str, expected: str) -> None:
    assert indices(EIGHT, asked) == expected


@pytest.mark.parametrize(
    ("asked", "vendor"),
    rows("""
all: the first vendor's GPUs  |                            | nvidia
an index: the first vendor    | gpus=0                     | nvidia
a PCI bus id: any vendor      | gpus=0000:44:00.0          | amd
a granted UUID: any vendor    | granted=GPU-amd            | amd
an index of a granted file    | granted=drm:129 gpus=0     | amd
a file of the first vendor    | granted=drm:128            | nvidia
granted GPUs of both vendors  | granted=GPU-amd,GPU-nvidia | nvidia
"""),
)
def test_each_vendor_s_gpus_have_their_own_indices(asked: str, vendor: str) -> None:
    (rank,) = ask(TWO_VENDORS, **words(asked)).ranks
    assert (rank.gpu.vendor, rank.gpu.index) == (vendor, 0)


@pytest.mark.parametrize(("node", "asked", "message"), cases("absent_gpus.tsv"))
def test_a_refusal_of_an_unknown_gpu_lists_the_existing_ones(
    node: str, asked: str, message: str
) -> None:
    with pytest.raises(NoSuchGpuError) as caught:
        ask(NODES[node], **words(asked))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("asked", "told"),
    rows("""
a GPU that does not exist | visible=0,9,8,1 | CUDA_VISIBLE_DEVICES='0,9,8,1' ends before '9'
the first of two lists | visible=ROCR_VISIBLE_DEVICES=0,9;HIP_VISIBLE_DEVICES=0 | ROCR_
no warning if gpus names a GPU | visible=0,9 gpus=0 |
no warning for the list of MPS | AFFINITYD_MPS_DEVICES=0,9 |
"""),
)
def test_a_list_that_ends_early_causes_a_warning(asked: str, told: str) -> None:
    warnings = ask(EIGHT, **words(asked)).warnings
    cuts = [warning.message for warning in warnings if warning.code == "visible_cut"]
    assert len(cuts) == bool(told)
    assert all(told in message for message in cuts)


@pytest.mark.parametrize("entry", ["x", "-1", "1.0", "GPU-", "07:00.0", "0000:07:00.8", "\u0663"])
def test_a_text_that_names_no_device_is_malformed(entry: str) -> None:
    for name, kind in (("gpus", "an index, UUID or PCI bus id"), ("granted", "a device")):
        with pytest.raises(InvalidRequestError, match=f"^{name}: .+ is not {kind}; write "):
            ask(EIGHT, **{name: entry})
    with pytest.raises(InvalidRequestError, match=r"^granted: 'minor:' is not a device"):
        ask(EIGHT, granted="minor:")


@pytest.mark.parametrize(
    ("node", "asked", "warned"),
    [
        ("models", "", True),  # all GPUs, in an order that CUDA may not have
        *(("models", asked, True) for asked in ("gpus=0", "gpus=GPU-00,1")),
        *(("models", f"gpus={name}", False) for name in ("GPU-00", "0000:3b:00.0")),
        ("models", "visible=GPU-01,GPU-00", False),
        ("models", "visible=GPU-01,GPU-00 gpus=1", False),  # an index in the list of UUIDs
        ("models", "granted=1", False),  # only one model is granted
        ("models", "granted=0,1", True),
        ("eight", "gpus=0", False),
        ("vendors", "gpus=0", False),  # each vendor counts its own GPUs
    ],
)
def test_an_index_on_mixed_models_is_ambiguous_unless_a_list_of_uuids_numbers_it(
    node: str, asked: str, warned: bool
) -> None:
    assert ("ambiguous_index" in codes(ask(NODES[node], **words(asked)))) == warned


def test_an_index_is_certain_if_all_models_have_the_same_near_cpus() -> None:
    gpus = tuple(replace(gpu, numa_node=0) for gpu in TWO_MODELS.gpus)
    reply = ask(replace(TWO_MODELS, gpus=gpus), LOCAL_RANK="1")
    assert (codes(reply), reply.locality) == (["ambiguous_index"], "local")
    assert "AFFINITYD_GPUS=\n" in render(reply, "shell")


def test_equal_chips_are_one_model_even_if_only_one_has_a_model_name() -> None:
    one, other = EIGHT.gpus[:2]
    pair = (replace(one, model="A100", pci_id="10de:20b0"), replace(other, pci_id="10de:20b0"))
    assert codes(ask(replace(EIGHT, gpus=pair), LOCAL_RANK="1")) == []


def test_a_gpu_in_a_high_pci_domain_may_be_named_as_by_sysfs_or_nvml() -> None:
    topology = made({0: "0-3"})
    gpu = replace(topology.gpus[0], pci_bus_id="10000:01:00.0")
    for name in ("00010000:01:00.0", "10000:01:00.0"):
        assert indices(replace(topology, gpus=(gpu,)), f"gpus={name}") == "0"


def test_an_unknown_mig_instance_is_noticed() -> None:
    for known in ("", "GPU-00", "0", "MIG-a1", "MIG-a"):
        assert not names_unknown_mig(EIGHT, Task(visible=known))
    for text in ("MIG-b", "0,MIG-a1,MIG-b", "ROCR_VISIBLE_DEVICES=MIG-b;x", "MIG-GPU-ff/1/0"):
        assert names_unknown_mig(EIGHT, Task(visible=text))


def test_a_lost_gpu_leaves_a_gap_in_the_numbers() -> None:
    whole = machine("dgx-a100")
    without = replace(whole, gpus=tuple(gpu for gpu in whole.gpus if gpu.index != 1))
    assert [indices(without, f"{name}=2") for name in ("gpus", "granted", "visible")] == ["2"] * 3
    assert ask(without).entries == ("0", "2", "3", "4", "5", "6", "7")
    with pytest.raises(NoSuchGpuError, match=r"no GPU 1; visible are 0 \(0000:07:00.0\), 2"):
        ask(without, gpus="1")


def named(index: int, uuid: str | None) -> ComputeDevice:
    return ComputeDevice(Gpu(index, "nvidia", "0000:00:00.0", None, uuid=uuid))


#: The UUIDs of GPUs 0 and 1 begin alike; GPU 3 has no UUID.
GPUS = (named(0, "GPU-aa01"), named(1, "GPU-aa02"), named(2, "GPU-bb03"), named(3, None))
INSTANCES = (ComputeDevice(GPUS[0].gpu, "MIG-cc04"), ComputeDevice(GPUS[0].gpu, "MIG-cc05"))
EVERYTHING = (*GPUS, *INSTANCES)
GIVEN = VisibleDevices(dict(enumerate(GPUS)), EVERYTHING)


def seen(value: str | None) -> list[int]:
    """Return the devices that a value leaves, by their positions in EVERYTHING."""
    devices = read_visible(value, GIVEN).by_index.values()
    return [EVERYTHING.index(device) for device in devices]


@pytest.mark.parametrize(("value", "expected"), cases("visible_devices.tsv"))
def test_a_list_of_visible_devices_is_read_as_by_the_driver(value: str, expected: str) -> None:
    assert seen(value) == list(map(int, expected.split()))


def test_blanks_before_indices_are_skipped_and_indices_have_the_size_of_a_long() -> None:
    assert (seen(None), seen(" 2, \t0"), seen("0,\u00a01")) == ([0, 1, 2, 3], [2, 0], [0])
    assert seen(" GPU-bb") == []  # a list that begins with a blank is of indices
    above = "0," + "9" * 5000 + ",1" + "0" * 5000  # too large for a long: all alike
    assert (seen(above), seen("0," + "0" * 5000 + "1")) == ([], [0, 1])


def test_a_list_of_uuids_is_certain_but_indices_are_as_doubtful_as_their_source() -> None:
    doubtful = GIVEN._replace(doubt=Doubt("of the order", frozenset()))
    by_name = ("GPU-bb", "MIG-cc04", "ROCR_VISIBLE_DEVICES=GPU-bb;HIP_VISIBLE_DEVICES=0")
    assert not any(read_visible(value, doubtful).doubt for value in by_name)
    assert all(read_visible(value, doubtful).doubt for value in (None, "0"))


def test_an_index_of_a_lost_gpu_ends_the_list() -> None:
    gap = VisibleDevices({0: GPUS[0], 2: GPUS[2]}, EVERYTHING)
    assert list(read_visible("2,0", gap).by_index.values()) == [GPUS[2], GPUS[0]]
    assert list(read_visible("0,1,2", gap).by_index.values()) == [GPUS[0]]
