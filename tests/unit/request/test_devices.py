"""Which GPU is meant: granted, visible, and named devices, in the node's own numbering."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from affinityd.errors import AffinityError, InvalidRequestError, NoSuchGpuError
from affinityd.request.devices import names_unknown_mig
from affinityd.topology.model import Gpu, MigInstance, Topology
from tests.support.asking import ask, codes
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine


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
TWO_VENDORS = replace(
    machine("threadripper-2990wx"),
    gpus=tuple(
        replace(gpu, uuid=f"GPU-{gpu.vendor}", render_minor=128 + place)
        for place, gpu in enumerate(machine("threadripper-2990wx").gpus)
    ),
)
#: CUDA counts the faster of the two first, whichever that is.
TWO_MODELS = _with_names(machine("mixed-models"))


def indices(topology: Topology, **parameters: str) -> list[int]:
    """Return the node's indices of the GPUs that ranks drive."""
    return [rank.gpu.index for rank in ask(topology, mode="node", **parameters).ranks]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param({}, [0, 1, 2, 3, 4, 5, 6, 7], id="all, if none is named"),
        pytest.param({"gpus": "all"}, [0, 1, 2, 3, 4, 5, 6, 7], id="all, by name"),
        pytest.param({"gpus": "3,0"}, [3, 0], id="by index, in the request's order"),
        pytest.param({"gpus": "1,1"}, [1, 1], id="one GPU twice is two ranks"),
        pytest.param({"gpus": " 1 , 2"}, [1, 2], id="blanks around entries"),
        pytest.param({"gpus": "GPU-120000"}, [2], id="by UUID"),
        pytest.param({"gpus": "GPU-12"}, [2], id="by the beginning of a UUID"),
        pytest.param({"gpus": "0000:47:00.0"}, [2], id="by PCI bus id"),
        pytest.param({"gpus": "00000000:47:00.0"}, [2], id="by PCI bus id as NVML prints it"),
        pytest.param({"gpus": "0000:4E:00.0"}, [3], id="by PCI bus id in capitals"),
        pytest.param({"gpus": "0000:BD:00.0,00000000:bd:00.0"}, [7, 7], id="of any case"),
        pytest.param({"gpus": "MIG-a1,MIG-a2"}, [5, 5], id="a MIG instance has its parent's place"),
        pytest.param({"gpus": "GPU-120000,0,0000:4e:00.0"}, [2, 0, 3], id="all kinds in one list"),
        pytest.param({"visible": "6,4"}, [6, 4], id="what is visible, in its order"),
        pytest.param({"visible": "6,4", "gpus": "1,0"}, [4, 6], id="indices count what is visible"),
        pytest.param({"visible": "6,4", "gpus": "GPU-00"}, [0], id="a UUID counts nothing"),
        pytest.param({"visible": "6,4", "gpus": "0000:07:00.0"}, [0], id="nor does a PCI bus id"),
        pytest.param({"visible": "GPU-36,GPU-12"}, [6, 2], id="visible by UUID"),
        pytest.param({"visible": "MIG-a2"}, [5], id="a visible MIG instance"),
        pytest.param({"granted": "5,2"}, [2, 5], id="granted GPUs are in node order"),
        pytest.param({"granted": "5, 2", "gpus": "0"}, [2], id="and numbered from 0"),
        pytest.param({"granted": "2,2,GPU-12"}, [2], id="granted twice is granted"),
        pytest.param({"granted": "minor:7,minor:3"}, [0, 4], id="granted by device minor"),
        pytest.param({"granted": "GPU-36,1"}, [1, 6], id="granted by UUID"),
        pytest.param({"granted": "MIG-a2", "gpus": "0"}, [5], id="a granted MIG instance"),
        pytest.param({"granted": "5", "gpus": "MIG-a1"}, [5], id="an instance of a granted GPU"),
        pytest.param({"granted": "5,MIG-a1", "gpus": "MIG-a1"}, [5], id="or one granted with it"),
        pytest.param(
            {"granted": "2,4,6", "visible": "2,0"}, [6, 2], id="visible counts the granted"
        ),
        pytest.param(
            {"granted": "2,4,6", "visible": "2,0", "gpus": "1"}, [2], id="and indices what is left"
        ),
        pytest.param(
            {"granted": "2,4,6", "visible": "0", "gpus": "GPU-36"},
            [6],
            id="a granted GPU may be named, visible or not",
        ),
    ],
)
def test_the_gpus_that_are_meant(parameters: dict[str, str], expected: list[int]) -> None:
    assert indices(EIGHT, **parameters) == expected


