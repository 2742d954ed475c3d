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
from tests.support.tables import words

#: Two packages of two NUMA nodes each, 16 cores, 32 CPUs: core c has the CPUs c and c + 16.
NODES = {0: "0-3,16-19", 1: "4-7,20-23", 2: "8-11,24-27", 3: "12-15,28-31"}
PACKAGES = {0: "0-7,16-23", 1: "8-15,24-31"}
A100, V100 = "NVIDIA A100-SXM4-40GB", "Tesla V100-PCIE-16GB"


def with_minors(topology: Topology, *models: str) -> Topology:
    """Return a machine with /dev/nvidia0 and on, the first of these models."""
    gpus = topology.gpus
    named = (*models, *[None] * len(gpus))
    pairs = zip(gpus, named, strict=False)
    return replace(
        topology,
        gpus=tuple(replace(gpu, minor=gpu.index, model=model) for gpu, model in pairs),
    )


def node(*gpu_nodes: int | None, models: tuple[str, ...] = ()) -> Topology:
    """Return that machine with a GPU on each of these nodes."""
    return with_minors(made(NODES, gpus=gpu_nodes, threads=2, packages=PACKAGES), *models)


MACHINES = {
    "two": node(0, 3, models=(A100, A100)),
    "several": node(0, 3, models=(A100, V100)),
    "linked": with_nvlinks(node(0, 3), "X 4\n4 X"),
    "switched": switched(node(0, 3), links=12),
    # The GPU's node has no cores, and node 1 is the nearest.
    "barren": with_minors(made({0: "0-3", 1: "4-7", 2: ""}, gpus=[2], distances=[("2", "1", 20)])),
}


def slurmd(lines: str) -> SlurmdGres:
    """Return what slurmd has of lines of gres.conf that it takes as they are."""
    kept = [line for line in lines.splitlines() if line.strip() and not line.startswith("#")]
    return parse("\n".join(f"slurmd: Gres {line.split('gpu07 ')[-1]}" for line in kept))


def found(
    lines: str, topology: Topology, scope: str = "node", expected: ExpectedNode | None = None
) -> list[str]:
    """Return what is found in lines of gres.conf."""
    return list(map(str, GresCheck(slurmd(lines), topology, scope, expected).findings()))


RIGHT = "right is Cores=12-15"
AT = f"the GPU is on package 1 (node 3); {RIGHT}"
BEYOND = "goes beyond core 15, the last of this node"
CPUS = "are the CPU numbers of the right cores, and Slurm counts cores"


@pytest.mark.parametrize(
    ("gpu_node", "cores", "fault"),
    [
        (3, "12-15", None),
        (3, "8-15", None),
        (3, "0-7", f"is package 0, {AT}"),
        (3, "8-11", f"is node 2, {AT}"),
        (3, "12-14", f"leaves out cores 15, {AT}"),
        (3, "10-15", f"has cores 10-11 of node 2, {AT}"),
        (3, "12-15,28-31", f"{CPUS}; {RIGHT}"),
        (3, "24-31", f"{BEYOND}: CPU numbers? Slurm counts cores; {RIGHT}"),
        (None, "0-3", None),
        (None, "0-40", f"{BEYOND}; right is no Cores="),
    ],
)
def test_the_cores_of_a_gpu_are_judged(gpu_node: int | None, cores: str, fault: str | None) -> None:
    text = f"Name=gpu File=/dev/nvidia0 Cores={cores}"
    expected = [] if fault is None else [f"gpu 0: Cores={cores} {fault}"]
    assert found(text, node(gpu_node)) == expected


ZERO = "Name=gpu File=/dev/nvidia0 Cores=0-3"
ONE = "Name=gpu File=/dev/nvidia1 Cores=12-15"
BIG, SMALL = ZERO.replace(" ", " Type=a100 ", 1), ONE.replace(" ", " Type=v100 ", 1)
TYPED = f"< {BIG}\n< {ONE.replace(' ', ' Type=a100 ', 1)}"
TWO = f"< {ZERO}\n< {ONE}"
CAPS = "/dev/nvidia-caps/nvidia-cap"

