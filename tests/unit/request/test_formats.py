"""A plan as it is answered: the document, and lines that shells and tools take."""

import json
import re
from typing import Any

import pytest
from hypothesis import given

from affinityd.cpuset import parse_list, parse_mask
from affinityd.errors import UnsatisfiableError
from affinityd.request.formats import render
from affinityd.request.parameters import FORMATS
from affinityd.request.resolve import Reply
from tests.support.asking import ask
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.strategies import Question, questions
from tests.support.tables import rows, words


def document(reply: Reply) -> Any:  # noqa: ANN401 - as a client reads it
    return json.loads(render(reply, "json"))


#: In the order of the contract's keys.
DOCUMENT = """{"node": "dgx-a100", "generation": 1,
"request": {"gpus": ["0", "1"], "mode": "unique_contiguous", "scope": "node",
"multithreading": "all_logical", "balanced": true, "min_physical_cores": 1,
"max_physical_cores": null, "share": "requested", "strict": false, "cpus": null,
"visible": null, "granted": null},
"allowed": {"cpulist": "0-255", "source": "node", "within": null},
"cpulist": "48-55,176-183",
"ranks": [{"rank": 0,
"gpu": {"index": 0, "uuid": null, "pci_bus_id": "0000:07:00.0", "vendor": "nvidia",
"model": "NVIDIA A100-SXM4-40GB"},
"numa_node": 3, "home_node": 3, "locality": "local", "cpulist": "48-55,176-183",
"physical_cores": 8, "memory_node": 3,
"nics": [{"name": "mlx5_0", "port": 1, "pci_bus_id": "0000:0c:00.0", "link": "PXB", "gbps": 200,
"link_layer": "InfiniBand", "netdev": "ibp12s0", "numa_node": 3}],
"environment": {"OMP_NUM_THREADS": "8"},
"reasons": ["GPU 0 is on NUMA node 3", "unique_contiguous: 8 cores of the 16 of node 3"]}],
"warnings": []}
"""


def test_the_document_is_the_contract_s_in_its_order() -> None:
    reply = ask(machine("dgx-a100"), gpus="0,1", rank="0", share="requested")
    assert render(reply, "json") == DOCUMENT.replace("\n", " ").rstrip() + "\n"


@pytest.mark.parametrize(
    ("asked", "name", "understood"),
    [
        ("", "gpus", ["0", "1", "2", "3"]),
        ("visible=3,1", "gpus", ["0", "1"]),  # indices of what is visible
        ("gpus=0000:00:06.0,0", "gpus", ["0000:00:06.0", "0"]),
        ("mode=unique-contiguous", "mode", "unique_contiguous"),
        ("", "share", "node"),
        ("cpuset=0-7", "share", "requested"),
        ("granted=2,1", "granted", "2,1"),
        ("balanced=no", "balanced", False),
    ],
)
def test_the_document_has_the_request_as_it_was_parsed(
    asked: str, name: str, understood: object
) -> None:
    assert document(ask(machine("flat"), **words(asked)))["request"][name] == understood


@pytest.mark.parametrize(
    ("asked", "allowed"),
    rows("""
the node's                | | 0-7 node None
less the reserved         | reserved=0,7           | 1-6 node None
the caller's mask         | mask=0-3,9             | 0-3 caller 0-3,9
the request's             | cpuset=2-99 mask=0-3   | 2-3 request 0-3
the node's for any caller | whose=node mask=0-3    | 0-7 node None
"""),
)
def test_the_allowed_cpus_who_said_so_and_the_bound(asked: str, allowed: str) -> None:
    reply = document(ask(made({0: "0-7"}), **words(asked)))
    assert " ".join(map(str, reply["allowed"].values())) == allowed


def test_warnings_are_those_of_the_ranks_asked_for_and_of_the_whole_plan() -> None:
    parameters = {"gpus": "0,1,1", "mode": "node", "scope": "socket"}
    whole = document(ask(machine("dgx-a100"), **parameters))["warnings"]
    own = document(ask(machine("dgx-a100"), rank="0", **parameters))["warnings"]
    assert [warning["code"] for warning in whole] == ["parameter_ignored", *["shared_gpu"] * 2]
    assert own == [{"code": "parameter_ignored", "message": whole[0]["message"]}]