@pytest.mark.parametrize(
    ("parameters", "vendor"),
    [
        pytest.param({}, "nvidia", id="all are the first vendor's"),
        pytest.param({"gpus": "0"}, "nvidia", id="an index is the first vendor's"),
        pytest.param({"visible": "0"}, "nvidia", id="a visible index, too"),
        pytest.param({"granted": "0"}, "nvidia", id="a granted index, too"),
        pytest.param({"gpus": "0000:44:00.0"}, "amd", id="a PCI bus id names any"),
        pytest.param({"gpus": "GPU-amd"}, "amd", id="a UUID names any"),
        pytest.param({"granted": "GPU-amd"}, "amd", id="granted by UUID, the other vendor's is 0"),
        pytest.param({"granted": "drm:129", "gpus": "0"}, "amd", id="granted by render node, too"),
        pytest.param({"granted": "drm:128"}, "nvidia", id="a render node may be the first's"),
        pytest.param({"granted": "GPU-amd,GPU-nvidia"}, "nvidia", id="both: the first vendor's"),
    ],
)
def test_indices_count_by_vendor(parameters: dict[str, str], vendor: str) -> None:
    (rank,) = ask(TWO_VENDORS, **parameters).ranks
    assert (rank.gpu.vendor, rank.gpu.index) == (vendor, 0)


@pytest.mark.parametrize(
    ("topology", "parameters", "message"),
    [
        pytest.param(
            machine("mixed-models"),
            {"gpus": "2"},
            "no GPU 2; visible are 0 (0000:3b:00.0), 1 (0000:af:00.0)",
            id="an index beyond the last, and which there are",
        ),
        pytest.param(
            machine("mixed-models"),
            {"gpus": "1", "visible": "1"},
            "no GPU 1; visible are 0 (0000:af:00.0)",
            id="an index beyond the last visible",
        ),
        pytest.param(
            machine("mixed-models"),
            {"gpus": "0000:00:00.0", "visible": ""},
            "no GPU '0000:00:00.0'; by name there are 0000:3b:00.0, 0000:af:00.0",
            id="a PCI bus id without a GPU",
        ),
        pytest.param(
            TWO_MODELS,
            {"gpus": "GPU-1"},
            "no GPU 'GPU-1'; visible are 0 (0000:3b:00.0), 1 (0000:af:00.0)",
            id="a UUID that is not here",
        ),
        pytest.param(
            TWO_MODELS,
            {"gpus": "GPU-0"},
            "2 GPUs begin with 'GPU-0'; visible are 0 (0000:3b:00.0), 1 (0000:af:00.0)",
            id="a UUID that is not unique",
        ),
        pytest.param(
            TWO_MODELS,
            {"gpus": "GPU-01", "granted": "0"},
            "no GPU 'GPU-01'; visible are 0 (0000:3b:00.0)",
            id="a GPU that was not granted, by UUID",
        ),
        pytest.param(
            TWO_MODELS,
            {"gpus": "0000:af:00.0", "granted": "0"},
            "no GPU '0000:af:00.0'; visible are 0 (0000:3b:00.0)",
            id="a GPU that was not granted, by PCI bus id",
        ),
        pytest.param(
            TWO_MODELS,
            {"granted": "minor:5"},
            "granted: no GPU has minor:5; this machine has 6, 7",
            id="a minor that is not here",
        ),
        pytest.param(
            TWO_MODELS,
            {"granted": "drm:128"},
            "granted: no GPU has drm:128; this machine has none",
            id="a render node where none is known",
        ),
        pytest.param(
            TWO_MODELS,
            {"granted": "0,9"},
            "granted: no GPU 9; visible are 0 (0000:3b:00.0), 1 (0000:af:00.0)",
            id="a granted index that is not here",
        ),
        pytest.param(
            TWO_VENDORS,
            {"granted": "1"},
            "granted: no GPU 1; visible are 0 (0000:08:00.0)",
            id="a granted index does not go on with another vendor's",
        ),
        pytest.param(
            EIGHT,
            {"granted": "none"},
            "granted=none: the caller was given no GPU",
            id="none granted",
        ),
        pytest.param(
            machine("mixed-models"),
            {"visible": ""},
            "no GPU is visible to the caller; by name there are 0000:3b:00.0, 0000:af:00.0",
            id="none visible",
        ),
        pytest.param(
            machine("laptop"),
            {},
            "no GPU is visible to the caller; this machine has none",
            id="none",
        ),
        pytest.param(
            machine("laptop"), {"gpus": "0"}, "no GPU 0; this machine has none", id="none, by index"
        ),
    ],
)
def test_a_gpu_that_is_not_here_is_told_with_those_that_are(
    topology: Topology, parameters: dict[str, str], message: str
) -> None:
    with pytest.raises(NoSuchGpuError, match=rf"\A{re.escape(message)}\Z"):
        ask(topology, **parameters)


