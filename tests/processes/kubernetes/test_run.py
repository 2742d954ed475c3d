"""Which GPUs a container has, and where `run` of `affinityd init` puts a command.

What variables mean is the daemon's to know: every case is planned as it plans, and some are run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.errors import AffinityError
from affinityd.json_codec import dumps
from affinityd.request.environment import first_answer
from affinityd.request.query import parse_query
from affinityd.request.resolve import answer
from affinityd.topology.model import Node, Topology
from tests.support.asking import ask
from tests.support.daemons import running
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import nvml_report, write_tree
from tests.support.pods import Pod, unreachable
from tests.unit.request.test_devices import EIGHT

BLOCKS = {"AFFINITYD_MODE": "unique_contiguous"}  #: so that every GPU has CPUs of its own

#: Eight GCDs, in KFD's order, with their render nodes counting down.
AMD = replace(
    machine("mi250x"),
    gpus=tuple(replace(gpu, render_minor=135 - gpu.index) for gpu in machine("mi250x").gpus),
)


def files(*gpus: int) -> list[str]:
    """Return NVIDIA's device files of GPUs of the node."""
    return [f"nvidia{EIGHT.gpus[gpu].minor}" for gpu in gpus]


ALL = files(*range(8))
UUID = [str(gpu.uuid) for gpu in EIGHT.gpus]
NOWHERE: list[int] = []