#: A case a paragraph: what it shows @ the machine, and the Gres= of slurmctld, where that is known;
#: the lines of gres.conf; what is found.
CASES = f"""
other devices are passed over @ two
{TWO}
< Name=nic Count=2
< Name=shard Count=8 File=/dev/nvidia0 Cores=9

no Cores= @ two
< Name=gpu Count=2 File=/dev/nvidia[0-1]
> gpu 0: the line has no Cores=, the GPU is on package 0 (node 0); add Cores=0-3
> gpu 1: the line has no Cores=, the GPU is on package 1 (node 3); add Cores=12-15

not the nearest cores @ barren
< {ZERO}
> gpu 0: Cores=0-3 is node 0, the nearest cores are on package 0 (node 1); right is Cores=4-7

a GPU that Slurm has not @ two
< {ZERO}
> gpu 1: Slurm has no /dev/nvidia1; its line is {ONE}

a device that is no GPU @ two
{TWO}
< Name=gpu File=/dev/nvidia7
> /dev/nvidia7 is not a GPU of this node; there are /dev/nvidia0, /dev/nvidia1

a GPU twice @ two
{TWO}
< {ZERO}
> gpu 0: Slurm has /dev/nvidia0 2 times

not in bus order @ two
< {ONE}
< {ZERO}
> /dev/nvidia1 is gpu 0 to Slurm and 1 to CUDA; /dev/nvidia0 belongs in its place
> /dev/nvidia0 is gpu 1 to Slurm and 0 to CUDA; /dev/nvidia1 belongs in its place

instances of one GPU @ two
< Name=gpu Count=1 File=/dev/nvidia0,{CAPS}[21-22] Cores=0-3
< Name=gpu Count=1 File=/dev/nvidia0,{CAPS}[30-31] Cores=0-3
< Name=gpu Count=1 File=/dev/nvidia1 Cores=12-15

another case @ two gpu:a100:2
{TYPED.replace("a100", "A100", 1)}
> gpu 0: Type=A100 is not in Gres=gpu:a100:2 (s): {DRAINED}; right is Type=a100
> Gres=gpu:a100:2 has 2 GPUs of type a100, and slurmd 1: {DRAINED}; write lines for all, or write \
Gres=gpu:a100:1

too few lines @ two gpu:3
{TWO}
> Gres=gpu:3 has 3 GPUs, and slurmd 2: {DRAINED}; write lines for all, or write Gres=gpu:2

too small a number @ two gpu:a100:1
{TYPED}
> Gres=gpu:a100:1 has 1 GPU of type a100, and the node 2: Slurm gives no job the other 1; write \
Gres=gpu:a100:2

no GPUs in Gres= @ two (null)
{TYPED}
> Gres= has no gpu: Slurm gives no job the node's GPUs; write Gres=gpu:2

another case of gpu @ two gpu:2
< {ZERO.replace("=gpu", "=GPU")}
< {ONE}
> gpu 0: Name='GPU' is not gpu: {DRAINED}; write Name=gpu
> Gres=gpu:2 has 2 GPUs, and slurmd 1: {DRAINED}; write lines for all, or write Gres=gpu:1

crossed types @ several gpu:a100:1,gpu:v100:1
< {BIG.replace("a100", "v100")}
< {SMALL.replace("v100", "a100")}
> gpu 0: Type=v100, and it is '{A100}'; right is Type=a100
> gpu 1: Type=a100, and it is '{V100}'; right is Type=v100

another order than the bus @ several gpu:v100:1,gpu:a100:1
< {SMALL}
< {BIG}
> Gres=gpu:v100:1,gpu:a100:1: Slurm numbers GPUs in the order of these types, which is not their \
order on the bus; write Gres=gpu:a100:1,gpu:v100:1

and its links @ linked
< {ZERO}
> gpu 1: Slurm has no /dev/nvidia1; its line is {ONE} Links=4,-1

those of another GPU, and no Links= @ linked
< {ZERO} Links=4,-1
< {ONE}
> gpu 0: Links=4,-1 is not what NVML counts; right is Links=-1,4

zeros where all links lead to a switch @ switched
< {ZERO} Links=-1,0
< {ONE}

and others @ switched
< {ZERO} Links=-1,12
< {ONE}
> gpu 0: Links=-1,12 is not what NVML counts; right is no Links=
"""


