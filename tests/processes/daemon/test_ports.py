"""A daemon follows the RDMA ports of its machine: the next plan names none that went down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from affinityd.json_codec import dumps
from tests.support.daemons import Daemon, eventually, running
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import nvml_report, write_tree

A100 = machine("dgx-a100")


def named(daemon: Daemon) -> list[str]:
    (rank,) = json.loads(daemon.get("/plan?gpus=0&nics=all").text)["ranks"]
    return [nic["name"] for nic in rank["nics"]]


def test_a_port_that_goes_down_and_a_device_that_comes_change_the_next_plan(tmp_path: Path) -> None:
    first, second, *others = A100.nics
    tree = write_tree(replace(A100, nics=(first, *others)), tmp_path / "node")
    (tree / "nvml.json").write_text(dumps(nvml_report(A100)))
    with running(tmp_path, "--root", str(tree)) as daemon:
        assert named(daemon) == ["mlx5_0"]
        state = tree / "sys/class/infiniband/mlx5_0/ports/1/state"
        state.write_text("1: DOWN\n")
        eventually(lambda: "mlx5_0" not in named(daemon), "it is not named")
        write_tree(replace(A100, nics=(second,)), tree)
        eventually(lambda: named(daemon) == ["mlx5_1"], "the one that came is named")
        state.write_text("4: ACTIVE\n")
        eventually(lambda: named(daemon) == ["mlx5_0", "mlx5_1"], "and the first again")
        generation = json.loads(daemon.get("/topology").text)["generation"]
        assert generation == 4
        assert json.loads((daemon.socket.parent / "node.json").read_text())["generation"] == 4
