"""What is wrong about a gres.conf, and about jobs that are far from their GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.cpuset import parse_list
from affinityd.slurm.allocations import REMEDY, Job, far
from affinityd.slurm.check import ALTERNATING, NARROW, Check
from affinityd.slurm.config.expected import Expected, expected
from affinityd.slurm.config.gres_parser import Fault, Include, Line, parse
from affinityd.slurm.config.node_config import Configured, for_node
from affinityd.slurm.gres_writer import write
from affinityd.slurm.machine.core_affinity import SCOPES
from affinityd.topology.model import MigInstance, Topology
from tests.machines.by_hand import made
from tests.machines.facts import machine
from tests.machines.nvlinks import linked_machines, switched, with_nvlinks
from tests.machines.strategies import machines

#: Two packages of two NUMA nodes each, 16 cores, 32 CPUs: core c has the CPUs c and c + 16.
NODES = {0: "0-3,16-19", 1: "4-7,20-23", 2: "8-11,24-27", 3: "12-15,28-31"}
PACKAGES = {0: "0-7,16-23", 1: "8-15,24-31"}


def node(*gpu_nodes: int | None) -> Topology:
    """Return that machine with a GPU on each of these nodes: /dev/nvidia0 and on."""
    topology = made(NODES, gpus=gpu_nodes, threads=2, packages=PACKAGES)
    return replace(topology, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in topology.gpus))


def configured(text: str, name: str = "gpu07") -> Configured:
    """Return what a file without malformed lines says of a node."""
    return for_node((it for it in parse(text, "g") if isinstance(it, Line)), name)


def found(
    text: str, topology: Topology, scope: str = "node", expected: Expected | None = None
) -> list[str]:
    """Return what is found in a file, as `place text`."""
    findings = Check(configured(text), topology, scope, expected).findings()
    return [f"{it.place or '-'} {it.text}" for it in findings]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Name=gpu File=/dev/nvidia0", [{"name": "gpu", "file": "/dev/nvidia0"}]),
        ("  NAME = gpu  cores= 0-3 # nodes\n\n#x\n", [{"name": "gpu", "cores": "0-3"}]),
        ('Name=gpu Type="a 100"', [{"name": "gpu", "type": "a 100"}]),
        (
            "Name=gpu \\\n File=/dev/a \\  \n Cores=1\n",
            [{"name": "gpu", "file": "/dev/a", "cores": "1"}],
        ),
        ("Name=gpu # \\\nName=nic", [{"name": "gpu"}, {"name": "nic"}]),
        (r"Name=gpu Type=a\#1 # 2", [{"name": "gpu", "type": "a#1"}]),
        ("Name=gpu Cores=0 Cores=1", [{"name": "gpu", "cores": "1"}]),
        ("Name=gpu \\", [{"name": "gpu"}]),
        ("AutoDetect=nvml\r\n", [{"autodetect": "nvml"}]),
        ("", []),
    ],
    ids=[
        "a line",
        "any case, blanks, comments",
        "quotes",
        "a line that goes on",
        "a comment does not go on",
        "an escaped # is none",
        "of two the last",
        "goes on to nothing",
        "of Windows",
        "nothing",
    ],
)
def test_a_file_is_read_as_slurm_reads_it(text: str, values: list[dict[str, str]]) -> None:
    lines = list(parse(text, "g"))
    assert [line.values for line in lines if isinstance(line, Line)] == values
    assert len(lines) == len(values)


def test_a_line_is_known_by_the_number_of_its_first() -> None:
    places = [line.place for line in parse("#\nName=gpu \\\nCores=1\n\nInclude x\nbad\n", "f")]
    assert places == ["f:2", "f:5", "f:6"]


@pytest.mark.parametrize("text", ["Include other.conf", "INCLUDE  other.conf "])
def test_another_file_may_be_included(text: str) -> None:
    assert list(parse(text, "g")) == [Include("g:1", "other.conf")]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Name=gpu Cors=0-3", "'Cors' is no key; there are NodeName, Name,"),
        ("Name=gpu nonsense", "'nonsense' is not written as Key=value"),
        ("Name", "'Name' is not written as Key=value"),
        ("File=/dev/nvidia0 Name=gpu", "the line begins with neither Name= nor NodeName="),
        ("AutoDetect=nvml Name=gpu", "AutoDetect= with other keys must follow NodeName="),
        ("NodeName=gpu[1- Name=gpu", "NodeName='gpu[1-': 'gpu[1-' is no hostlist"),
        ("NodeName=gpu07 Count=1", "Name= is missing"),
        ("AutoDetect=magic", "AutoDetect='magic' is not one of nvml,"),
        ("Name=gpu AutoDetect=nvml", "AutoDetect= takes effect in a line of devices only after"),
        ("Name=gpu Cores=0-x", "Cores='0-x' is no list of core numbers; write it like"),
        ("Name=gpu Links=-1,x", "Links='-1,x' is no list of numbers of links; write it"),
        ("Name=gpu Links=1_0", "Links='1_0' is no list"),
        ("Name=gpu File=/dev/nvidia[0-", "'/dev/nvidia[0-' is no hostlist"),
    ],
)
def test_a_malformed_line_is_named_and_the_others_are_read(text: str, fault: str) -> None:
    parsed = list(parse(f"{text}\nName=gpu File=/dev/nvidia0\n", "g"))
    rest = for_node((it for it in parsed if isinstance(it, Line)), "gpu07")
    faults = [it for it in (*parsed, *rest.faults) if isinstance(it, Fault)]
    assert [it.place for it in faults] == ["g:1"]
    assert faults[0].text.startswith(fault)
    assert [line.place for line in rest.gpus] == ["g:2"]


def test_lines_of_a_node_come_after_those_of_all_and_those_of_others_not_at_all() -> None:
    text = """\
