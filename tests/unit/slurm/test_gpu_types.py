"""Which type each GPU of a node has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.slurm.expected import expected
from affinityd.slurm.gpu_types import SLICES, GpuTypes, types
from affinityd.topology.model import Gpu, MigInstance
from tests.support.machines.by_hand import made
from tests.support.tables import rows

MODELS = {
    "A": "NVIDIA A100-SXM4-40GB",
    "B": "NVIDIA A100-SXM4-80GB",
    "V": "Tesla V100-PCIE-16GB",
    "-": None,
}


def gpus(models: str) -> tuple[Gpu, ...]:
    """Return GPUs of these models, the first is /dev/nvidia0."""
    found = made({0: "0-7"}, gpus=[0] * len(models)).gpus
    pairs = enumerate(zip(found, models, strict=True))
    return tuple(replace(gpu, minor=number, model=MODELS[it]) for number, (gpu, it) in pairs)


@pytest.mark.parametrize(
    ("models", "gres", "present", "kinds"),
    rows("""
one type                            | AA  | gpu:a100:2             |           | a100 a100
one type that is no model           | -V  | gpu:big:2              |           | big big
any case, and blanks                | VA  | gpu:A100:1,gpu:Tesla_V100:1 |      | Tesla_V100 A100
of two types that fit, the longest  | BA  | gpu:a100:1,gpu:a100-sxm4-40gb:1 |  | a100 a100-sxm4-40gb
more GPUs than Gres= has            | AAV | gpu:a100:1,gpu:v100:1  |           | a100 a100 v100
what is no model is not guessed     | AA  | gpu:a100:1,gpu:debug:1 |           | a100 ?
nor needs to be with the present lines | AA | gpu:a100:1,gpu:debug:1 | debug a100 | debug a100
the present lines are crossed       | AV  | gpu:a100:1,gpu:v100:1  | v100 a100 | a100 v100
no names, and the present lines     | --  | gpu:a100:1,gpu:v100:1  | v100 a100 | v100 a100
which have other numbers            | --  | gpu:a100:1,gpu:v100:1  | v100 v100 | ? ?
types of MIG instances              | AA  | gpu:a100_3g.20gb:2,gpu:a100_1g.5gb:2 | | ? ?
Gres= has no type                   | AA  | gpu:2                  | x x       | None None
nothing is known                    | AA  |                        |           | None None
the present lines alone             | AA  |                        | x         | x x
which have no type                  | AA  |                        | None None | None None
which have several                  | AAA |                        | x y       | x y ?
"""),
)
def test_the_types_of_gpus(models: str, gres: str, present: str, kinds: str) -> None:
    """`present`: the types in slurmd's lines; `?`: undecided, and the reason says so."""
    wanted = expected("slurm.conf", {"gres": gres}) if gres else None
    lines = enumerate(None if it == "None" else it for it in present.split())
    found = types(gpus(models), wanted, {f"/dev/nvidia{at}": kind for at, kind in lines})
    assert " ".join(f"{found.of.get(gpu.key, '?')}" for gpu in gpus(models)) == kinds
    assert found.why is not None or "?" not in kinds


def test_whole_gpus_are_not_given_the_types_of_their_mig_instances() -> None:
    sliced = tuple(replace(gpu, mig=(MigInstance("MIG-0"),)) for gpu in gpus("AA"))
    wanted = expected("slurm.conf", {"gres": "gpu:a100_3g.20gb:4"})
    assert types(sliced, wanted, {}) == GpuTypes({}, SLICES)
    whole = expected("slurm.conf", {"gres": "gpu:a100:2"})
    assert set(types(sliced, whole, {}).of.values()) == {"a100"}
