"""Which GPU is meant: granted, visible, and named devices, in the node's own numbering."""

from dataclasses import replace

import pytest

from affinityd.errors import AffinityError, InvalidRequestError, NoSuchGpuError, UnsatisfiableError
from affinityd.request.devices import ComputeDevice, VisibleDevices, read_visible
from affinityd.request.formats import render
from affinityd.request.task import Task, names_unknown_mig
from affinityd.topology.model import Gpu, MigInstance, Topology
from tests.support.asking import ask, codes, is_one_short_line, try_to_ask
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import cases, rows, words


def _named(gpu: Gpu) -> Gpu:
    return replace(
        gpu,
        uuid=f"GPU-{gpu.index // 2}{gpu.index}0000",
        minor=7 - gpu.index,  # counts the other way, as on real machines it may
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
#: CUDA counts the faster of the two first, whichever that is.
TWO_MODELS = _with_names(machine("mixed-models"))
NODES = {
    "eight": EIGHT,
    "vendors": TWO_VENDORS,
    "models": TWO_MODELS,
    **{name: machine(name) for name in ("laptop", "mixed-models")},
}


EVERY = "granted=0,1,2,3,4,5,6,7 NVIDIA_VISIBLE_DEVICES"  #: of a privileged container


def indices(topology: Topology, asked: str) -> str:
    ranks = ask(topology, **words(f"mode=node {asked}")).ranks
    return " ".join(str(rank.gpu.index) for rank in ranks)


@pytest.mark.parametrize(
    ("asked", "expected"),
    rows(f"""
all, if none is named                   |                              | 0 1 2 3 4 5 6 7
by index, in the request's order        | gpus=3,0                     | 3 0
by the beginning of a UUID              | gpus=GPU-12                  | 2
by PCI bus id, and not its instance     | gpus=0000:90:00.0            | 5
as NVML prints it, and in capitals      | gpus=0000:BD:00.0,00000000:bd:00.0 | 7 7
a MIG instance has its parent's place   | gpus=MIG-a1,MIG-a2           | 5 5
what is visible, in its order           | visible=6,4                  | 6 4
indices count what is visible           | visible=6,4 gpus=1,0         | 4 6
a UUID counts nothing                   | visible=6,4 gpus=GPU-00      | 0
visible by UUID                         | visible=GPU-36,GPU-12        | 6 2
a visible MIG instance                  | visible=MIG-a2               | 5
granted GPUs are in node order          | granted=5,2                  | 2 5
and numbered from 0                     | granted=5,2 gpus=0           | 2
granted by device minor                 | granted=minor:7,minor:3      | 0 4
an instance of a granted GPU            | granted=5 gpus=MIG-a1        | 5
an instance by its GPU and number       | granted=2,5:1 gpus=MIG-a2    | 5
one that is not there: the whole GPU    | granted=5:2 gpus=MIG-a1      | 5
a file of a GPU that was lost           | granted=minor:7,minor:99     | 0
what a container was to be given        | NVIDIA_VISIBLE_DEVICES=4,2           | 2 4
of the files that are open to it        | granted=2,4,6 NVIDIA_VISIBLE_DEVICES=4,2 | 2 4
which prove more than a list of others  | granted=2,4 NVIDIA_VISIBLE_DEVICES=6 | 2 4
or than one of none                     | granted=2,4 NVIDIA_VISIBLE_DEVICES=all | 2 4
of a privileged container, its list     | {EVERY}=GPU-24                 | 4
with repeated names and instances       | {EVERY}=1,GPU-010000,5:1         | 1 5
by PCI bus id                           | {EVERY}=00000000:0f:00.0         | 1
unless a name is not unique             | {EVERY}=MIG-a                    | 0 1 2 3 4 5 6 7
or of no GPU                            | {EVERY}=1,9                      | 0 1 2 3 4 5 6 7
which hides no granted one              | granted=5 NVIDIA_VISIBLE_DEVICES=MIG-ff | 5
instances count, too | granted=5 NVIDIA_VISIBLE_DEVICES=MIG-a1,MIG-a2 visible=1 | 5
and indices what is left                | granted=2,4,6 visible=2,0 gpus=1 | 2
a granted GPU, visible or not           | granted=2,4,6 visible=0 gpus=GPU-36 | 6
"""),
)
def test_the_gpus_that_are_meant(asked: str, expected: str) -> None:
    assert indices(EIGHT, asked) == expected


@pytest.mark.parametrize(
    ("asked", "vendor"),
    rows("""
all are the first vendor's    |                            | nvidia
an index is the first's       | gpus=0                     | nvidia
a PCI bus id names any        | gpus=0000:44:00.0          | amd
granted by UUID, it is 0      | granted=GPU-amd            | amd
by render node, too           | granted=drm:129 gpus=0     | amd
which may be the first's      | granted=drm:128            | nvidia
of both the first vendor's    | granted=GPU-amd,GPU-nvidia | nvidia
"""),
)
def test_indices_count_by_vendor(asked: str, vendor: str) -> None:
    (rank,) = ask(TWO_VENDORS, **words(asked)).ranks
    assert (rank.gpu.vendor, rank.gpu.index) == (vendor, 0)


BOTH = "visible are 0 (0000:3b:00.0), 1 (0000:af:00.0)"
FIRST = "visible are 0 (0000:3b:00.0)"
INSTANCE = "no GPU 'MIG-a2'; visible are 0 (MIG-a1)"
NAMES = "by name there are 0000:3b:00.0, 0000:af:00.0"


@pytest.mark.parametrize(
    ("node", "asked", "message"),
    rows(f"""
beyond the last             | models | gpus=999999999               | no GPU 999999999; {BOTH}
a PCI bus id without a GPU  | mixed-models | gpus=0000:00:00.0 visible= | \
no GPU '0000:00:00.0'; {NAMES}
a UUID that is not here     | models | gpus=GPU-1                   | no GPU 'GPU-1'; {BOTH}
one that is not unique      | models | gpus=GPU-0                   | \
2 GPUs begin with 'GPU-0'; {BOTH}
not granted, by UUID        | models | gpus=GPU-01 granted=0        | no GPU 'GPU-01'; {FIRST}
another instance            | eight  | granted=5:0 gpus=MIG-a2      | {INSTANCE}
not the container's own     | eight  | granted=5 NVIDIA_VISIBLE_DEVICES=5:0 gpus=MIG-a2 | {INSTANCE}
a minor that is not here    | models | granted=minor:5              | \
granted: no GPU has minor:5; this machine has 6, 7
no render node is known     | models | granted=drm:128              | \
granted: no GPU has drm:128; this machine has none
a granted index             | models | granted=0,9                  | granted: no GPU 9; {BOTH}
not another vendor's        | vendors | granted=1                   | \
granted: no GPU 1; visible are 0 (0000:08:00.0)
none granted                | eight  | granted=none                 | \
granted=none: the caller was given no GPU
none visible                | mixed-models | visible=               | \
no GPU is visible to the caller: CUDA_VISIBLE_DEVICES='' names none; {NAMES}
the first of two lists | mixed-models | visible=ROCR_VISIBLE_DEVICES=9;HIP_VISIBLE_DEVICES=0 | \
no GPU is visible to the caller: ROCR_VISIBLE_DEVICES='9' names none; {NAMES}
an index of a divided GPU | eight  | granted=5 visible=1 | \
no GPU is visible to the caller: CUDA_VISIBLE_DEVICES='1' names none, and CUDA shows the MIG \
instances of GPU 5 by UUID; by name there are 0000:90:00.0, MIG-a1, MIG-a2
none                        | laptop |                              | \
no GPU is visible to the caller; this machine has none
"""),
)
def test_a_gpu_that_is_not_here_is_told_with_those_that_are(
    node: str, asked: str, message: str
) -> None:
    with pytest.raises(NoSuchGpuError) as caught:
        ask(NODES[node], **words(asked))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("asked", "told"),
    rows("""
at a GPU that is not here | visible=0,9,8,1 | CUDA_VISIBLE_DEVICES='0,9,8,1' ends before '9'
the first of two lists | visible=ROCR_VISIBLE_DEVICES=0,9;HIP_VISIBLE_DEVICES=0 | ROCR_
not for a GPU that is named | visible=0,9 gpus=0 |
nor in the list of an MPS daemon | AFFINITYD_MPS_DEVICES=0,9 |
"""),
)
def test_a_list_that_ends_early_is_warned_of(asked: str, told: str) -> None:
    warnings = ask(EIGHT, **words(asked)).warnings
    cuts = [warning.message for warning in warnings if warning.code == "visible_cut"]
    assert len(cuts) == bool(told)
    assert all(told in message for message in cuts)


