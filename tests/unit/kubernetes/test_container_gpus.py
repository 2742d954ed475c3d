"""Which GPUs of the node a container has, as a daemon answers its `run`; names of hosts."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from affinityd.client import ask_daemon
from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import DaemonError, NoDaemonError, NoSuchGpuError
from affinityd.kubernetes.node_plan import numeric
from affinityd.request.query import parse_query
from affinityd.request.resolve import answer
from affinityd.topology.model import Node, Topology
from tests.support.asking import ask
from tests.support.daemons import PATIENCE
from tests.support.machines.facts import machine
from tests.unit.request.test_devices import EIGHT

#: Eight GCDs, in KFD's order, with their render nodes counting down.
AMD = replace(
    machine("mi250x"),
    gpus=tuple(replace(gpu, render_minor=135 - gpu.index) for gpu in machine("mi250x").gpus),
)

#: The GPUs whose device files are there, NVIDIA_VISIBLE_DEVICES where it names any, then
#: CUDA_VISIBLE_DEVICES, `.` where it is unset, and the GPUs that are meant, in the node's numbers.
CONTAINERS = """
2        | GPU-120000            | .      | 2
02       | 0,2                   | .      | 02
01234567 | GPU-120000            | .      | 2
01234567 | 3,1                   | .      | 13
01234567 | MIG-a2                | .      | 5
01234567 | MIG-a                 | .      | 01234567
01234567 | GPU-24                | .      | 4
01234567 | 5:1                   | .      | 5
01234567 | 1, 2                  | .      | 12
01234567 | 1,GPU-010000          | .      | 1
01234567 | 00000000:0f:00.0      | .      | 1
01234567 | 9                     | .      | 01234567
01234567 | 1,x                   | .      | 01234567
01234567 |                       | .      | 01234567
4        | 0                     | .      | 4
4        | GPU-ff                | .      | 4
         | GPU-130000            | .      | 3
         | GPU-ff                | .      |
5        | MIG-ff                | .      | 5
5        | MIG-a1,MIG-a2         | 1      | 5
5        | MIG-a1,MIG-a2         | MIG-a2 | 5
5        | MIG-a1                | MIG-a2 |
5        |                       | MIG-a1 | 5
23       |                       | 1      | 3
23       | 0,1                   | 1      | 3
01234567 | GPU-360000,GPU-120000 | 0      | 2
246      |                       |        |
246      |                       | 2,0    | 26
"""


def meant(topology: Topology, granted: str, listed: str = "", **said: str) -> CpuSet | None:
    """Return the CPUs that are answered; None where there is no such GPU."""
    stated = {"cpuset": format_list(topology.online), "granted": granted or listed}
    said |= {"NVIDIA_VISIBLE_DEVICES": listed} if listed else {}
    said = {"AFFINITYD_MODE": "unique_contiguous", **said}
    variables = [("env", f"{name}={text}") for name, text in said.items()]
    request = parse_query([*stated.items(), *variables])
    try:
        return answer(Node(topology), request).cpus
    except NoSuchGpuError:
        return None


def blocks(topology: Topology, gpus: str) -> CpuSet | None:
    """Return the cores of GPUs, which no other has; None for no GPU."""
    named = {"share": "node", "mode": "unique_contiguous", "gpus": ",".join(gpus)}
    return ask(topology, **named).cpus if gpus else None


@pytest.mark.parametrize("row", CONTAINERS.strip().splitlines())
def test_the_gpus_of_a_container_follow_from_its_device_files(row: str) -> None:
    """Of a privileged one, which sees all device files, the runtime's list tells."""
    files, listed, visible, gpus = (cell.strip() for cell in row.split("|"))
    granted = ",".join(f"minor:{EIGHT.gpus[int(gpu)].minor}" for gpu in files)
    said = {} if visible == "." else {"CUDA_VISIBLE_DEVICES": visible}
    assert meant(EIGHT, granted, listed, **said) == blocks(EIGHT, gpus)


@pytest.mark.parametrize(
    ("said", "gpus"),
    [
        ({}, "16"),
        ({"ROCR_VISIBLE_DEVICES": "1"}, "6"),
        ({"HIP_VISIBLE_DEVICES": "0"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "6"),  # HIP reads it, too
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0"}, "6"),
        ({"ROCR_VISIBLE_DEVICES": ""}, ""),
    ],
)
def test_an_amd_gpu_is_known_by_its_render_node(said: Mapping[str, str], gpus: str) -> None:
    assert meant(AMD, "drm:129,drm:134", **said) == blocks(AMD, gpus)


@pytest.mark.parametrize(
    ("rank", "size", "visible", "gpus"),
    [("1", "3", None, "4"), ("1", "3", "2", "6"), ("1", "2", "2,0", "2"), ("x", "3", None, "246")],
)
def test_a_rank_is_beside_its_own_gpu(rank: str, size: str, visible: str | None, gpus: str) -> None:
    said = {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    said |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    granted = ",".join(f"minor:{EIGHT.gpus[gpu].minor}" for gpu in (2, 4, 6))
    assert meant(EIGHT, granted, **said) == blocks(EIGHT, gpus)


NAME = "http://gpu-node.example:9465"


def test_a_host_s_name_is_resolved_to_its_address() -> None:
    found = numeric("http://localhost:9465", time.monotonic() + 5)
    assert found in {"http://127.0.0.1:9465", "http://[::1]:9465"}


@pytest.mark.parametrize("host", ["127.0.0.1.1", "x" * 70 + ".y"], ids=["unknown", "no name"])
def test_an_unknown_host_is_no_daemon(host: str) -> None:
    with pytest.raises(NoDaemonError, match=f"^no daemon at http://{host}:9465: "):
        numeric(f"http://{host}:9465", time.monotonic() + 5)


def test_a_silent_name_server_is_waited_for_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(1000))
    began = time.monotonic()
    with pytest.raises(DaemonError, match=r"^the daemon at http://gpu-node\S+ was not found in"):
        numeric(NAME, began + 0.05)
    assert time.monotonic() < began + PATIENCE


@pytest.mark.parametrize("address", [NAME, "http://127.0.0.1:http", "http://:1"])
def test_the_client_resolves_no_names(address: str) -> None:
    with pytest.raises(NoDaemonError, match="by their numbers"):
        ask_daemon.ask_plan(address, {}, time.monotonic() + 5)
