"""The NICs of a rank from start to audit: exec sets variables, verify and audit read them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.sources.nics import NicUse, nic_use
from affinityd.cli import main
from affinityd.topology.model import Nic, RdmaPort
from tests.support.children import sleeping
from tests.support.machines.sysfs_tree import write_tree
from tests.support.small_node import TOPOLOGY, use_small_node

#: GPU 0 is on node 1, and GPU 1 on node 0; mlx5_0 is on node 0, and mlx5_1 on node 1.
NICS = tuple(
    Nic(
        f"0000:c{node}:00.0",
        node,
        "infiniband",
        (f"mlx5_{node}",),
        (f"pci0000:c{node}", f"0000:c{node}:00.0"),
        ports=(RdmaPort(f"mlx5_{node}", 1, is_active=True, gbps=400, link_layer="InfiniBand"),),
    )
    for node in (0, 1)
)
#: The device files that exist here.
FILES = ("uverbs0", "uverbs1")
REPLAYED = "planned on a replayed machine"  #: in the line about AFFINITYD_ROOT
PRINT = (
    "import os; print({name: os.environ.get(name) for name in ('UCX_NET_DEVICES', 'NCCL_IB_HCA')})"
)


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    use_small_node(monkeypatch, tmp_path)
    tree = write_tree(replace(TOPOLOGY, nics=NICS), tmp_path / "node")
    monkeypatch.setenv("AFFINITYD_ROOT", os.fspath(tree))
    monkeypatch.setenv("AFFINITYD_TIMEOUT", "60")
    (tree / "dev/infiniband").mkdir(parents=True)
    for name in FILES:
        (tree / "dev/infiniband" / name).touch()
    return tree


def told(*words: str, **env: str) -> tuple[str, str]:
    run = [sys.executable, "-m", "affinityd", "exec", *words, "--", sys.executable, "-c", PRINT]
    done = subprocess.run(
        run, env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    lines = done.stderr.splitlines(keepends=True)
    return done.stdout.strip(), "".join(line for line in lines if REPLAYED not in line)


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_rank_gets_variables_that_name_its_gpu_s_nic(gpu: int) -> None:
    port = f"mlx5_{1 - gpu}:1"
    has = f"{{'UCX_NET_DEVICES': '{port}', 'NCCL_IB_HCA': '={port}'}}"
    assert told("--gpus", f"{gpu}", "--nics", "ucx,nccl") == (has, "")
    assert told("--gpus", f"{gpu}", AFFINITYD_NICS="ucx,nccl") == (has, "")
    none = "{'UCX_NET_DEVICES': None, 'NCCL_IB_HCA': None}"
    assert told("--gpus", f"{gpu}", "--nics", "none", AFFINITYD_NICS="ucx") == (none, "")
    assert told("--gpus", f"{gpu}", "--nics", "ucx", AFFINITYD="observe")[0] == none
    verbose = told("-v", "--gpus", f"{gpu}", "--nics", "ucx,nccl")[1]
    assert verbose.endswith(f"affinityd exec: NICs for ucx,nccl: {port}\n")


def test_bind_sets_variables_of_nics_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UCX_NET_DEVICES", "NVSHMEM_HCA_LIST", "AFFINITYD_RDMA"):
        monkeypatch.setenv(name, "")
    script = (
        "import os, affinityd; made = affinityd.bind(gpus=0, nics=['ucx', 'nvshmem']); "
        "print(os.environ['UCX_NET_DEVICES'], os.environ['NVSHMEM_HCA_LIST'], len(made.warnings))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "mlx5_1:1 mlx5_1:1 1\n"  # one warning: the machine is replayed


def test_verify_finds_a_process_that_chose_the_nic_of_another_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "0", "UCX_NET_DEVICES": "mlx5_0:1"}
    with sleeping(env, before=("taskset", "-c", "1")) as process:
        assert main(["verify", str(process.pid), "--format", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["processes"]
    (said,) = found["mismatches"]
    assert said == (
        "UCX_NET_DEVICES=mlx5_0:1 names no NIC on the NUMA node of GPU 0; mlx5_1 is nearer (NODE): "
        "set UCX_NET_DEVICES=mlx5_1:1, or start it with affinityd exec --nics ucx"
    )


def test_open_devices_are_read_by_their_files(tmp_path: Path) -> None:
    for number, file in enumerate(
        ("/dev/infiniband/uverbs1", "/dev/cxi0", "/dev/null", "pipe:[7]")
    ):
        (tmp_path / "proc/7/fd").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"proc/7/fd/{number}").symlink_to(file)
    (tmp_path / "proc/7/environ").write_bytes(b"UCX_NET_DEVICES=mlx5_1:1\0HOME=/\0")
    ibdev = tmp_path / "sys/class/infiniband_verbs/uverbs1/ibdev"
    ibdev.parent.mkdir(parents=True)
    ibdev.write_text("mlx5_1\n")
    expected = NicUse({"UCX_NET_DEVICES": "mlx5_1:1"}, ("cxi0", "mlx5_1"))
    assert nic_use(7, str(tmp_path)) == expected
    assert nic_use(8, str(tmp_path)) == NicUse()
