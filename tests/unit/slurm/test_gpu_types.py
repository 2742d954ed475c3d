"""Which type each GPU of a node has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from affinityd.slurm.expected import expected
from affinityd.slurm.gpu_types import SLICES, GpuTypes, types
from affinityd.topology.model import Gpu, MigInstance
from tests.support.machines.by_hand import made

A100, A800, V100 = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-16GB"


def gpus(*models: str | None) -> tuple[Gpu, ...]:
    """Return GPUs of these models, the first is /dev/nvidia0."""
    found = made({0: "0-7"}, gpus=[0] * len(models)).gpus
    pairs = enumerate(zip(found, models, strict=True))
    return tuple(replace(gpu, minor=number, model=model) for number, (gpu, model) in pairs)


@pytest.mark.parametrize(
    ("models", "gres", "present", "kinds"),
    [
        ((A100, A100), "gpu:a100:2", {}, ["a100", "a100"]),
        ((None, V100), "gpu:big:2", {}, ["big", "big"]),
        ((A100, A100, V100), "gpu:a100:2,gpu:v100:1", {}, ["a100", "a100", "v100"]),
        ((V100, A100), "gpu:A100:1,gpu:Tesla_V100:1", {}, ["Tesla_V100", "A100"]),
        ((A800, A100), "gpu:a100:1,gpu:a100-sxm4-40gb:1", {}, ["a100", "a100-sxm4-40gb"]),
        ((A100, A100, V100), "gpu:a100:1,gpu:v100:1", {}, ["a100", "a100", "v100"]),
        ((A100, A100), "gpu:a100:1,gpu:debug:1", {}, ["a100", "?"]),
        ((A100, A100), "gpu:a100:1,gpu:debug:1", {0: "debug", 1: "a100"}, ["debug", "a100"]),
        ((A100, V100), "gpu:a100:1,gpu:v100:1", {0: "v100", 1: "a100"}, ["a100", "v100"]),
        ((None, None), "gpu:a100:1,gpu:v100:1", {}, ["?", "?"]),
        ((None, None), "gpu:a100:1,gpu:v100:1", {0: "v100", 1: "a100"}, ["v100", "a100"]),
        ((None, None), "gpu:a100:1,gpu:v100:1", {0: "v100", 1: "v100"}, ["?", "?"]),
        ((A100, A100), "gpu:a100_3g.20gb:2,gpu:a100_1g.5gb:2", {}, ["?", "?"]),
        ((A100, A100), "gpu:2", {0: "x", 1: "x"}, [None, None]),
        ((A100, A100), "", {}, [None, None]),
        ((A100, A100), None, {}, [None, None]),
        ((A100, A100), None, {0: "x"}, ["x", "x"]),
        ((A100, A100), None, {0: None, 1: None}, [None, None]),
        ((A100, A100, A100), None, {0: "x", 1: "y"}, ["x", "y", "?"]),
    ],
    ids=[
        "one type",
        "one type that is no model",
        "two models",
        "any case, and blanks",
        "of two types that fit, the longest",
        "more GPUs than Gres= has",
        "a type that is no model is not guessed",
        "a type that is no model, and the present lines",
        "the present lines are crossed",
        "no names",
        "no names, and the present lines",
        "no names, and the present lines have other numbers",
        "types of MIG instances",
        "Gres= has no type",
        "Gres= has no GPU",
        "nothing is known",
        "the present lines alone: the others have the same type",
        "the present lines alone have no type",
        "the present lines alone have several",
    ],
)
def test_the_types_of_gpus(
    models: tuple[str | None, ...],
    gres: str | None,
    present: Mapping[int, str | None],
    kinds: list[str | None],
) -> None:
    """`present`: minor → type; `?`: undecided, and the reason says so."""
    wanted = None if gres is None else expected("slurm.conf", {"gres": gres})
    of = gpus(*models)
    found = types(of, wanted, {f"/dev/nvidia{minor}": kind for minor, kind in present.items()})
    assert [found.of.get(gpu.key, "?") for gpu in of] == kinds
    assert found.why is not None or "?" not in kinds


def test_whole_gpus_are_not_given_the_types_of_their_mig_instances() -> None:
    sliced = tuple(replace(gpu, mig=(MigInstance("MIG-0"),)) for gpu in gpus(A100, A100))
    wanted = expected("slurm.conf", {"gres": "gpu:a100_3g.20gb:4"})
    assert types(sliced, wanted, {}) == GpuTypes({}, SLICES)
    whole = expected("slurm.conf", {"gres": "gpu:a100:2"})
    assert set(types(sliced, whole, {}).of.values()) == {"a100"}