NodeName=gpu[05-07] Name=gpu File=/dev/nvidia1
NodeName=gpu08 Name=gpu File=/dev/nvidia2
NodeName=gpu08 Name=nic File=/dev/mlx5_0
Name=nic File=/dev/mlx5_0
Name=GPU File=/dev/nvidia0
"""
    of_node = configured(text)
    assert [line.files for line in of_node.gpus] == [("/dev/nvidia0",), ("/dev/nvidia1",)]
    assert of_node.others == ("gpu08",)


def test_a_device_file_of_mig_instances_has_no_type() -> None:
    text = (
        "Name=gpu Type=a100_3g.20gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21\n"
        "Name=gpu Type=a100 File=/dev/nvidia[1-2]\n"
    )
    assert configured(text).types == {"/dev/nvidia1": "a100", "/dev/nvidia2": "a100"}


@pytest.mark.parametrize(
    ("text", "detector"),
    [
        ("", None),
        ("AutoDetect=NVML", "nvml"),
        ("AutoDetect=off", None),
        ("AutoDetect=nvml\nNodeName=gpu07 AutoDetect=off Name=gpu File=/dev/a", None),
        ("NodeName=gpu07 AutoDetect=rsmi\nAutoDetect=off", "rsmi"),
        ("NodeName=gpu08 AutoDetect=rsmi", None),
    ],
)
def test_a_nodes_own_detection_counts_more_than_that_of_all(text: str, detector: str) -> None:
    assert configured(text).detector == detector


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
    expected = [] if fault is None else [f"g:1 gpu 0: Cores={cores} {fault}"]
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
        (f"{TWO}Name=nic File=/dev/mlx5_0 Cores=99\nName=shard Count=8\n", []),
        (
            "Name=gpu File=/dev/nvidia[0-1] Cores=0-3",
            [
                (
                    "g:1 gpu 1: Cores=0-3 is package 0, the GPU is on package 1 (node 3); "
                    "right is Cores=12-15"
                )
            ],
        ),
        (
            "Name=gpu File=/dev/nvidia[0-1]",
            [
                (
                    "g:1 gpu 0: the line has no Cores=, the GPU is on package 0 (node 0); "
                    "add Cores=0-3"
                ),
                (
                    "g:1 gpu 1: the line has no Cores=, the GPU is on package 1 (node 3); "
                    "add Cores=12-15"
                ),
            ],
        ),
        (
            TWO.splitlines()[0],
            ["- gpu 1: no line has it; add Name=gpu File=/dev/nvidia1 Cores=12-15"],
        ),
        (
            f"{TWO}Name=gpu File=/dev/nvidia7",
            ["g:3 /dev/nvidia7 is no GPU of this node; there are /dev/nvidia0, /dev/nvidia1"],
        ),
        (f"{TWO}{TWO.splitlines()[0]}", ["g:3 /dev/nvidia0 is named already, in g:1"]),
        (
            "\n".join(reversed(TWO.splitlines())),
            [
                (
                    "g:1 /dev/nvidia1 is gpu 0 to Slurm and 1 to CUDA; /dev/nvidia0 belongs in its "
                    "place"
                ),
                (
                    "g:2 /dev/nvidia0 is gpu 1 to Slurm and 0 to CUDA; /dev/nvidia1 belongs in its "
                    "place"
                ),
            ],
        ),
        (
            f"AutoDetect=nvml\n{TWO.splitlines()[1]}",
            [],
        ),
        (f"{TWO}Name=gpu", ["g:3 the line has no File=, which every GPU needs"]),
        (
            TWO.replace("Cores=0-3", "Count=2 Cores=0-3"),
            ["g:1 Count='2' is not 1, as the files are; leave it out"],
        ),
        (
            TWO.replace("Cores=0-3", f"Count={'9' * 5000} Cores=0-3"),
            [f"g:1 Count='{'9' * 60}…' is not 1, as the files are; leave it out"],
        ),
        (
            f"{TWO}Name=gpu Links=-1",
            [
                "g:3 the line has no File=, which every GPU needs",
                "g:3 Links=-1 has 1 numbers; one for each of 2 GPUs is right",
            ],
        ),
        (TWO.replace("=0-3", "=0-3 Links=-1,4").replace("=12-15", "=12-15 Links=4,-1"), []),
        (
            TWO.replace("=0-3", "=0-3 Links=-1,4,4"),
            ["g:1 Links=-1,4,4 has 3 numbers; one for each of 2 GPUs is right"],
        ),
        (
            TWO.replace("=12-15", "=12-15 Links=-1,4"),
            ["g:2 Links=-1,4 is not -1 at the GPU itself, which is gpu 1, and only there"],
        ),
        (
            "Name=gpu File=/dev/nvidia[0-1] Cores=0-15 Links=-1,4",
            [
                "g:1 Links=-1,4 is for one GPU, and File= names 2; write a line each",
                (
                    "g:1 gpu 0: Cores=0-15 has cores 4-15 of nodes 1-3, the GPU is on package 0 "
                    "(node 0); right is Cores=0-3"
                ),
                (
                    "g:1 gpu 1: Cores=0-15 has cores 0-11 of nodes 0-2, the GPU is on package 1 "
                    "(node 3); right is Cores=12-15"
                ),
            ],
        ),
        (
            (
                "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22] Cores=0-3\n"
                "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[30-31] Cores=0-3\n"
                "Name=gpu File=/dev/nvidia1 Cores=12-15"
            ),
            [],
        ),
    ],
    ids=[
        "right lines",
        "other devices are passed over",
        "one line for GPUs of two nodes",
        "no Cores=",
        "a GPU that no line has",
        "a device that is no GPU",
        "a GPU twice",
        "not in bus order",
        "detected GPUs need no line",
        "no File=",
        "a wrong Count=",
        "a Count= without end",
        "Links= without a File=",
        "right Links=",
        "too many Links=",
        "Links= of another GPU",
        "Links= of two GPUs",
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


DRAINED = "slurmctld drains the node (INVALID_REG)"
A100, V100 = "NVIDIA A100-SXM4-40GB", "Tesla V100-PCIE-16GB"


@pytest.mark.parametrize(
    ("text", "gres", "findings"),
    [
        (lines_of("a100", "a100"), "gpu:a100:2", []),
        (TWO, "gpu:2", []),
        (lines_of("a100", "debug"), "gpu:a100:1,gpu:debug:1", []),
        (
            lines_of(None, None),
            "gpu:a100:2",
            [
                f"g:1 the line has no Type=, and Gres=gpu:a100:2 (s:1): {DRAINED}; add Type=a100",
                f"g:2 the line has no Type=, and Gres=gpu:a100:2 (s:1): {DRAINED}; add Type=a100",
            ],
        ),
        (
            lines_of("A100", "a100"),
            "gpu:a100:2",
            [f"g:1 Type=A100 is not in Gres=gpu:a100:2 (s:1): {DRAINED}; right is Type=a100"],
        ),
        (
            lines_of("a100", "a100"),
            "gpu:2",
            [
                (
                    f"g:{line} Type=a100 does not count, as Gres=gpu:2 (s:1) has none: no job can "
                    "ask for it; leave it out, or write Gres=gpu:a100:2 there"
                )
                for line in (1, 2)
            ],
        ),
        (
            TWO,
            "gpu:3",
            [
                (
                    f"s:1 Gres=gpu:3 has 3 GPUs, and gres.conf 2: {DRAINED}; add lines for the "
                    "others, or write Gres=gpu:2"
                )
            ],
        ),
        (
            lines_of("a100", "a100"),
            "gpu:a100:1",
            [
                (
                    "s:1 Gres=gpu:a100:1 has 1 GPU of type a100, and gres.conf 2: Slurm gives no "
                    "job the last 1; write Gres=gpu:a100:2"
                )
            ],
        ),
        (
            lines_of("a100", "a100"),
            "",
            ["s:1 Gres= has no gpu: Slurm gives no job the node's GPUs; write Gres=gpu:a100:2"],
        ),
        (
            lines_of("a100", None),
            "gpu:a100:1,gpu:1",
            [
                "g:2 the line has no Type=, and others have: slurmd ends at that",
                (
                    "s:1 Gres=gpu:a100:1,gpu:1: slurmd ends where some GPUs have a type and others "
                    "none"
                ),
            ],
        ),
        (
            TWO.replace("Name=gpu", "Name=GPU", 1),
            "gpu:2",
            [f"g:1 Name='GPU' is not gpu: {DRAINED}; write Name=gpu"],
        ),
        ("AutoDetect=nvml", "gpu:a100:2", []),
        (
            "AutoDetect=nvml",
            "gpu:h100:2",
            [
                (
                    f"s:1 Gres=gpu:h100:2 has 2 GPUs of type h100, and AutoDetect 0: {DRAINED}; "
                    "call them by a part of their names, nvidia_a100-sxm4-40gb, or leave gpu out "
                    "of Gres="
                )
            ],
        ),
    ],
    ids=[
        "types agree",
        "none has a type",
        "a type that is no model",
        "no Type=",
        "another case",
        "Gres= has no type",
        "too few lines",
        "too many lines",
        "no GPUs in Gres=",
        "types and none",
        "another case of gpu",
        "detected",
        "detected under another name",
    ],
)
def test_the_lines_are_compared_with_what_slurmctld_expects(
    text: str, gres: str, findings: list[str]
) -> None:
    wanted = expected("s:1", {"gres": gres}, {})
    assert found(text, with_models(node(0, 3), A100, A100), expected=wanted) == findings


def test_types_that_are_crossed_are_told_by_the_names_of_the_gpus() -> None:
    wanted = expected("s:1", {"gres": "gpu:a100:1,gpu:v100:1"}, {})
    two = with_models(node(0, 3), A100, V100)
    assert found(lines_of("a100", "v100"), two, expected=wanted) == []
    assert found(lines_of("v100", "a100"), two, expected=wanted) == [
        f"g:1 Type=v100, and its GPU is '{A100}'; right is Type=a100",
        f"g:2 Type=a100, and its GPU is '{V100}'; right is Type=v100",
    ]


def test_types_in_another_order_than_the_bus_give_gpus_other_numbers_than_cudas() -> None:
    two = with_models(node(0, 3), A100, V100)
    wanted = expected("s:1", {"gres": "gpu:v100:1,gpu:a100:1"}, {})
    assert found(lines_of("a100", "v100"), two, expected=wanted) == [
        (
            "s:1 Gres=gpu:v100:1,gpu:a100:1: Slurm numbers GPUs type by type in this order, and "
            "not as they are on the bus; write Gres=gpu:a100:1,gpu:v100:1"
        )
    ]
    four = with_models(node(0, 0, 3, 3), A100, V100, A100, V100)
    wanted = expected("s:1", {"gres": "gpu:a100:2,gpu:v100:2"}, {})
    check = Check(configured(lines_of("a100", "v100")), four, expected=wanted)
    assert list(check.notes("gpu07"))[-1] == ALTERNATING


@pytest.mark.parametrize(
    ("values", "settings", "finding"),
    [
        ({"sockets": "2", "corespersocket": "8", "threadspercore": "2"}, {}, None),
        ({"cpus": "32", "threadspercore": "2"}, {}, None),
        ({"sockets": "2", "corespersocket": "8"}, {"grestypes": "nic,gpu"}, None),
        (
            {"cpus": "32"},
            {},
            (
                "slurmctld counts 32 cores, and the node has 16: Cores= means others there; "
                "`slurmd -C` prints the right line"
            ),
        ),
        (
            {},
            {"grestypes": "nic"},
            "GresTypes= has no gpu: Slurm has no GPUs on any node; write GresTypes=gpu",
        ),
    ],
)
def test_the_nodes_cores_and_gres_types_are_compared(
    values: dict[str, str], settings: dict[str, str], finding: str | None
) -> None:
    wanted = expected("s:1", {"gres": "gpu:2", **values}, settings)
    assert found(TWO, node(0, 3), expected=wanted) == ([f"s:1 {finding}"] if finding else [])


@pytest.mark.parametrize(
    ("values", "settings", "notes"),
    [
        ({}, {"slurmdparameters": "numa_node_as_socket"}, []),
        ({"sockets": "4", "corespersocket": "4"}, {}, []),
        ({"sockets": "2", "corespersocket": "8"}, {}, [NARROW]),
        ({}, {}, [NARROW]),
    ],
    ids=["its parameter", "its sockets", "sockets that are packages", "nothing"],
)
def test_cores_of_numa_nodes_are_whole_sockets_where_slurm_conf_says_so(
    values: dict[str, str], settings: dict[str, str], notes: list[str]
) -> None:
    wanted = expected("s:1", {"gres": "gpu:2", **values}, settings)
    assert list(Check(configured(TWO), node(0, 3), expected=wanted).notes("gpu07")) == notes


def test_a_line_that_is_to_be_added_has_its_type() -> None:
    wanted = expected("s:1", {"gres": "gpu:a100:2"}, {})
    text = lines_of("a100", "a100").splitlines()[0]
    assert found(text, node(0, 3), expected=wanted)[-1] == (
        "- gpu 1: no line has it; add Name=gpu Type=a100 File=/dev/nvidia1 Cores=12-15"
    )


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ("Links=-1,4\nLinks=4,-1", []),
        ("\n", []),
        (
            "Links=-1,2\nLinks=4,-1",
            ["g:1 gpu 0: Links=-1,2 is not what NVML counts; right is Links=-1,4"],
        ),
        (
            "Links=4,-1\n",
            ["g:1 gpu 0: Links=4,-1 is not what NVML counts; right is Links=-1,4"],
        ),
        (
            "\nLinks=4,-1,0",
            ["g:2 gpu 1: Links=4,-1,0 is not what NVML counts; right is Links=4,-1"],
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
@pytest.mark.parametrize("last", ["", "AutoDetect=nvml"], ids=["lines alone", "detected too"])
def test_links_are_judged_by_what_nvml_counts(text: str, findings: list[str], last: str) -> None:
    """Each line of `text` ends that of a GPU; with AutoDetect=, Slurm ignores one that is wrong."""
    ends = text.split("\n")
    lines = "".join(f"{line} {end}\n" for line, end in zip(TWO.splitlines(), ends, strict=True))
    linked = with_nvlinks(node(0, 3), "X 4\n4 X")
    assert found(lines + last, linked) == findings


def test_where_all_links_lead_to_a_switch_no_links_is_right_and_zeros_are_too() -> None:
    board = switched(node(0, 3), links=12)
    assert found(TWO.replace("=0-3", "=0-3 Links=-1,0"), board) == []
    assert found(TWO.replace("=0-3", "=0-3 Links=-1,12"), board) == [
        "g:1 gpu 0: Links=-1,12 is not what NVML counts; right is no Links="
    ]


def test_a_line_that_is_to_be_added_has_its_links() -> None:
    linked = with_nvlinks(node(0, 3), "X 4\n4 X")
    assert found(TWO.splitlines()[0], linked) == [
        "- gpu 1: no line has it; add Name=gpu File=/dev/nvidia1 Cores=12-15 Links=4,-1"
    ]


def test_where_no_line_is_of_a_gpu_each_lacks_one_even_if_its_file_is_not_known() -> None:
    found = Check(configured(""), machine("dgx-h100")).findings()
    said = [f"gpu {gpu}: no line has it, and its device file is not known here" for gpu in range(8)]
    assert [finding.text for finding in found] == said


def test_where_the_machine_does_not_tell_a_gpus_file_no_line_is_called_wrong() -> None:
    check = Check(configured(TWO), machine("dgx-h100"))
    assert check.findings() == []
    assert list(check.notes("gpu07"))[-1:] == [
        "the machine does not tell which GPU is /dev/nvidia0, /dev/nvidia1: not judged"
    ]


@pytest.mark.parametrize(("cores", "is_narrow"), [("0-3", True), ("0-7", False)])
def test_cores_of_less_than_a_package_are_worth_a_note(cores: str, is_narrow: bool) -> None:
    check = Check(configured(f"{LINE.format(0)} Cores={cores}"), node(0))
    assert check.findings() == []
    assert list(check.notes("gpu07")) == ([NARROW] if is_narrow else [])


def test_a_file_for_other_nodes_is_told_from_one_that_lacks_gpus() -> None:
    text = "NodeName=tux[0-3] Name=gpu File=/dev/nvidia[0-1]"
    (note,) = Check(configured(text), node(0)).notes("gpu07")
    assert note == "the lines of GPUs are for 'tux[0-3]', not for gpu07; --node-name names another"


@given(machines() | linked_machines(), st.sampled_from(SCOPES), st.sampled_from([None, "gpu07"]))
def test_what_gres_conf_prints_is_always_found_right(
    topology: Topology, scope: str, name: str | None
) -> None:
    text = "\n".join(write(topology, scope=scope, node_name=name))
    assert found(text, topology, scope) == []


@given(machines(), st.data())
def test_cores_away_from_every_near_node_are_always_found_wrong(
    topology: Topology, data: st.DataObject
) -> None:
    check = Check(configured(""), topology)
    gpu = data.draw(st.sampled_from(topology.gpus))
    near = frozenset().union(*check.affinities[gpu.key].near)
    away = check.cores.all - near
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
        "nobody noted its GPUs",
        "near one and far from the other",
        "far",
        "nobody knows where the GPU is",
    ],
)
def test_a_job_has_cpus_near_each_of_its_gpus(
    gpus: tuple[str, ...] | None, cpus: str, findings: list[str]
) -> None:
    job = Job(4711, parse_list(cpus), gpus)
    first, second, third = node(0, 3, None).gpus
    second = replace(second, uuid="GPU-1", mig=(MigInstance("MIG-1"),))
    topology = replace(node(0, 3, None), gpus=(first, second, third))
    assert list(far(topology, job)) == [
        f"job 4711 has gpu {finding}, none of them near it; {REMEDY}" for finding in findings
    ]


def test_a_job_with_a_gpu_that_the_node_has_not_is_told() -> None:
    job = Job(1, frozenset({0}), ("8",))
    assert list(far(node(0, 3), job)) == ["job 1 has gpu 8, and this node has 0-1"]


def test_near_a_gpu_whose_node_has_no_cpus_are_the_nearest() -> None:
    topology = made({0: "0-3", 1: "4-7", 2: ""}, gpus=[2], distances=[("2", "1", 20)])
    assert list(far(topology, Job(1, frozenset({5}), ("0",)))) == []
    (text,) = far(topology, Job(1, frozenset({0}), ("0",)))
    assert text.startswith("job 1 has gpu 0 (node 2) and CPUs 0 (package 0, node 0)")