#: Device files, variables, and the GPUs of the node that are meant.
WHICH = [
    pytest.param(files(0), {}, [0], id="the one device file that is there"),
    pytest.param(files(6, 3), {}, [3, 6], id="two device files"),
    pytest.param([], {}, NOWHERE, id="no device file"),
    pytest.param(files(5, 1), {"NVIDIA_VISIBLE_DEVICES": "all"}, [1, 5], id="all of what is there"),
    pytest.param([], {"NVIDIA_VISIBLE_DEVICES": "all"}, NOWHERE, id="all, which proves nothing"),
    pytest.param(files(4), {"NVIDIA_VISIBLE_DEVICES": "void"}, [4], id="void, as CDI has it"),
    pytest.param([], {"NVIDIA_VISIBLE_DEVICES": "void"}, NOWHERE, id="void and no device file"),
    pytest.param(
        files(4), {"NVIDIA_VISIBLE_DEVICES": "none"}, [4], id="none: of the driver's files"
    ),
    pytest.param(files(4), {"NVIDIA_VISIBLE_DEVICES": ""}, [4], id="empty, as of no container"),
    pytest.param(
        files(4),
        {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
        [4],
        id="a folder of volume mounts",
    ),
    pytest.param(files(2), {"NVIDIA_VISIBLE_DEVICES": UUID[2]}, [2], id="a UUID and its file"),
    pytest.param(
        files(2, 7), {"NVIDIA_VISIBLE_DEVICES": f"{UUID[7]},{UUID[2]}"}, [2, 7], id="two UUIDs"
    ),
    pytest.param(files(0, 2), {"NVIDIA_VISIBLE_DEVICES": "0,2"}, [0, 2], id="indices of the node"),
    pytest.param(ALL, {"NVIDIA_VISIBLE_DEVICES": UUID[2]}, [2], id="privileged, given one by UUID"),
    pytest.param(ALL, {"NVIDIA_VISIBLE_DEVICES": "3,1"}, [1, 3], id="privileged, given two"),
    pytest.param(
        ALL, {"NVIDIA_VISIBLE_DEVICES": "MIG-a2"}, [5], id="privileged, given an instance"
    ),
    pytest.param(ALL, {"NVIDIA_VISIBLE_DEVICES": "all"}, range(8), id="privileged, given all"),
    *[
        pytest.param(ALL, {"NVIDIA_VISIBLE_DEVICES": text}, gpus, id=f"privileged, given {text!r}")
        for text, gpus in [
            *[(UUID[4][:6], [4]), ("GPU-", range(8)), (f"{UUID[4]},", range(8))],
            *[("5:1", [5]), ("5:0,2", [2, 5]), ("5:9", [5]), ("01", [1]), ("1, 2 ", [1, 2])],
            *[("1,1", [1]), (f"1,{UUID[1]}", [1]), ("0000:0f:00.0", [1]), ("1,x", range(8))],
            *[("00000000:0f:00.0", [1]), ("9", range(8)), ("MIG-a1,5", [5]), ("MIG-a", range(8))],
        ]
    ],
    pytest.param(ALL, {}, range(8), id="privileged, given nothing in particular"),
    pytest.param(
        files(4), {"NVIDIA_VISIBLE_DEVICES": "0"}, [4], id="CDI, and an image that says 0"
    ),
    pytest.param(files(4), {"NVIDIA_VISIBLE_DEVICES": "4,0"}, [4], id="more listed than there are"),
    pytest.param(files(4), {"NVIDIA_VISIBLE_DEVICES": "GPU-ff"}, [4], id="a UUID of another node"),
    pytest.param(
        [], {"NVIDIA_VISIBLE_DEVICES": UUID[3]}, [3], id="a UUID where no file can be seen"
    ),
    pytest.param([], {"NVIDIA_VISIBLE_DEVICES": "GPU-ff"}, NOWHERE, id="unknown, and no file"),
    pytest.param(
        [],
        {"NVIDIA_VISIBLE_DEVICES": f"{UUID[3]},GPU-ff"},
        NOWHERE,
        id="one that is known and one that is not, and no file",
    ),
    pytest.param(files(5), {"NVIDIA_VISIBLE_DEVICES": "MIG-a1"}, [5], id="a MIG instance"),
    pytest.param(files(5), {"NVIDIA_VISIBLE_DEVICES": "5:1"}, [5], id="an instance by its index"),
    pytest.param(
        files(5), {"NVIDIA_VISIBLE_DEVICES": "MIG-ff"}, [5], id="an instance of another node"
    ),
    pytest.param(
        files(5),
        {"NVIDIA_VISIBLE_DEVICES": "MIG-a1,MIG-a2", "CUDA_VISIBLE_DEVICES": "1"},
        [5],
        id="the second of two instances of a GPU",
    ),
    pytest.param(
        files(5),
        {"NVIDIA_VISIBLE_DEVICES": "MIG-a1,MIG-a2", "CUDA_VISIBLE_DEVICES": "MIG-a2"},
        [5],
        id="one of two instances by name",
    ),
    pytest.param(
        files(5),
        {"NVIDIA_VISIBLE_DEVICES": "MIG-a1", "CUDA_VISIBLE_DEVICES": "MIG-a2"},
        NOWHERE,
        id="an instance that is another pod's",
    ),
    pytest.param(
        files(5), {"CUDA_VISIBLE_DEVICES": "MIG-a1"}, [5], id="an instance of a GPU that is here"
    ),
    pytest.param(
        files(2, 3),
        {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "1"},
        [3],
        id="void, and one of two made visible",
    ),
    pytest.param(
        ALL,
        {"NVIDIA_VISIBLE_DEVICES": f"{UUID[6]},{UUID[2]}", "CUDA_VISIBLE_DEVICES": "0"},
        [2],
        id="the node's order counts, not the list's",
    ),
    pytest.param(
        files(2, 3),
        {"NVIDIA_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "1"},
        [3],
        id="a list that is not what was given, and one of two made visible",
    ),
]

#: CUDA_VISIBLE_DEVICES in a container that has GPUs 2, 4 and 6.
VISIBLE = [
    *[("0", [2]), ("1", [4]), ("2,0", [2, 6]), ("0,1,2", [2, 4, 6]), ("", NOWHERE)],
    *[("-1", NOWHERE), ("NoDevFiles", NOWHERE), ("5", NOWHERE), ("0,5,1", [2]), ("1,1", NOWHERE)],
    *[("0,7,7", NOWHERE), ("0,-1,0", [2]), ("1,x,1", [4]), (" 1", [4]), ("\t2", [6]), ("1 ", [4])],
    *[("+1", [4]), ("1gpu2", [4]), ("01", [4]), ("-0", [2]), ("010", NOWHERE), ("0,", [2])],
    *[(",0", NOWHERE), ("0;1", [2]), ("99999999999999999999", NOWHERE), ("*", NOWHERE)],
    *[(UUID[4], [4]), (UUID[4][:6], [4]), (f"{UUID[6]},{UUID[2]}", [2, 6]), (UUID[3], NOWHERE)],
    *[("GPU-", NOWHERE), (f"{UUID[4]},1", [4]), (f"{UUID[4]},{UUID[4]}", NOWHERE)],
    *[(f"{UUID[4]},{UUID[4][:6]}", NOWHERE), (f"{UUID[2]},GPU-ff,{UUID[4]}", [2])],
    *[(f"{UUID[2]}, {UUID[4]}", [2]), (f"0,{UUID[4]}", [2]), ("MIG-a1", NOWHERE)],
]

#: Launchers' variables in a container that has GPUs 2, 4 and 6, and what a rank is put beside.
RANKS = [
    pytest.param(
        {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"}, [4], id="torchrun's second of three"
    ),
    pytest.param({"LOCAL_RANK": "2", "LOCAL_SIZE": "3"}, [6], id="deepspeed's third"),
    pytest.param({"LOCAL_RANK": "1"}, [4], id="one that does not say of how many"),
    pytest.param(
        {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, [6], id="Open MPI's"
    ),
    pytest.param({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}, [4], id="Intel MPI's"),
    pytest.param({"PMI_LOCAL_RANK": "0", "PMI_LOCAL_SIZE": "3"}, [2], id="MPICH's"),
    pytest.param(
        {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        [2, 4, 6],
        id="a lone task of a launcher",
    ),
    pytest.param({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, [2], id="torchrun's only one"),
    pytest.param({"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "3"}, [2, 4, 6], id="no number"),
    pytest.param(
        {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", "CUDA_VISIBLE_DEVICES": "2"},
        [6],
        id="a rank that sees a GPU of its own",
    ),
    pytest.param(
        {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", "CUDA_VISIBLE_DEVICES": UUID[6]},
        [6],
        id="a GPU of its own by name",
    ),
    pytest.param(
        {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "2,0"},
        [2],
        id="the second in a list of the job's own order",
    ),
]


AMD_S = [
    pytest.param({}, [1, 6], id="what is there"),
    pytest.param({"ROCR_VISIBLE_DEVICES": "1"}, [6], id="ROCR's variable"),
    pytest.param({"HIP_VISIBLE_DEVICES": "0"}, [1], id="HIP's"),
    pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, [6], id="CUDA's, which HIP reads, too"),
    pytest.param(
        {"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0"},
        [6],
        id="HIP's after ROCR's",
    ),
    pytest.param({"ROCR_VISIBLE_DEVICES": ""}, NOWHERE, id="none"),
    pytest.param({"NVIDIA_VISIBLE_DEVICES": "0"}, [1, 6], id="another vendor's"),
]
RENDER_NODES = ["dri/renderD129", "dri/renderD134"]


def meant(topology: Topology, devices: Sequence[str], said: Mapping[str, str]) -> CpuSet | None:
    """Return the CPUs that a daemon answers, asked as `run` does; None where it refuses."""
    kinds = {"nvidia": "minor:", "dri/renderD": "drm:"}
    granted = ",".join(
        kind + name.removeprefix(prefix)
        for name in devices
        for prefix, kind in kinds.items()
        if name.startswith(prefix)
    )
    listed = said.get("NVIDIA_VISIBLE_DEVICES", "")
    if "drm" in granted or not re.match(r"[0-9]|GPU-|MIG-", listed):
        listed = ""
    passed = {name: text for name, text in said.items() if name != "NVIDIA_VISIBLE_DEVICES"}
    stated = {"cpuset": format_list(topology.online), "granted": granted or listed}
    stated |= {"nvidia_visible": listed} if listed else {}
    variables = [("env", f"{name}={text}") for name, text in {**BLOCKS, **passed}.items()]
    try:
        requests = parse_query([*stated.items(), *variables])
        return first_answer(requests, lambda it: answer(Node(topology), it)).cpus
    except AffinityError:
        return None


def blocks(topology: Topology, gpus: Sequence[int]) -> CpuSet | None:
    """Return the cores of GPUs, which no other has; None for no GPU."""
    if not gpus:
        return None
    names = ",".join(map(str, gpus))
    return ask(topology, gpus=names, share="node", mode="unique_contiguous").cpus


@pytest.mark.parametrize(("devices", "said", "gpus"), WHICH)
def test_the_gpus_of_a_container_are_what_it_was_really_given(
    devices: list[str], said: dict[str, str], gpus: Sequence[int]
) -> None:
    assert meant(EIGHT, devices, said) == blocks(EIGHT, gpus)


@pytest.mark.parametrize(("visible", "gpus"), VISIBLE)
def test_a_visible_devices_variable_is_read_as_the_driver_reads_it(
    visible: str, gpus: list[int]
) -> None:
    said = {"CUDA_VISIBLE_DEVICES": visible}
    assert meant(EIGHT, files(2, 4, 6), said) == blocks(EIGHT, gpus)


@pytest.mark.parametrize(("said", "gpus"), RANKS)
def test_a_rank_is_beside_its_own_gpu(said: dict[str, str], gpus: list[int]) -> None:
    assert meant(EIGHT, files(2, 4, 6), said) == blocks(EIGHT, gpus)


@pytest.mark.parametrize(("said", "gpus"), AMD_S)
def test_an_amd_gpu_is_known_by_its_render_node(said: dict[str, str], gpus: list[int]) -> None:
    assert meant(AMD, RENDER_NODES, said) == blocks(AMD, gpus)


# The script.


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    yield from prepared(EIGHT, tmp_path_factory.mktemp("nvidia"))


@pytest.fixture(scope="module")
def amd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    yield from prepared(AMD, tmp_path_factory.mktemp("amd"))


def prepared(topology: Topology, folder: Path) -> Iterator[Pod]:
    tree = write_tree(topology, folder / "machine")
    (tree / "nvml.json").write_text(dumps(nvml_report(topology)))
    with running(folder, "--root", str(tree)) as daemon:
        yield Pod(folder / "pod", daemon.socket, BLOCKS)


def expect(pod: Pod, topology: Topology, said: Mapping[str, str], gpus: Sequence[int]) -> None:
    """Run a command in the pod; it must be beside these GPUs of the node, and nowhere else."""
    told = pod.run(cpus=topology.online, **said)
    assert told.cpus == blocks(topology, gpus), told.lines
    assert told.status == 0
    unpinned = [line for line in told.lines if line.endswith("the command runs unpinned")]
    assert len(unpinned) == (not gpus)


@pytest.mark.parametrize(("devices", "said", "gpus"), WHICH[::5])
def test_the_script_finds_the_gpus_of_a_container(
    nvidia: Pod, devices: list[str], said: dict[str, str], gpus: Sequence[int]
) -> None:
    nvidia.has(*devices)
    expect(nvidia, EIGHT, said, gpus)


@pytest.mark.parametrize(("said", "gpus"), RANKS)
def test_the_script_passes_on_what_launchers_say(
    nvidia: Pod, said: dict[str, str], gpus: list[int]
) -> None:
    nvidia.has(*files(2, 4, 6))
    expect(nvidia, EIGHT, said, gpus)


@pytest.mark.parametrize(("said", "gpus"), AMD_S[1::2])
def test_the_script_knows_an_amd_gpu_by_its_render_node(
    amd: Pod, said: dict[str, str], gpus: list[int]
) -> None:
    amd.has(*RENDER_NODES)
    expect(amd, AMD, said, gpus)


#: Four CPUs near GPU 2 and four others, as a container may have them for itself.
FOUR_NEAR = parse_list("20-23,32-35")


@pytest.mark.parametrize(
    ("said", "limit", "expected", "near"),
    [
        pytest.param({}, None, "20-23", True, id="nothing is known"),
        pytest.param({"AFFINITYD_JOB_CPUS": "8"}, None, "20-23,32-35", False, id="its CPU request"),
        pytest.param({"AFFINITYD_JOB_CPUS": "5"}, None, "20-23,32", False, id="a smaller one"),
        pytest.param({"AFFINITYD_JOB_CPUS": "4"}, None, "20-23", True, id="one that is near"),
        pytest.param({"AFFINITYD_JOB_CPUS": "0"}, "800000", "20-23", True, id="none at all"),
        pytest.param({}, "800000", "20-23,32-35", False, id="its limit"),
        pytest.param({}, "450000", "20-23,32", False, id="a limit of parts of a CPU"),
        pytest.param({}, "max", "20-23", True, id="no limit"),
        pytest.param(
            {"AFFINITYD_CPUS": "none"}, "800000", "20-23", True, id="near rather than many"
        ),
        pytest.param(
            {"AFFINITYD_CPUS": "06"}, "800000", "20-23,32-33", False, id="a number of its own"
        ),
        pytest.param(
            {"AFFINITYD_JOB_CPUS": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            None,
            "20-23,32-35",
            False,
            id="that of two ranks on one GPU, who share what is near",
        ),
        pytest.param(
            {"AFFINITYD_JOB_CPUS": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            None,
            "20-23",
            True,
            id="or not, where it is near",
        ),
    ],
)
@pytest.mark.parametrize("reach", ["asked", "files"])
@pytest.mark.parametrize("hierarchy", ["v1", "v2"])
def test_a_container_keeps_the_cpus_that_it_asked_for(
    nvidia: Pod,
    reach: str,
    hierarchy: str,
    *,
    said: dict[str, str],
    limit: str | None,
    expected: str | None,
    near: bool,
) -> None:
    """The files name near CPUs alone: where these are too few, all are left."""
    nvidia.has(*files(2))
    limits = nvidia.folder / "sys/fs/cgroup"
    shutil.rmtree(limits, ignore_errors=True)
    (limits / "cpu").mkdir(parents=True)
    if limit is not None and hierarchy == "v2":
        (limits / "cpu.max").write_text(f"{limit} 100000\n")
    elif limit is not None:
        (limits / "cpu/cpu.cfs_quota_us").write_text(f"{limit.replace('max', '-1')}\n")
        (limits / "cpu/cpu.cfs_period_us").write_text("100000\n")
    away = unreachable(nvidia) if reach == "files" else {}
    told = nvidia.run(cpus=FOUR_NEAR, AFFINITYD_MODE="node", **said, **away)
    shutil.rmtree(limits)
    if expected is None or (reach == "files" and not near):
        assert told.cpus is None
        assert told.lines[-1].endswith("the command runs unpinned")
    else:
        assert told.cpus == parse_list(expected), told.lines
        assert told.environment["AFFINITYD_LOCALITY"] == ("local" if near else "mixed")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param({}, "0-1,48-51", id="what init was told"),
        pytest.param({"AFFINITYD_CPUS": "none"}, "48-51", id="what the program is told"),
        pytest.param(
            {"AFFINITYD_CPUS": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            "48-51",
            id="ranks on one node share what is near, which is enough for both",
        ),
        pytest.param(
            {"AFFINITYD_CPUS": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            "0-1,48-51",
            id="or not",
        ),
    ],
)
def test_what_ranks_of_one_node_asked_for_together_counts(
    nvidia: Pod, tmp_path: Path, said: dict[str, str], expected: str
) -> None:
    """Four CPUs are near GPUs 0 and 1, whose node is one, and four others are not."""
    pod = Pod(tmp_path / "pod", nvidia.socket, {"AFFINITYD_CPUS": "6"})
    pod.has(*files(0, 1))
    told = pod.run(cpus=parse_list("48-51,0-3"), **said)
    assert told.cpus == parse_list(expected), told.lines


def test_a_pod_that_wants_near_cpus_alone_is_given_its_plan(nvidia: Pod, tmp_path: Path) -> None:
    pod = Pod(tmp_path / "pod", nvidia.socket, {"AFFINITYD_CPUS": "none", **BLOCKS})
    assert (pod.to / "plan.json").exists(), pod.said.stderr
    assert "AFFINITYD_CPUS=none" in (pod.to / "settings").read_text()