NO_DEVICES = {
    "gpus": (
        *("x", "-1", "1.0", "0-x", "٣", "GPU-", "gpu-000000", "07:00.0", "000:07:00.0"),
        *("0000:07:00.8", "0000:07:00.0\nx"),
    ),
    "granted": ("x", "0,none", "all", "minor:", "minor:-1", "minor:٣", "MINOR:1", "minor:1e9"),
}
INSTEAD = {
    "gpus": (
        "is not an index, UUID or PCI bus id; write them like 0,1 or GPU-8a1f0c3e or "
        "0000:07:00.0, or all alone"
    ),
    "granted": ("is not a device; write a comma list of indices, UUIDs, minor:N or drm:N, or none"),
}


@pytest.mark.parametrize(("name", "text"), [(n, it) for n in NO_DEVICES for it in NO_DEVICES[n]])
def test_a_text_that_names_no_device_is_malformed(name: str, text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ask(EIGHT, **{name: text})
    assert str(caught.value) == f"{name}: {text.rpartition(',')[2]!r} {INSTEAD[name]}"


@pytest.mark.parametrize("entry", ["GPU-\r\x1b[2J", "MIG-\u2028", "GPU-" + "x" * 999, "9" * 5000])
@pytest.mark.parametrize("name", ["gpus", "granted"])
def test_an_odd_name_is_quoted_on_one_short_line(name: str, entry: str) -> None:
    with pytest.raises(AffinityError) as caught:
        ask(EIGHT, **{name: entry})
    assert is_one_short_line(caught.value)


@pytest.mark.parametrize(
    ("node", "asked", "warned"),
    [
        ("models", "", True),  # all GPUs, in an order that CUDA may not have
        *(("models", asked, True) for asked in ("gpus=0", "gpus=GPU-00,1")),
        *(("models", f"gpus={name}", False) for name in ("GPU-00", "0000:3b:00.0")),
        ("models", "visible=GPU-01,GPU-00", False),
        ("models", "visible=GPU-01,GPU-00 gpus=1", False),  # an index of those
        ("models", "granted=1", False),  # one model
        ("models", "granted=0,1", True),
        ("eight", "gpus=0", False),
        ("vendors", "gpus=0", False),  # they count apart
    ],
)
def test_an_index_is_ambiguous_on_mixed_models_unless_uuids_number_it(
    node: str, asked: str, warned: bool
) -> None:
    assert ("ambiguous_index" in codes(ask(NODES[node], **words(asked)))) == warned


MODELS = (
    "it is not known which GPU it uses: this machine has GPUs of several models, which CUDA "
    "numbers fastest first: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by their UUIDs"
)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("visible=0", MODELS),
        ("LOCAL_RANK=1", MODELS),
        ("LOCAL_RANK=1 CUDA_DEVICE_ORDER=PCI_BUS_ID", "1"),
        ("LOCAL_RANK=1 CUDA_VISIBLE_DEVICES=GPU-01,GPU-00", "0"),
        ("LOCAL_RANK=0", "0 1"),  # it is alone
        ("LOCAL_RANK=1 granted=1,0", MODELS),
        ("LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 granted=1", "1"),
    ],
)
def test_a_process_on_mixed_models_has_a_certain_gpu_or_none(asked: str, expected: str) -> None:
    reply = try_to_ask(TWO_MODELS, **words(f"mode=node {asked}"))
    if isinstance(reply, AffinityError):
        assert str(reply) == expected
    else:
        assert indices(TWO_MODELS, asked) == expected