@pytest.mark.parametrize(
    ("parameters", "quoted"),
    [
        pytest.param({"gpus": "x"}, "gpus: 'x'", id="a word"),
        pytest.param({"gpus": "-1"}, "gpus: '-1'", id="a negative index"),
        pytest.param({"gpus": "1.0"}, "gpus: '1.0'", id="no whole number"),
        pytest.param({"gpus": "0-3"}, "gpus: '0-3'", id="a range"),
        pytest.param({"gpus": "1e1"}, "gpus: '1e1'", id="an exponent"),
        pytest.param({"gpus": "٣"}, "gpus: '٣'", id="a digit of another script"),
        pytest.param({"gpus": "GPU-"}, "gpus: 'GPU-'", id="a UUID without one"),
        pytest.param({"gpus": "gpu-000000"}, "gpus: 'gpu-000000'", id="a UUID in small letters"),
        pytest.param({"gpus": "07:00.0"}, "gpus: '07:00.0'", id="a PCI bus id without its domain"),
        pytest.param({"gpus": "000:07:00.0"}, "gpus: '000:07:00.0'", id="a domain of three digits"),
        pytest.param({"gpus": "0000:07:00.8"}, "gpus: '0000:07:00.8'", id="a ninth function"),
        pytest.param({"gpus": "0000:07:00.0\nx"}, r"'0000:07:00.0\nx'", id="a newline"),
        pytest.param({"granted": "x"}, "granted: 'x'", id="granted: a word"),
        pytest.param({"granted": "0,none"}, "granted: 'none'", id="granted: none and more"),
        pytest.param({"granted": "all"}, "granted: 'all'", id="granted: all"),
        pytest.param({"granted": "minor:"}, "granted: 'minor:'", id="granted: a minor without one"),
        pytest.param(
            {"granted": "minor:-1"}, "granted: 'minor:-1'", id="granted: a negative minor"
        ),
        pytest.param({"granted": "minor:٣"}, "granted: 'minor:٣'", id="granted: an odd digit"),
        pytest.param({"granted": "MINOR:1"}, "granted: 'MINOR:1'", id="granted: minor in capitals"),
        pytest.param({"granted": "minor:" + "1" * 5000}, "1" * 54 + "…", id="granted: 5000 digits"),
    ],
)
def test_what_names_no_device_at_all_is_malformed(parameters: dict[str, str], quoted: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"\A.{1,300}\Z") as caught:
        ask(EIGHT, **parameters)
    assert quoted in str(caught.value)


