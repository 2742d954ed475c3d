"""The node that is planned on without a daemon: what one published, else this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd import config
from affinityd.cli import main
from affinityd.client import local_plan
from affinityd.discovery import discover, open_tree
from affinityd.discovery.snapshot import write_snapshot
from affinityd.topology.document import write_node
from affinityd.topology.model import Node
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree

NODE = Node(machine("dgx-a100"), frozenset({0, 128}), generation=3)


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where a daemon's socket would be, where no settings say anything of a machine."""
    for name in ("ROOT", "MACHINE", "RESERVED_CPUS", "SOCKET"):
        monkeypatch.delenv(f"AFFINITYD_{name}", raising=False)
    monkeypatch.setenv("AFFINITYD_CONFIG", str(tmp_path / "none"))
    (tmp_path / "run").mkdir()
    return str(tmp_path / "run" / "affinityd.sock")


@pytest.fixture
def published(socket: str) -> Path:
    path = Path(socket).with_name("node.json")
    write_node(path, NODE)
    return path


@pytest.mark.usefixtures("published")
def test_the_published_node_is_used(socket: str) -> None:
    known = local_plan.find_node(["/nowhere/affinityd.sock", socket])
    assert known.source == "node.json"
    assert (known.node.topology, known.node.reserved) == (NODE.topology, NODE.reserved)


def query(*more: str) -> list[str]:
    pairs = ("format=shell", "cpuset=0-255", "granted=minor:1", *more)
    return [word for pair in pairs for word in ("--query", pair)]


def test_a_script_gets_the_daemon_s_answer_from_node_json(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for pairs, said in (
        ((), "AFFINITYD_CPULIST="),
        (("env=SLURM_JOB_ID=7", "env=CUDA_VISIBLE_DEVICES=0"), "AFFINITYD_CPULIST="),
        (("mode=x",), "Malformed request: mode: 'x' is not one of"),
        (("env=CUDA_VISIBLE_DEVICES=9",), "No such GPU: "),
    ):
        assert main(["plan", "--node-file", f"{published}", *query(*pairs)]) == 0
        assert capsys.readouterr().out.startswith(said)
    published.unlink()
    main(["plan", "--node-file", f"{published}", *query()])
    assert "No such file" in capsys.readouterr().out


def test_a_file_that_is_no_node_is_passed_over(socket: str, published: Path) -> None:
    this = discover(open_tree("/"), None)
    for content in (b'{"version": 2}', b"\xff\xfe"):
        published.write_bytes(content)
        known = local_plan.find_node([socket])
        assert (known.source, known.node.topology) == ("sysfs", this)
    published.unlink()
    published.mkdir()
    assert local_plan.find_node([socket]).source == "sysfs"


def test_a_replayed_node_beside_the_default_socket_is_passed_over(
    socket: str, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    otherwise = socket.replace("/run/", "//run/./")
    for default, replayed, source in (
        *((socket, True, "sysfs"), (socket, False, "node.json"), ("/other", True, "node.json")),
        (otherwise, True, "sysfs"),
    ):
        monkeypatch.setattr(config, "SYSTEM_SOCKET", default)
        write_node(published, replace(NODE, replayed=replayed))
        for spelled in (socket, otherwise):
            assert local_plan.find_node([spelled]).source == source


def test_settings_choose_the_machine(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFFINITYD_MACHINE", "mi250x")
    monkeypatch.setenv("AFFINITYD_RESERVED_CPUS", "0,8")
    known = local_plan.find_node([socket])
    assert (known.node.topology, known.node.reserved) == (machine("mi250x"), frozenset({0, 8}))
    replayed = "AFFINITYD_MACHINE is 'mi250x': planned on a replayed machine, not on this one"
    assert (known.source, known.replayed) == ("sysfs", replayed)


def test_a_snapshot_is_replayed_but_a_folder_may_be_this_machine(
    socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = write_tree(machine("mi250x"), tmp_path / "tree")
    write_snapshot(open_tree(str(tree)), None, tmp_path / "node.tar")
    for root, told in ((tree, False), (tmp_path / "node.tar", True)):
        monkeypatch.setenv("AFFINITYD_ROOT", str(root))
        known = local_plan.find_node([socket])
        assert known.node.topology.online == machine("mi250x").online
        assert str(known.replayed).startswith("AFFINITYD_ROOT is '") == told