def test_the_shell_format_has_the_codes_of_warnings_in_alphabetical_order() -> None:
    asked = "gpus=0,0,7 cpuset=0-79 mode=socket share=node balanced=false"
    text = render(ask(machine("dgx-a100"), **words(asked)), "shell")
    assert "\nAFFINITYD_WARNINGS=parameter_ignored,remote_home,shared_gpu\n" in text


def test_the_answer_has_the_memory_nodes_near_all_visible_gpus() -> None:
    one, some = ({"rank": "0"}, {"rank": "0", "visible": "0,2"})
    assert ask(machine("dgx-a100"), **one).visible_memory == {1, 3, 5, 7}
    assert ask(machine("dgx-a100"), **some).visible_memory == {1, 3}


SHELL = """\
AFFINITYD_CPULIST=48-63,176-191
AFFINITYD_LOCALITY=local
AFFINITYD_ALLOWED=0-255
AFFINITYD_GPUS=0-1
AFFINITYD_NODES=3
AFFINITYD_MEMORY_NODES=3
AFFINITYD_VISIBLE_MEMORY_NODES=3
AFFINITYD_THREADS=16
AFFINITYD_RDMA=mlx5_0:1,mlx5_1:1
AFFINITYD_WARNINGS=
AFFINITYD_RANK_0_CPULIST=48-55,176-183
AFFINITYD_RANK_0_LOCALITY=local
AFFINITYD_RANK_1_CPULIST=56-63,184-191
AFFINITYD_RANK_1_LOCALITY=local
"""


NICS = """\
UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1
NVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1
UCCL_P2P_RDMA_DEV=mlx5_0,mlx5_1
"""


@pytest.mark.parametrize(("form", "lines"), [("shell", SHELL), ("nics", NICS)])
def test_a_plan_as_lines_of_variables(form: str, lines: str) -> None:
    assert render(ask(machine("dgx-a100"), gpus="0,1", share="requested"), form) == lines


@pytest.mark.parametrize(
    ("gpu_nodes", "worst"),
    [([0, 2], "local"), ([0, None], "unknown"), ([None, 1], "unknown"), ([0, 1], "remote")],
)
def test_the_worst_locality_sums_a_plan_up(gpu_nodes: list[int | None], worst: str) -> None:
    topology = made({0: "0-3", 1: "4-7", 2: ""}, gpus=gpu_nodes)  # node 2 is as near to 0 and 1
    reply = ask(topology, mode="node", cpuset="0-3")
    assert reply.locality == worst
    assert f"AFFINITYD_LOCALITY={worst}\n" in render(reply, "shell")


@given(questions())
def test_every_format_says_the_same_and_no_shell_line_needs_quoting(question: Question) -> None:
    reply = question.try_to_ask()
    if isinstance(reply, UnsatisfiableError):
        return
    assert isinstance(reply, Reply)
    texts = {name: render(reply, name) for name in FORMATS}
    assert all(text.endswith("\n") for name, text in texts.items() if name != "nics" or text)
    expected = [rank.cpus for rank in reply.ranks]
    ranks = json.loads(texts["json"])["ranks"]
    assert [parse_list(rank["cpulist"]) for rank in ranks] == expected
    assert [parse_list(line) for line in texts["cpulist"].splitlines()] == expected
    assert [parse_mask(line) for line in texts["mask"].splitlines()] == expected
    numactl = re.compile(r"--physcpubind=([0-9,-]+) --localalloc")
    assert [parse_list(cpus) for cpus in numactl.findall(texts["numactl"])] == expected
    shell = re.compile(r"^AFFINITYD_RANK_[0-9]+_CPULIST=(.+)$", re.MULTILINE)
    assert [parse_list(cpus) for cpus in shell.findall(texts["shell"])] == expected
    assert re.fullmatch(r"([A-Z][A-Z0-9_]*=[A-Za-z0-9_,:.-]*\n)+", texts["shell"])