@pytest.mark.parametrize("entry", ["GPU-\r\x1b[2J", "GPU-" + "x" * 5000, "MIG-\u2028"], ids=ascii)
def test_an_odd_name_is_quoted_on_one_short_line(entry: str) -> None:
    for parameters in {"gpus": entry}, {"granted": entry}:
        with pytest.raises(AffinityError) as caught:
            ask(EIGHT, **parameters)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("topology", "parameters", "warned"),
    [
        pytest.param(TWO_MODELS, {}, True, id="all GPUs, in an order that CUDA may not have"),
        pytest.param(TWO_MODELS, {"gpus": "0"}, True, id="an index"),
        pytest.param(TWO_MODELS, {"gpus": "GPU-00,1"}, True, id="an index among others"),
        pytest.param(TWO_MODELS, {"visible": "0"}, True, id="a visible index"),
        pytest.param(TWO_MODELS, {"gpus": "GPU-00"}, False, id="a UUID"),
        pytest.param(TWO_MODELS, {"gpus": "0000:3b:00.0"}, False, id="a PCI bus id"),
        pytest.param(TWO_MODELS, {"visible": "GPU-01,GPU-00"}, False, id="visible by UUID"),
        pytest.param(
            TWO_MODELS, {"visible": "GPU-01,GPU-00", "gpus": "1"}, False, id="an index of those"
        ),
        pytest.param(TWO_MODELS, {"granted": "1"}, False, id="one model granted"),
        pytest.param(TWO_MODELS, {"granted": "0,1"}, True, id="both models granted"),
        pytest.param(EIGHT, {"gpus": "0"}, False, id="one model"),
        pytest.param(TWO_VENDORS, {"gpus": "0"}, False, id="two vendors count apart"),
    ],
)
def test_an_index_is_ambiguous_on_mixed_models_unless_uuids_number_it(
    topology: Topology, parameters: dict[str, str], warned: bool
) -> None:
    assert ("ambiguous_index" in codes(ask(topology, **parameters))) == warned


def test_models_are_told_apart_by_pci_id_where_nothing_names_them() -> None:
    gpus = tuple(replace(gpu, model=None) for gpu in TWO_MODELS.gpus)
    assert len({gpu.pci_id for gpu in gpus}) == 2
    assert "ambiguous_index" in codes(ask(replace(TWO_MODELS, gpus=gpus)))


def test_a_gpu_in_a_high_pci_domain_is_named_as_sysfs_and_nvml_name_it() -> None:
    topology = made({0: "0-3"})
    gpu = replace(topology.gpus[0], pci_bus_id="10000:01:00.0")
    assert indices(replace(topology, gpus=(gpu,)), gpus="00010000:01:00.0") == [0]


@pytest.mark.parametrize(
    ("texts", "unknown"),
    [
        pytest.param(["MIG-a1"], False, id="one that is known"),
        pytest.param(["MIG-a"], False, id="the beginning of some that are known"),
        pytest.param(["MIG-b"], True, id="one that is not"),
        pytest.param(["0,MIG-a1,MIG-b"], True, id="one of several"),
        pytest.param([None, "", "GPU-00", "0"], False, id="none is named"),
        pytest.param([None, "ROCR_VISIBLE_DEVICES=MIG-b;x"], True, id="in another text"),
    ],
)
def test_an_unknown_mig_instance_is_noticed(texts: list[str | None], unknown: bool) -> None:
    assert names_unknown_mig(EIGHT, *texts) == unknown


def test_a_gpu_that_is_lost_leaves_a_gap_in_the_numbers_not_another_gpu() -> None:
    whole = machine("dgx-a100")
    without = replace(whole, gpus=tuple(gpu for gpu in whole.gpus if gpu.index != 1))
    for parameters in ({"gpus": "2"}, {"granted": "2"}, {"visible": "2"}):
        assert [rank.gpu.index for rank in ask(without, **parameters).ranks] == [2]
    assert ask(without).entries == ("0", "2", "3", "4", "5", "6", "7")
    with pytest.raises(NoSuchGpuError, match=r"no GPU 1; visible are 0 \(0000:07:00.0\), 2"):
        ask(without, gpus="1")


def test_an_index_of_5000_digits_is_no_gpu_and_costs_no_more_than_a_line() -> None:
    with pytest.raises(NoSuchGpuError) as caught:
        ask(machine("dgx-a100"), gpus="9" * 5000)
    assert str(caught.value).startswith(f"no GPU '{'9' * 60}…'; visible are 0 (0000:07:00.0)")