def test_models_with_the_same_near_cpus_are_certain_enough() -> None:
    gpus = tuple(replace(gpu, numa_node=0) for gpu in TWO_MODELS.gpus)
    reply = ask(replace(TWO_MODELS, gpus=gpus), LOCAL_RANK="1")
    assert (codes(reply), reply.locality) == (["ambiguous_index"], "local")
    assert "AFFINITYD_GPUS=\n" in render(reply, "shell")


def test_two_equal_chips_of_which_the_driver_names_one_are_not_mixed() -> None:
    one, other = EIGHT.gpus[:2]
    pair = (replace(one, model="A100", pci_id="10de:20b0"), replace(other, pci_id="10de:20b0"))
    assert codes(ask(replace(EIGHT, gpus=pair), LOCAL_RANK="1")) == []


def test_models_are_told_apart_by_pci_id_where_nothing_names_them() -> None:
    gpus = tuple(replace(gpu, model=None) for gpu in TWO_MODELS.gpus)
    assert len({gpu.pci_id for gpu in gpus}) == 2
    assert "ambiguous_index" in codes(ask(replace(TWO_MODELS, gpus=gpus)))


def test_a_gpu_in_a_high_pci_domain_is_named_as_sysfs_and_nvml_name_it() -> None:
    topology = made({0: "0-3"})
    gpu = replace(topology.gpus[0], pci_bus_id="10000:01:00.0")
    for name in ("00010000:01:00.0", "10000:01:00.0"):
        assert indices(replace(topology, gpus=(gpu,)), f"gpus={name}") == "0"


