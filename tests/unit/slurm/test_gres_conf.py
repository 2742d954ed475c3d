"""A node's lines of gres.conf, which have Slurm's numbers of cores."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from affinityd.cpuset import format_list
from affinityd.slurm.cores import SlurmCores, affinities
from affinityd.slurm.gres_conf import GpuTypes, GresConf, TypeCounts, read_gres
from affinityd.topology.model import Core, Gpu, MigInstance, Topology
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.paths import DATA
from tests.support.tables import rows

MI250X = (DATA / "golden/gres-mi250x.conf").read_text()  # as on a node of LUMI


def with_minors(topology: Topology, minors: Iterable[int]) -> Topology:
    """Return a machine whose drivers report the minor numbers of its device files."""
    gpus = (
        replace(gpu, minor=minor, render_minor=minor)
        for gpu, minor in zip(topology.gpus, minors, strict=True)
    )
    return replace(topology, gpus=tuple(gpus))


def cores_of(topology: Topology, scope: str = "node") -> list[str | None]:
    found = affinities(SlurmCores(topology), scope)
    rights = (found[gpu.key].right for gpu in topology.gpus)
    return [None if right is None else format_list(right) for right in rights]


def order(topology: Topology) -> list[int]:
    return [core.cpus[0] for core in SlurmCores(topology).order]


def of_gpus(conf: GresConf) -> list[str]:
    return [line for line in conf.lines() if not line.startswith("#")]


def test_the_lines_for_a_node_of_lumi_equal_the_golden_file() -> None:
    node = with_minors(machine("mi250x"), range(128, 136))
    assert GresConf(node).lines() == MI250X.splitlines()
    named = [f"NodeName=n1 {line}" for line in MI250X.splitlines() if line[0] != "#"]
    assert GresConf(node).lines("n1")[4:] == named


def test_cores_are_numbered_package_by_package_and_cache_by_cache_not_as_cpus_are() -> None:
    lists = {0: "0-14:2", 1: "1-15:2"}
    interleaved = made(lists, gpus=[0, 1], packages=lists)
    assert order(interleaved) == [*range(0, 16, 2), *range(1, 16, 2)]
    assert cores_of(interleaved) == ["0-7", "8-15"]
    caches = tuple(Core((cpu,), 0, 0, None, llc=cpu % 2) for cpu in range(4))
    assert order(replace(made({0: "0-3"}), cores=caches)) == [0, 2, 1, 3]
    crossed = made({0: "0-2,7", 1: "3-6"}, packages={0: "0-3", 1: "4-7"})
    assert order(crossed) == list(range(8))  # a node over packages changes no number


NODES_OF_TWO = {0: "0-3,8-11", 1: "4-7,12-15"}
ADJACENT = made({0: "0-7", 1: "8-15"}, gpus=[1, 0], threads=2, siblings="adjacent")
HALVES = {0: "0-1", 1: "2-3", 2: "4-7"}
BARREN = {0: "0-3", 1: "4-7", 2: ""}


@pytest.mark.parametrize(
    ("node", "scope", "cores"),
    [
        # The numbers are those of cores, not of CPUs.
        (ADJACENT, "node", ["4-7", "0-3"]),
        # A core has a number if one of its threads is online.
        (made(NODES_OF_TWO, [0, 1], threads=2, online="0,2-8,10-15"), "node", ["0-2", "3-6"]),
        # If all cores are in one node, every core is near.
        (made({0: "0-7"}, gpus=[0, None]), "node", [None, None]),
        # The node of the first GPU is not known.
        (made({0: "0-3", 1: "4-7"}, gpus=[None, 1]), "node", [None, "4-7"]),
        # The package has every core in the first row, and two nodes in the second.
        (made({0: "0-3", 1: "4-7"}, gpus=[0]), "socket", [None]),
        (made(HALVES, gpus=[1, 2], packages={0: "0-3", 1: "4-7"}), "socket", ["0-3", "4-7"]),
        # The GPU's node has no CPUs, and others are the nearest.
        (made(BARREN, [2], distances=[("2", "0", 40), ("2", "1", 20)]), "node", ["4-7"]),
        (made(BARREN, [2, 2], distances=[("2", "0-1", 20)]), "node", [None, None]),
        (made({**BARREN, 3: "8-9"}, [2], distances=[("2", "0-1", 20)]), "node", ["0-7"]),
    ],
)
def test_the_field_cores_lists_the_near_cores_of_each_gpu(
    node: Topology, scope: str, cores: list[str | None]
) -> None:
    assert cores_of(node, scope) == cores


def test_settings_are_printed_only_if_numa_nodes_are_not_packages() -> None:
    a100 = machine("dgx-a100")
    h100 = GresConf(with_minors(machine("dgx-h100"), range(8)))
    for conf in h100, GresConf(a100, scope="socket"):
        assert conf.settings is None
        assert not any("slurm.conf" in line for line in conf.lines())


def test_a_gpu_whose_device_file_is_unknown_has_a_comment_instead_of_a_line() -> None:
    node = with_minors(machine("dgx-a100"), range(8))
    node = replace(node, gpus=(replace(node.gpus[0], minor=None), *node.gpus[1:]))
    conf = GresConf(node)
    assert conf.unknown == [node.gpus[0]]
    assert conf.lines()[4] == (
        "# gpu 0 (0000:07:00.0): its minor is not known (NVIDIA's driver would tell it): "
        "Name=gpu File=/dev/nvidia? Cores=48-63"
    )
    assert len(of_gpus(conf)) == 7


def test_gpus_of_a_vendor_with_unknown_device_files_have_no_lines() -> None:
    conf = GresConf(machine("ascend-910b"))
    assert of_gpus(conf) == []
    assert "vendor huawei" in conf.lines()[-1]


def types_of(gpus: tuple[Gpu, ...], gres: TypeCounts | None) -> GpuTypes:
    return GresConf(replace(made({0: "0-7"}, gpus=[]), gpus=gpus), gres=gres).types


def some_gpus(number: int) -> tuple[Gpu, ...]:
    return with_minors(made({0: "0-7"}, gpus=[0] * number), range(number)).gpus


@pytest.mark.parametrize(
    ("gres", "kinds"),
    rows("""
one type           | gpu:a100:2            | a100 a100
several types      | gpu:a100:1,gpu:v100:1 | ? ?
Gres= has no type  | gpu:2                 | None None
nothing is known   |                       | None None
"""),
)
def test_the_type_of_each_gpu_is_the_option_s_or_slurmctld_s(gres: str, kinds: str) -> None:
    """`?` is a type that is not decided, for a reason that is given."""
    gpus = some_gpus(2)
    types = types_of(gpus, read_gres(gres) if gres else None)
    assert " ".join(f"{types.of.get(gpu.key, '?')}" for gpu in gpus) == kinds
    assert types.why is not None or "?" not in kinds


def test_gpus_that_may_be_mig_instances_have_no_type() -> None:
    sliced = tuple(replace(gpu, mig=(MigInstance("MIG-0"),)) for gpu in some_gpus(2))
    types = types_of(sliced, read_gres("gpu:a100_3g.20gb:4"))
    assert types.of == {}
    assert "AutoDetect=nvml" in (types.why or "")
    assert set(types_of(sliced, read_gres("gpu:4")).of.values()) == {None}