@pytest.mark.parametrize("case", CASES.strip().split("\n\n"), ids=lambda it: it.split(" @")[0])
def test_lines_of_gres_conf_are_judged(case: str) -> None:
    title, *lines = case.splitlines()
    name, _, gres = title.partition(" @ ")[2].partition(" ")
    wanted = expected("s", {"gres": gres}) if gres else None
    given = "\n".join(line[2:] for line in lines if line[0] == "<")
    findings = [line[2:] for line in lines if line[0] == ">"]
    assert found(given, MACHINES[name], expected=wanted) == findings


BOTH = f"{ZERO}\n{ONE}"


BY_NODE = "slurmdparameters=numa_node_as_socket"
LINE = "Sockets=4 CoresPerSocket=4 ThreadsPerCore=2"
LACKING = f"SlurmdParameters=numa_node_as_socket and, in the node's line, {LINE}"
SOCKETS = NARROW.format(settings=LACKING)
COUNTS = (
    "slurmctld counts 32 cores, and the node has 16: it takes Cores= for other cores; write the "
    "node's line as `slurmd -C` prints it"
)


def test_types_that_alternate_on_the_bus_are_worth_a_note() -> None:
    four = node(0, 0, 3, 3, models=(A100, V100, A100, V100))
    wanted = expected("s", {"gres": "gpu:a100:2,gpu:v100:2"})
    notes = list(GresCheck(slurmd(f"{BIG}\n{SMALL}"), four, expected=wanted).notes())
    assert notes[-1] == ALTERNATING


@pytest.mark.parametrize(
    ("values", "findings", "notes"),
    [
        ("", [], [SOCKETS]),  # they are not known
        ("sockets=2 corespersocket=8", [SOCKETS], []),
        (f"sockets=4 corespersocket=4 {BY_NODE}", [], []),
        (f"sockets=32 corespersocket=1 {BY_NODE}", [COUNTS, SOCKETS], []),
    ],
)
def test_the_node_s_cores_and_sockets_are_compared(
    values: str, findings: list[str], notes: list[str]
) -> None:
    wanted = expected("s", {"gres": "gpu:2", **words(values)})
    check = GresCheck(slurmd(BOTH), MACHINES["two"], expected=wanted)
    assert list(map(str, check.findings())) == findings
    assert list(check.notes()) == notes


def test_cores_of_a_whole_package_are_worth_no_note() -> None:
    check = GresCheck(slurmd(ZERO.replace("0-3", "0-7")), node(0))
    assert (check.findings(), list(check.notes())) == ([], [])


def test_where_the_machine_does_not_tell_a_gpus_file_nothing_is_called_wrong() -> None:
    check = GresCheck(slurmd(BOTH), machine("dgx-h100"))
    assert check.findings() == []
    assert list(check.notes())[-1] == "the device files of 8 GPUs are not known: not judged"
    assert not check.is_judged


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
        (("0", "1"), "3,31", []),  # a CPU near each
        (None, "0", []),  # they are not noted
        (("0", "GPU-1"), "0-7", ["1 (package 1, node 3) and CPUs 0-7 (package 0, nodes 0-1)"]),
        (("MIG-1", "1"), "0,16", ["1 (package 1, node 3) and CPUs 0,16 (package 0, node 0)"]),
        (("2",), "0", []),  # it may be anywhere
    ],
)
def test_a_job_has_cpus_near_each_of_its_gpus(
    gpus: tuple[str, ...] | None, cpus: str, findings: list[str]
) -> None:
    first, second, third = node(0, 3, None).gpus
    second = replace(second, uuid="GPU-1", mig=(MigInstance("MIG-1"),))
    topology = replace(node(0, 3, None), gpus=(first, second, third))
    assert list(far(topology, SlurmJob(4711, parse_list(cpus), gpus))) == [
        f"job 4711 has gpu {finding}, none of them near it; {REMEDY}" for finding in findings
    ]


def test_a_far_job_s_remedy_has_what_slurm_conf_lacks() -> None:
    (said,) = far(node(3), SlurmJob(4711, frozenset({0}), ("0",)), LACKING)
    assert said.endswith(f"; {REMEDY}; slurm.conf needs {LACKING}")


def test_a_job_with_a_gpu_that_the_node_has_not_is_told() -> None:
    job = SlurmJob(1, frozenset({0}), ("8",))
    assert list(far(node(0, 3), job)) == ["job 1 has gpu 8, and this node has 0-1"]
