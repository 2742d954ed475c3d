"""What is wrong about the GPUs that Slurm has, and about jobs that are far from theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.cpuset import parse_list
from affinityd.slurm.check import ALTERNATING, NARROW, GresCheck
from affinityd.slurm.cores import SCOPES
from affinityd.slurm.expected import ExpectedNode, expected
from affinityd.slurm.gres_conf import GresConf
from affinityd.slurm.gres_counts import DRAINED
from affinityd.slurm.jobs import REMEDY, SlurmJob, far
from affinityd.slurm.slurmd import SlurmdGres, parse
from affinityd.topology.model import MigInstance, Topology
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.nvlinks import linked_machines, switched, with_nvlinks
from tests.support.machines.strategies import machines

#: Two packages of two NUMA nodes each, 16 cores, 32 CPUs: core c has the CPUs c and c + 16.
NODES = {0: "0-3,16-19", 1: "4-7,20-23", 2: "8-11,24-27", 3: "12-15,28-31"}
PACKAGES = {0: "0-7,16-23", 1: "8-15,24-31"}


def node(*gpu_nodes: int | None) -> Topology:
    """Return that machine with a GPU on each of these nodes: /dev/nvidia0 and on."""
    topology = made(NODES, gpus=gpu_nodes, threads=2, packages=PACKAGES)
    return replace(topology, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in topology.gpus))


def slurmd(lines: str) -> SlurmdGres:
    """Return what slurmd has of lines of gres.conf that it takes as they are."""
    kept = [line for line in lines.splitlines() if line.strip() and not line.startswith("#")]
    return parse("\n".join(f"slurmd: Gres {line.split('gpu07 ')[-1]}" for line in kept))


def found(
    lines: str, topology: Topology, scope: str = "node", expected: ExpectedNode | None = None
) -> list[str]:
    """Return what is found in lines of gres.conf."""
    return list(map(str, GresCheck(slurmd(lines), topology, scope, expected).findings()))


LINE = "Name=gpu File=/dev/nvidia{}"


@pytest.mark.parametrize(
    ("gpu_node", "cores", "fault"),
    [
        (3, "12-15", None),
        (3, "8-15", None),
        (3, "0-7", "is package 0, the GPU is on package 1 (node 3); right is Cores=12-15"),
        (3, "8-11", "is node 2, the GPU is on package 1 (node 3); right is Cores=12-15"),
        (3, "12-14", "leaves out cores 15, the GPU is on package 1 (node 3); right is Cores=12-15"),
        (
            3,
            "10-15",
            "has cores 10-11 of node 2, the GPU is on package 1 (node 3); right is Cores=12-15",
        ),
        (
            3,
            "0-15",
            "has cores 0-11 of nodes 0-2, the GPU is on package 1 (node 3); right is Cores=12-15",
        ),
        (
            3,
            "12-15,28-31",
            "are the CPU numbers of the right cores, and Slurm counts cores; right is Cores=12-15",
        ),
        (
            3,
            "24-31",
            (
                "goes beyond core 15, the last of this node: CPU numbers? Slurm counts cores; "
                "right is Cores=12-15"
            ),
        ),
        (3, "12-40", "goes beyond core 15, the last of this node; right is Cores=12-15"),
        (None, "0-3", None),
        (None, "0-40", "goes beyond core 15, the last of this node; right is no Cores="),
    ],
)
def test_the_cores_of_a_gpu_are_judged(gpu_node: int | None, cores: str, fault: str | None) -> None:
    text = f"{LINE.format(0)} Cores={cores}"
    expected = [] if fault is None else [f"gpu 0: Cores={cores} {fault}"]
    assert found(text, node(gpu_node)) == expected


def test_cpu_numbers_are_told_where_none_is_beyond_the_cores() -> None:
    adjacent = made({0: "0-7", 1: "8-15", 2: "16-31"}, gpus=[1], threads=2, siblings="adjacent")
    adjacent = replace(adjacent, gpus=(replace(adjacent.gpus[0], minor=0),))
    (text,) = found(f"{LINE.format(0)} Cores=8-15", adjacent)
    assert "are the CPU numbers of the right cores" in text
    assert text.endswith("right is Cores=4-7")


def test_a_gpu_without_cores_beside_it_is_judged_by_the_nearest() -> None:
    far_gpu = made({0: "0-3", 1: "4-7", 2: ""}, gpus=[2], distances=[("2", "1", 20)])
    far_gpu = replace(far_gpu, gpus=(replace(far_gpu.gpus[0], minor=0),))
    assert found(f"{LINE.format(0)} Cores=4-7", far_gpu) == []
    (text,) = found(f"{LINE.format(0)} Cores=0-3", far_gpu)
    assert text.endswith(
        "is node 0, the nearest cores are on package 0 (node 1); right is Cores=4-7"
    )


TWO = "Name=gpu File=/dev/nvidia0 Cores=0-3\nName=gpu File=/dev/nvidia1 Cores=12-15\n"


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        (TWO, []),
        (f"{TWO}Name=nic Count=2\nName=shard Count=8 File=/dev/nvidia0 Cores=9\n", []),
        (
            "Name=gpu Count=2 File=/dev/nvidia[0-1] Cores=0-3",
            [
                (
                    "gpu 1: Cores=0-3 is package 0, the GPU is on package 1 (node 3); "
                    "right is Cores=12-15"
                )
            ],
        ),
        (
            "Name=gpu Count=2 File=/dev/nvidia[0-1]",
            [
                ("gpu 0: the line has no Cores=, the GPU is on package 0 (node 0); add Cores=0-3"),
                (
                    "gpu 1: the line has no Cores=, the GPU is on package 1 (node 3); "
                    "add Cores=12-15"
                ),
            ],
        ),
        (
            TWO.splitlines()[0],
            [
                (
                    "gpu 1: Slurm has no /dev/nvidia1; its line is Name=gpu File=/dev/nvidia1 "
                    "Cores=12-15"
                )
            ],
        ),
        (
            f"{TWO}Name=gpu File=/dev/nvidia7",
            ["/dev/nvidia7 is no GPU of this node; there are /dev/nvidia0, /dev/nvidia1"],
        ),
        (f"{TWO}{TWO.splitlines()[0]}", ["gpu 0: Slurm has /dev/nvidia0 2 times"]),
        (
            "\n".join(reversed(TWO.splitlines())),
            [
                ("/dev/nvidia1 is gpu 0 to Slurm and 1 to CUDA; /dev/nvidia0 belongs in its place"),
                ("/dev/nvidia0 is gpu 1 to Slurm and 0 to CUDA; /dev/nvidia1 belongs in its place"),
            ],
        ),
        (
            (
                "Name=gpu Count=1 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22] Cores=0-3\n"
                "Name=gpu Count=1 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[30-31] Cores=0-3\n"
                "Name=gpu Count=1 File=/dev/nvidia1 Cores=12-15"
            ),
            [],
        ),
    ],
    ids=[
        "right lines",
        "other devices are passed over",
        "one line for GPUs of two nodes",
        "no Cores=",
        "a GPU that Slurm has not",
        "a device that is no GPU",
        "a GPU twice",
        "not in bus order",
        "instances of one GPU",
    ],
)
def test_the_lines_of_two_gpus_are_judged(text: str, findings: list[str]) -> None:
    assert found(text, node(0, 3)) == findings


def with_models(topology: Topology, *models: str) -> Topology:
    """Return a machine whose GPUs are of these models."""
    gpus = zip(topology.gpus, models, strict=True)
    return replace(topology, gpus=tuple(replace(gpu, model=model) for gpu, model in gpus))


def lines_of(*kinds: str | None) -> str:
    """Return the right lines of both GPUs, with types."""
    types = ("" if kind is None else f" Type={kind}" for kind in kinds)
    lines = zip(TWO.splitlines(), types, strict=True)
    return "\n".join(line.replace("gpu", f"gpu{kind}", 1) for line, kind in lines)


A100, V100 = "NVIDIA A100-SXM4-40GB", "Tesla V100-PCIE-16GB"


@pytest.mark.parametrize(
    ("text", "gres", "findings"),
    [
        (lines_of("a100", "a100"), "gpu:a100:2", []),
        (TWO, "gpu:2", []),
        (TWO, "gpu:2(S:0-1),shard:8", []),
        (lines_of("a100", "debug"), "gpu:a100:1,gpu:debug:1", []),
        (
            lines_of("A100", "a100"),
            "gpu:a100:2",
            [
                f"gpu 0: Type=A100 is not in Gres=gpu:a100:2 (s): {DRAINED}; right is Type=a100",
                (
                    f"Gres=gpu:a100:2 has 2 GPUs of type a100, and slurmd 1: {DRAINED}; write "
                    "lines for all, or write Gres=gpu:a100:1"
                ),
            ],
        ),
        (
            TWO,
            "gpu:3",
            [
                (
                    f"Gres=gpu:3 has 3 GPUs, and slurmd 2: {DRAINED}; write lines for all, or "
                    "write Gres=gpu:2"
                )
            ],
        ),
        (
            lines_of("a100", "a100"),
            "gpu:a100:1",
            [
                (
                    "Gres=gpu:a100:1 has 1 GPU of type a100, and the node 2: Slurm gives no job "
                    "the other 1; write Gres=gpu:a100:2"
                )
            ],
        ),
        (
            lines_of("a100", "a100"),
            "",
            ["Gres= has no gpu: Slurm gives no job the node's GPUs; write Gres=gpu:2"],
        ),
        (
            TWO.replace("Name=gpu", "Name=GPU"),
            "gpu:2",
            [
                f"gpu 0: Name='GPU' is not gpu: {DRAINED}; write Name=gpu",
                f"gpu 1: Name='GPU' is not gpu: {DRAINED}; write Name=gpu",
                (
                    f"Gres=gpu:2 has 2 GPUs, and slurmd 0: {DRAINED}; write lines for all, or "
                    "leave gpu out of Gres="
                ),
            ],
        ),
    ],
    ids=[
        "types agree",
        "none has a type",
        "as scontrol shows it",
        "a type that is no model",
        "another case",
        "too few lines",
        "too small a number",
        "no GPUs in Gres=",
        "another case of gpu",
    ],
)
def test_the_lines_are_compared_with_what_slurmctld_expects(
    text: str, gres: str, findings: list[str]
) -> None:
    wanted = expected("s", {"gres": gres})
    assert found(text, with_models(node(0, 3), A100, A100), expected=wanted) == findings


def test_types_that_are_crossed_are_told_by_the_names_of_the_gpus() -> None:
    wanted = expected("s", {"gres": "gpu:a100:1,gpu:v100:1"})
    two = with_models(node(0, 3), A100, V100)
    assert found(lines_of("a100", "v100"), two, expected=wanted) == []
    assert found(lines_of("v100", "a100"), two, expected=wanted) == [
        f"gpu 0: Type=v100, and it is '{A100}'; right is Type=a100",
        f"gpu 1: Type=a100, and it is '{V100}'; right is Type=v100",
    ]


def test_types_in_another_order_than_the_bus_give_gpus_other_numbers_than_cudas() -> None:
    two = with_models(node(0, 3), A100, V100)
    wanted = expected("s", {"gres": "gpu:v100:1,gpu:a100:1"})
    small, big = lines_of("a100", "v100").splitlines()
    assert found(f"{big}\n{small}", two, expected=wanted) == [
        (
            "Gres=gpu:v100:1,gpu:a100:1: Slurm numbers GPUs type by type in this order, and "
            "not as they are on the bus; write Gres=gpu:a100:1,gpu:v100:1"
        )
    ]
    four = with_models(node(0, 0, 3, 3), A100, V100, A100, V100)
    wanted = expected("s", {"gres": "gpu:a100:2,gpu:v100:2"})
    check = GresCheck(slurmd(lines_of("a100", "v100")), four, expected=wanted)
    assert list(check.notes())[-1] == ALTERNATING


@pytest.mark.parametrize(
    ("values", "finding"),
    [
        ({"sockets": "2", "corespersocket": "8"}, None),
        ({}, None),
        (
            {"sockets": "32", "corespersocket": "1"},
            (
                "slurmctld counts 32 cores, and the node has 16: Cores= means others there; "
                "`slurmd -C` prints the right line"
            ),
        ),
    ],
)
def test_the_nodes_cores_are_compared(values: dict[str, str], finding: str | None) -> None:
    wanted = expected("s", {"gres": "gpu:2", **values})
    assert found(TWO, node(0, 3), expected=wanted) == ([finding] if finding else [])


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        ({"sockets": "4", "corespersocket": "4"}, []),
        ({"sockets": "2", "corespersocket": "8"}, [NARROW]),
        ({}, [NARROW]),
    ],
    ids=["its sockets", "sockets that are packages", "nothing"],
)
def test_cores_of_numa_nodes_are_whole_sockets_where_slurmctld_has_them(
    values: dict[str, str], notes: list[str]
) -> None:
    wanted = expected("s", {"gres": "gpu:2", **values})
    assert list(GresCheck(slurmd(TWO), node(0, 3), expected=wanted).notes()) == notes


def test_a_line_that_is_to_be_added_has_its_type() -> None:
    wanted = expected("s", {"gres": "gpu:a100:2"})
    text = lines_of("a100", "a100").splitlines()[0]
    assert found(text, node(0, 3), expected=wanted)[0] == (
        "gpu 1: Slurm has no /dev/nvidia1; its line is Name=gpu Type=a100 File=/dev/nvidia1 "
        "Cores=12-15"
    )


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ("Links=-1,4\nLinks=4,-1", []),
        ("\n", []),
        (
            "Links=-1,2\nLinks=4,-1",
            ["gpu 0: Links=-1,2 is not what NVML counts; right is Links=-1,4"],
        ),
        (
            "Links=4,-1\n",
            ["gpu 0: Links=4,-1 is not what NVML counts; right is Links=-1,4"],
        ),
        (
            "\nLinks=4,-1,0",
            ["gpu 1: Links=4,-1,0 is not what NVML counts; right is Links=4,-1"],
        ),
    ],
    ids=[
        "right",
        "no Links=",
        "too few",
        "those of another GPU",
        "too many numbers",
    ],
)
def test_links_are_judged_by_what_nvml_counts(text: str, findings: list[str]) -> None:
    """Each line of `text` ends that of a GPU."""
    ends = text.split("\n")
    lines = "".join(f"{line} {end}\n" for line, end in zip(TWO.splitlines(), ends, strict=True))
    linked = with_nvlinks(node(0, 3), "X 4\n4 X")
    assert found(lines, linked) == findings


def test_where_all_links_lead_to_a_switch_no_links_is_right_and_zeros_are_too() -> None:
    board = switched(node(0, 3), links=12)
    assert found(TWO.replace("=0-3", "=0-3 Links=-1,0"), board) == []
    assert found(TWO.replace("=0-3", "=0-3 Links=-1,12"), board) == [
        "gpu 0: Links=-1,12 is not what NVML counts; right is no Links="
    ]


def test_a_line_that_is_to_be_added_has_its_links() -> None:
    linked = with_nvlinks(node(0, 3), "X 4\n4 X")
    assert found(TWO.splitlines()[0], linked) == [
        (
            "gpu 1: Slurm has no /dev/nvidia1; its line is Name=gpu File=/dev/nvidia1 Cores=12-15 "
            "Links=4,-1"
        )
    ]


@pytest.mark.parametrize("lines", ["", TWO], ids=["no line", "lines"])
def test_where_the_machine_does_not_tell_a_gpus_file_nothing_is_called_wrong(lines: str) -> None:
    check = GresCheck(slurmd(lines), machine("dgx-h100"))
    assert check.findings() == []
    assert list(check.notes())[-1] == "the device files of 8 GPUs are not known: not judged"
    assert not check.is_judged


@pytest.mark.parametrize(("cores", "is_narrow"), [("0-3", True), ("0-7", False)])
def test_cores_of_less_than_a_package_are_worth_a_note(cores: str, is_narrow: bool) -> None:
    check = GresCheck(slurmd(f"{LINE.format(0)} Cores={cores}"), node(0))
    assert check.findings() == []
    assert list(check.notes()) == ([NARROW] if is_narrow else [])


def test_where_slurmd_ends_its_words_count_alone() -> None:
    gres = parse("slurmd: fatal: Invalid GRES record for gpu", is_complete=False)
    assert GresCheck(gres, node(0)).findings() == []
    assert gres.faults == ("fatal: Invalid GRES record for gpu",)


@given(machines() | linked_machines(), st.sampled_from(SCOPES), st.sampled_from([None, "gpu07"]))
def test_what_gres_conf_prints_is_always_found_right(
    topology: Topology, scope: str, name: str | None
) -> None:
    text = "\n".join(GresConf(topology, scope).lines(name))
    assert found(text, topology, scope) == []


@given(machines(), st.data())
def test_cores_away_from_every_near_node_are_always_found_wrong(
    topology: Topology, data: st.DataObject
) -> None:
    check = GresCheck(slurmd(""), topology)
    gpu = data.draw(st.sampled_from(topology.gpus))
    near = frozenset().union(*check.right.affinities[gpu.key].near)
    away = check.right.cores.all - near
    if near and away:
        cores = data.draw(st.frozensets(st.sampled_from(sorted(away)), min_size=1))
        line = f"Name=gpu File=/dev/nvidia{gpu.minor} Cores={','.join(map(str, cores))}"
        assert any(f"gpu {gpu.index}: Cores=" in text for text in found(line, topology))


@pytest.mark.parametrize(
    ("gpus", "cpus", "findings"),
    [
        (("0",), "0-3", []),
        (("0", "1"), "3,31", []),
        ((), "0", []),
        (None, "0", []),
        (("0", "GPU-1"), "0-7", ["1 (package 1, node 3) and CPUs 0-7 (package 0, nodes 0-1)"]),
        (("MIG-1", "1"), "0,16", ["1 (package 1, node 3) and CPUs 0,16 (package 0, node 0)"]),
        (("2",), "0", []),
    ],
    ids=[
        "near",
        "a CPU near each",
        "no GPU",
        "its GPUs are not noted",
        "near one and far from the other",
        "far",
        "the GPU may be anywhere",
    ],
)
def test_a_job_has_cpus_near_each_of_its_gpus(
    gpus: tuple[str, ...] | None, cpus: str, findings: list[str]
) -> None:
    job = SlurmJob(4711, parse_list(cpus), gpus)
    first, second, third = node(0, 3, None).gpus
    second = replace(second, uuid="GPU-1", mig=(MigInstance("MIG-1"),))
    topology = replace(node(0, 3, None), gpus=(first, second, third))
    assert list(far(topology, job)) == [
        f"job 4711 has gpu {finding}, none of them near it; {REMEDY}" for finding in findings
    ]


def test_a_job_with_a_gpu_that_the_node_has_not_is_told() -> None:
    job = SlurmJob(1, frozenset({0}), ("8",))
    assert list(far(node(0, 3), job)) == ["job 1 has gpu 8, and this node has 0-1"]


def test_near_a_gpu_whose_node_has_no_cpus_are_the_nearest() -> None:
    topology = made({0: "0-3", 1: "4-7", 2: ""}, gpus=[2], distances=[("2", "1", 20)])
    assert list(far(topology, SlurmJob(1, frozenset({5}), ("0",)))) == []
    (text,) = far(topology, SlurmJob(1, frozenset({0}), ("0",)))
    assert text.startswith("job 1 has gpu 0 (node 2) and CPUs 0 (package 0, node 0)")
