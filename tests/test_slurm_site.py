"""Which slurm.conf counts, and what it calls this node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.errors import InvalidRequestError
from affinityd.slurm.config.expected import Unknown, expected
from affinityd.slurm.config.site import SETTING, NodeName, open_site
from tests.machines.sysfs_tree import put

HOST = os.uname().nodename
SHORT = HOST.partition(".")[0]


@pytest.fixture(autouse=True)
def _no_slurmctld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.parametrize(
    ("conf", "host", "environ", "name"),
    [
        ("", HOST, {}, NodeName(SHORT, "this host's name")),
        ("", HOST, {"SLURMD_NODENAME": "tux7"}, NodeName("tux7", "SLURMD_NODENAME")),
        ("", "gpu07.cluster", {"SLURMD_NODENAME": "tux7"}, NodeName("gpu07", SETTING)),
        ("NodeName=gpu07.cluster", "gpu07.cluster", {}, NodeName("gpu07.cluster", SETTING)),
        (
            "NodeName=n[1-3] NodeHostname=gpu[06-08].cluster",
            "gpu07.cluster",
            {},
            NodeName("n2", "NodeHostname=gpu07.cluster in slurm.conf"),
        ),
        (
            "NodeName=n[1-3] NodeHostname=gpu07 Port=[7001-7003]",
            "gpu07",
            {},
            NodeName("n1", "NodeHostname=gpu07 in slurm.conf"),
        ),
    ],
    ids=[
        "its host name",
        "slurmd's name in a job",
        "a name that was set counts more",
        "its whole name",
        "by NodeHostname=",
        "several nodes on a host",
    ],
)
def test_the_name_of_a_node_says_where_it_is_from(
    tmp_path: Path, conf: str, host: str, environ: Mapping[str, str], name: NodeName
) -> None:
    put(tmp_path / "slurm.conf", f"ClusterName=x\n{conf}")
    site = open_site("/", str(tmp_path / "slurm.conf"), {})
    assert site.node_name(host, environ) == name


def test_slurms_own_variable_names_slurm_conf_on_a_live_machine_alone(tmp_path: Path) -> None:
    put(tmp_path / "slurm.conf", "NodeName=gpu07 Gres=gpu:a100:2")
    put(tmp_path / "captured/etc/slurm/slurm.conf", "NodeName=gpu07 Gres=gpu:h100:2")
    environ = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    roots = {"/": "gpu:a100:2", str(tmp_path / "captured"): "gpu:h100:2"}
    for root, gres in roots.items():
        found = open_site(root, None, environ).expected(["gpu07"])
        assert not isinstance(found, Unknown)
        assert found.gres == gres
    shipped = open_site(None, None, environ).expected(["gpu07"])
    assert shipped == Unknown("a shipped machine has no slurm.conf")


@pytest.mark.parametrize(
    ("gres", "counts"),
    [
        ("gpu:a100:2", {"a100": 2}),
        ("gpu:2,shard:8", {None: 2}),
        ("gpu", {None: 1}),
        ("gpu:a100", {"a100": 1}),
        ("gpu:4090:2,gpu:a100_3g.20gb:1", {"4090": 2, "a100_3g.20gb": 1}),
        ("gpu:a100:2(S:0,2),gpu:v100:1(S:0-1)", {"a100": 2, "v100": 1}),
        ("gpu:a100:no_consume:2", {"a100": 2}),
        ("gpu:0", {}),
        ("(null)", {}),
    ],
)
def test_gres_is_read_in_its_order(gres: str, counts: Mapping[str | None, int]) -> None:
    found = expected("s:1", {"gres": gres}, {}).counts
    assert list(found.items()) == list(counts.items())


@pytest.mark.parametrize("gres", ["gpu:", "gpu::2", "gpu:a:b:2", "gpu:a100:x"])
def test_a_gres_that_is_none_is_refused_with_its_place(gres: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^s:1: .* is not written like gpu:a100:2$"):
        expected("s:1", {"gres": gres}, {})


def test_where_nothing_tells_the_reasons_are_named(tmp_path: Path) -> None:
    put(tmp_path / "slurm.conf", "NodeName=gpu08 Gres=gpu:a100:2")
    site = open_site("/", None, {"SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert site.expected(["gpu07"]) == Unknown(
        "slurm.conf has no node gpu07; scontrol show node gpu07: No such file or directory"
    )


def test_an_included_file_is_named_after_the_cluster_and_one_that_is_gone_is_passed_over(
    tmp_path: Path,
) -> None:
    put(tmp_path / "slurm.conf", "ClusterName=red\nInclude gone\nInclude %c/nodes\n")
    put(tmp_path / "red/nodes", 'nodename=gpu07 gres="gpu:a100:2" CPUs = 8')
    found = open_site("/", str(tmp_path / "slurm.conf"), {}).expected(["gpu07"])
    assert not isinstance(found, Unknown)
    assert (found.gres, found.cores) == ("gpu:a100:2", 8)
    assert found.place == f"{tmp_path}/red/nodes:1"