def test_an_unknown_mig_instance_is_noticed() -> None:
    for known in ("", "GPU-00", "0", "MIG-a1", "MIG-a"):
        assert not names_unknown_mig(EIGHT, Task(visible=known))
    for text in ("MIG-b", "0,MIG-a1,MIG-b", "ROCR_VISIBLE_DEVICES=MIG-b;x", "MIG-GPU-ff/1/0"):
        assert names_unknown_mig(EIGHT, Task(visible=text))


def test_a_gpu_that_is_lost_leaves_a_gap_in_the_numbers_not_another_gpu() -> None:
    whole = machine("dgx-a100")
    without = replace(whole, gpus=tuple(gpu for gpu in whole.gpus if gpu.index != 1))
    assert [indices(without, f"{name}=2") for name in ("gpus", "granted", "visible")] == ["2"] * 3
    assert ask(without).entries == ("0", "2", "3", "4", "5", "6", "7")
    with pytest.raises(NoSuchGpuError, match=r"no GPU 1; visible are 0 \(0000:07:00.0\), 2"):
        ask(without, gpus="1")


def test_a_file_that_is_no_gpu_s_is_of_one_that_is_lost() -> None:
    gpus = [replace(gpu, minor=None if gpu.index == 3 else gpu.index) for gpu in EIGHT.gpus]
    lost = replace(EIGHT, gpus=tuple(replace(gpu, mig=()) for gpu in gpus))
    of_rank = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "5"}
    assert ask(lost, granted="minor:2,minor:4,minor:5,minor:6", **of_rank).locality == "local"
    with pytest.raises(UnsatisfiableError, match=r"does not list GPU 3, and CUDA may count"):
        ask(lost, granted="minor:2,minor:3,minor:4,minor:5,minor:6", **of_rank)


def named(index: int, uuid: str | None) -> ComputeDevice:
    return ComputeDevice(Gpu(index, "nvidia", "0000:00:00.0", None, uuid=uuid))


#: 0 and 1 have the beginning of their UUIDs in common; 3 has none.
GPUS = (named(0, "GPU-aa01"), named(1, "GPU-aa02"), named(2, "GPU-bb03"), named(3, None))
INSTANCES = (ComputeDevice(GPUS[0].gpu, "MIG-cc04"), ComputeDevice(GPUS[0].gpu, "MIG-cc05"))
EVERYTHING = (*GPUS, *INSTANCES)
GIVEN = VisibleDevices(dict(enumerate(GPUS)), EVERYTHING, by_name=False)


def seen(value: str | None) -> list[int]:
    """Return the devices that a value leaves, by their place in EVERYTHING."""
    devices = read_visible(value, GIVEN).by_index.values()
    return [EVERYTHING.index(device) for device in devices]


@pytest.mark.parametrize(
    ("value", "expected"),
    cases("visible_devices.tsv"),
)
def test_a_list_is_read_as_by_the_driver(value: str, expected: str) -> None:
    assert seen(value) == list(map(int, expected.split()))


def test_blanks_before_indices_are_skipped_and_their_size_is_that_of_a_long() -> None:
    assert (seen(None), seen(" 2, \t0"), seen("0,\u00a01")) == ([0, 1, 2, 3], [2, 0], [0])
    assert seen(" GPU-bb") == []  # so it is a list of indices
    above = "0," + "9" * 5000 + ",1" + "0" * 5000  # above a long all are one number
    assert (seen(above), seen("0," + "0" * 5000 + "1")) == ([], [0, 1])


def test_a_numbering_by_name_is_told_from_one_by_index() -> None:
    by_name = ("GPU-bb", "MIG-cc04", "ROCR_VISIBLE_DEVICES=GPU-bb;HIP_VISIBLE_DEVICES=0")
    assert all(read_visible(it, GIVEN).by_name for it in by_name)
    assert not any(read_visible(it, GIVEN).by_name for it in (None, "0"))


def test_an_index_that_a_lost_gpu_has_left_ends_the_list() -> None:
    gap = VisibleDevices({0: GPUS[0], 2: GPUS[2]}, EVERYTHING, by_name=False)
    assert list(read_visible("2,0", gap).by_index.values()) == [GPUS[2], GPUS[0]]
    assert list(read_visible("0,1,2", gap).by_index.values()) == [GPUS[0]]
