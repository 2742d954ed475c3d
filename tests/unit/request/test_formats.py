"""A plan as it is answered: the document, and lines that shells and tools take."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from affinityd.cpuset import CpuSet, format_list, parse_list, parse_mask
from affinityd.errors import UnsatisfiableError
from affinityd.request.formats import Reply, render
from affinityd.request.parameters import FORMATS
from affinityd.topology.model import Core, Gpu, NumaNode, Topology
from tests.support.asking import ask, cpulists
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.strategies import Question, questions


def document(reply: Reply) -> Any:  # noqa: ANN401 - as a client reads it
    return json.loads(render(reply, "json"))


A100 = ask(machine("dgx-a100"), gpus="0,1", share="requested")


def test_the_document_is_the_contract_s() -> None:
    assert document(ask(machine("dgx-a100"), gpus="0,1", rank="0", share="requested")) == {
        "node": "dgx-a100",
        "generation": 1,
        "request": {
            "gpus": ["0", "1"],
            "mode": "unique_contiguous",
            "scope": "node",
            "multithreading": "all_logical",
            "balanced": True,
            "min_physical_cores": 1,
            "max_physical_cores": None,
            "share": "requested",
            "strict": False,
            "cpus": None,
            "visible": None,
            "granted": None,
        },
        "allowed": {"cpulist": "0-255", "source": "node", "within": None},
        "cpulist": "48-55,176-183",
        "ranks": [
            {
                "rank": 0,
                "gpu": {
                    "index": 0,
                    "uuid": None,
                    "pci_bus_id": "0000:07:00.0",
                    "vendor": "nvidia",
                    "model": "NVIDIA A100-SXM4-40GB",
                },
                "numa_node": 3,
                "home_node": 3,
                "locality": "local",
                "cpulist": "48-55,176-183",
                "physical_cores": 8,
                "memory_node": 3,
                "environment": {"OMP_NUM_THREADS": "8"},
                "reasons": [
                    "GPU 0 is on NUMA node 3",
                    "unique_contiguous: 8 cores of the 16 of node 3",
                ],
            }
        ],
        "warnings": [],
    }


def test_its_keys_are_in_the_contract_s_order() -> None:
    reply = document(ask(machine("flat"), gpus="0"))
    assert " ".join(reply) == "node generation request allowed cpulist ranks warnings"
    assert " ".join(reply["request"]) == (
        "gpus mode scope multithreading balanced min_physical_cores max_physical_cores share "
        "strict cpus visible granted"
    )
    assert " ".join(reply["allowed"]) == "cpulist source within"
    (rank,) = reply["ranks"]
    assert " ".join(rank) == (
        "rank gpu numa_node home_node locality cpulist physical_cores memory_node environment "
        "reasons"
    )
    assert " ".join(rank["gpu"]) == "index uuid pci_bus_id vendor model"
    assert [" ".join(warning) for warning in reply["warnings"]] == ["code message"]


@pytest.mark.parametrize(
    ("parameters", "name", "understood"),
    [
        pytest.param({}, "gpus", ["0", "1", "2", "3"], id="all GPUs are spelled out"),
        pytest.param({"visible": "3,1"}, "gpus", ["0", "1"], id="as indices of what is visible"),
        pytest.param({"gpus": "0000:00:06.0, 0"}, "gpus", ["0000:00:06.0", "0"], id="as asked"),
        pytest.param({"mode": "unique-contiguous"}, "mode", "unique_contiguous", id="the mode"),
        pytest.param({}, "share", "node", id="share is as decided"),
        pytest.param({"cpuset": "0-7"}, "share", "requested", id="share on a narrower cpuset"),
        pytest.param({"mode": "node", "share": "node"}, "share", "requested", id="share ignored"),
        pytest.param({"visible": "2"}, "visible", "2", id="visible is as given"),
        pytest.param({"granted": "2, 1"}, "granted", "2,1", id="granted is as understood"),
        pytest.param({"balanced": "no"}, "balanced", False, id="a boolean is one"),
        pytest.param({"max_physical_cores": "02"}, "max_physical_cores", 2, id="a number is one"),
    ],
)
def test_the_request_is_told_as_understood(
    parameters: dict[str, str], name: str, understood: object
) -> None:
    assert document(ask(machine("flat"), **parameters))["request"][name] == understood


@pytest.mark.parametrize(
    ("parameters", "mask", "allowed"),
    [
        pytest.param({}, None, ("0-7", "node", None), id="the node's"),
        pytest.param({}, "0-3,9", ("0-3", "caller", "0-3,9"), id="the caller's mask"),
        pytest.param({"cpuset": "2-99"}, "0-3", ("2-3", "request", "0-3"), id="the request's"),
        pytest.param({"cpuset": "2-99"}, None, ("2-7", "request", None), id="a stranger's"),
        pytest.param({"whose": "caller"}, "0-3", ("0-3", "caller", "0-3"), id="as by default"),
        pytest.param({"whose": "node"}, "0-3", ("0-7", "node", None), id="the node's for anybody"),
    ],
)
def test_the_allowed_cpus_who_said_so_and_the_bound(
    parameters: dict[str, str], mask: str | None, allowed: tuple[str | None, ...]
) -> None:
    reply = document(ask(made({0: "0-7"}), mask=mask, **parameters))
    assert tuple(reply["allowed"].values()) == allowed


def test_reserved_cpus_are_not_allowed() -> None:
    reply = ask(made({0: "0-7"}), reserved="0,7")
    assert document(reply)["allowed"] == {"cpulist": "1-6", "source": "node", "within": None}


def test_a_node_without_a_number_is_null() -> None:
    reply = ask(made({0: "0-3"}, gpus=[None], packages={0: "0-7"}), cpuset="4-7")
    (rank,) = document(reply)["ranks"]
    assert rank["numa_node"] is rank["home_node"] is rank["memory_node"] is None


@pytest.mark.parametrize(
    ("rank", "expected"),
    [("1", "56-63,184-191"), ("0-1", "48-63,176-191"), ("1,0", "48-63,176-191")],
)
def test_the_union_is_over_the_ranks_asked_for(rank: str, expected: str) -> None:
    reply = ask(machine("dgx-a100"), gpus="0,1", rank=rank, share="requested")
    assert document(reply)["cpulist"] == expected


def test_warnings_are_those_of_the_ranks_asked_for_and_of_the_whole_plan() -> None:
    parameters = {"gpus": "0,1,1", "mode": "node", "scope": "socket"}
    whole = document(ask(machine("dgx-a100"), **parameters))["warnings"]
    own = document(ask(machine("dgx-a100"), rank="0", **parameters))["warnings"]
    assert [warning["code"] for warning in whole] == ["parameter_ignored", *["shared_gpu"] * 2]
    assert own == whole[:1]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("cpulist", ["48-55,176-183", "56-63,184-191"]),
        ("mask", [hex(0xFF << 48 | 0xFF << 176), hex(0xFF << 56 | 0xFF << 184)]),
        (
            "numactl",
            [
                "--physcpubind=48-55,176-183 --localalloc",
                "--physcpubind=56-63,184-191 --localalloc",
            ],
        ),
        (
            "shell",
            [
                "AFFINITYD_CPULIST=48-63,176-191",
                "AFFINITYD_LOCALITY=local",
                "AFFINITYD_ALLOWED=0-255",
                "AFFINITYD_GPUS=0-1",
                "AFFINITYD_NODES=3",
                "AFFINITYD_MEMORY_NODES=3",
                "AFFINITYD_THREADS=16",
                "AFFINITYD_WARNINGS=",
                "AFFINITYD_RANK_0_CPULIST=48-55,176-183",
                "AFFINITYD_RANK_0_LOCALITY=local",
                "AFFINITYD_RANK_1_CPULIST=56-63,184-191",
                "AFFINITYD_RANK_1_LOCALITY=local",
            ],
        ),
    ],
)
def test_a_plan_as_lines(name: str, lines: list[str]) -> None:
    assert render(A100, name) == "".join(f"{line}\n" for line in lines)


def test_a_plan_as_json_is_one_line_of_its_document() -> None:
    text = render(A100, "json")
    assert text.count("\n") == 1
    assert json.loads(text) == document(A100)


def test_a_value_beyond_ascii_is_written_as_it_is() -> None:
    reply = ask(made({0: "0-3"}), visible="0 ünïcode")
    assert '"visible": "0 ünïcode"' in render(reply, "json")


@pytest.mark.parametrize(
    ("gpu_nodes", "worst"),
    [([0, 0], "local"), ([0, None], "unknown"), ([None, 2], "remote"), ([0, 2], "remote")],
)
def test_the_worst_locality_sums_a_plan_up(gpu_nodes: list[int | None], worst: str) -> None:
    reply = ask(made({0: "0-3", 1: "4-7", 2: ""}, gpus=gpu_nodes), mode="node")
    assert reply.locality == worst
    assert f"AFFINITYD_LOCALITY={worst}\n" in render(reply, "shell")


@given(questions())
def test_every_format_says_the_same(question: Question) -> None:
    try:
        reply = question.ask()
    except UnsatisfiableError:
        return
    texts = {name: render(reply, name) for name in FORMATS}
    assert all(text.endswith("\n") for text in texts.values())
    expected = [rank.cpus for rank in reply.ranks]
    ranks = json.loads(texts["json"])["ranks"]
    assert [parse_list(rank["cpulist"]) for rank in ranks] == expected
    assert [parse_list(line) for line in texts["cpulist"].splitlines()] == expected
    assert [parse_mask(line) for line in texts["mask"].splitlines()] == expected
    numactl = re.compile(r"--physcpubind=([0-9,-]+) --localalloc")
    assert [parse_list(cpus) for cpus in numactl.findall(texts["numactl"])] == expected
    shell = re.compile(r"^AFFINITYD_RANK_[0-9]+_CPULIST=(.+)$", re.MULTILINE)
    assert [parse_list(cpus) for cpus in shell.findall(texts["shell"])] == expected


# This machine's CPUs, through the programs that the formats are for.

HERE = sorted(os.sched_getaffinity(0))


def _here(cpus: list[int]) -> Reply:
    """Return a plan whose one rank has some of the CPUs that this process may use."""
    topology = Topology(
        name="here",
        cores=tuple(Core((cpu,), 0, 0, None, 0) for cpu in HERE),
        nodes=(NumaNode(0),),
        gpus=(Gpu(0, "nvidia", "0000:01:00.0", 0),),
    )
    return ask(topology, mode="node", cpuset=format_list(cpus))


def _mask_under(*command: str) -> CpuSet:
    """Return the mask with which a command starts another."""
    run = [*command, "grep", "Cpus_allowed_list", "/proc/self/status"]
    out = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    return parse_list(out.split(":")[1])


SOME = pytest.mark.parametrize(
    "cpus", [HERE, HERE[:1], HERE[-1:], HERE[::2]], ids=["all", "first", "last", "every second"]
)


@SOME
def test_taskset_takes_a_cpulist(cpus: list[int]) -> None:
    assert _mask_under("taskset", "-c", render(_here(cpus), "cpulist").strip()) == {*cpus}


@SOME
def test_taskset_takes_a_mask(cpus: list[int]) -> None:
    assert _mask_under("taskset", render(_here(cpus), "mask").strip()) == {*cpus}


@SOME
@pytest.mark.skipif(shutil.which("numactl") is None, reason="needs numactl (Debian: numactl)")
def test_numactl_takes_its_options(cpus: list[int]) -> None:
    assert _mask_under("numactl", *render(_here(cpus), "numactl").split()) == {*cpus}


@pytest.mark.parametrize("export", ["", "export "], ids=["plain", "as a TaskProlog exports them"])
def test_a_posix_shell_takes_the_lines_literally(tmp_path: Path, export: str) -> None:
    reply = ask(made({0: "0-3", 1: "4-7", 2: ""}, gpus=[0, None, 2]), mode="node")
    script = tmp_path / "lines.sh"
    lines = render(reply, "shell").splitlines()
    script.write_text("".join(f"{export}{line}\n" for line in lines))
    run = ["sh", "-euc", 'set -a; . "$1"; env', "sh", str(script)]
    out = subprocess.run(run, check=True, capture_output=True, text=True, env={}).stdout
    assert {*lines} <= {*out.splitlines()}
    assert len(lines) == 8 + 2 * len(cpulists(reply))


def test_no_shell_line_needs_quoting() -> None:
    for line in render(ask(machine("power9"), mode="node"), "shell").splitlines():
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*=[A-Za-z0-9_,-]*", line)
