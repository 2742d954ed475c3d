"""`affinityd slurm`, on replayed nodes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from affinityd.cli import main
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import put, write_tree
from tests.support.paths import REPOSITORY
from tests.support.recorded_slurm import RecordedSlurm, recorded_slurm

RIGHT = "Name=gpu File=/dev/nvidia0 Cores=0-3\nName=gpu File=/dev/nvidia1 Cores=4-7"


class Said(NamedTuple):
    """The result of a command."""

    code: int
    out: list[str]
    err: str


@dataclass(frozen=True)
class SlurmNode:
    """A node of two packages with a GPU each, named gpu07, and its Slurm."""

    root: Path
    slurm: RecordedSlurm
    capsys: pytest.CaptureFixture[str]

    def run(self, command: str, *flags: str) -> Said:
        """Run a command about this node, or about the machine that the flags name."""
        node = () if "--machine" in flags else ("--root", str(self.root))
        code = main(["slurm", command, *node, "--slurm-conf", str(self.slurm.conf), *flags])
        out, err = self.capsys.readouterr()
        return Said(code, out.splitlines(), err)

    def diff(self, *flags: str) -> Said:
        return self.run("gres-conf", "--diff", *flags)

    def printed(self, *flags: str) -> list[str]:
        """Return the lines of gres-conf without comments; there must be one for each GPU."""
        said = self.run("gres-conf", *flags)
        assert said.code == 0
        return [line for line in said.out if not line.startswith("#")]

    def write(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            put(self.root / path, text)


@pytest.fixture
def node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> SlurmNode:
    """Make the node; this machine's settings and Slurm have no effect."""
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))
    nodes = {0: "0-3", 1: "4-7"}
    topology = made(nodes, gpus=[0, 1], packages=nodes)
    topology = replace(topology, gpus=tuple(replace(it, minor=it.index) for it in topology.gpus))
    slurm = recorded_slurm(tmp_path / "slurm", monkeypatch)
    return SlurmNode(write_tree(topology, tmp_path / "gpu07"), slurm, capsys)


def typed(*kinds: str, before: str = "") -> list[str]:
    """Return the right lines with types; the last type also applies to the lines that follow."""
    pairs = zip(RIGHT.splitlines(), (*kinds, *kinds), strict=False)
    return [line.replace("Name=gpu", f"{before}Name=gpu Type={kind}") for line, kind in pairs]


def test_types_come_from_scontrol_or_the_option(node: SlurmNode) -> None:
    node.slurm.expects("gpu:a100:2(S:0-1)", "gpu07")
    assert node.printed() == typed("a100")
    node.slurm.expects("gpu:2", "gpu07")
    assert node.printed() == RIGHT.splitlines()
    assert not (node.slurm.folder / "asked").exists()  # no slurmd, which may wait for device files
    node.slurm.shows("NodeName=gpu07 Gres=gpu:x:2 State=IDLE+DRAIN+INVALID_REG")
    assert node.printed() == RIGHT.splitlines()
    assert node.printed("--type", "a100") == typed("a100")


def test_a_node_may_have_another_name_than_its_host(node: SlurmNode) -> None:
    node.slurm.is_called("n7")
    node.slurm.expects("gpu:a100:2", "n7")
    node.slurm.has("\n".join(typed("a100")))
    assert node.printed() == typed("a100")
    assert node.diff() == (0, [], "")
    asked = (node.slurm.folder / "asked").read_text()
    assert asked == f"-G -N n7 -f {node.slurm.conf}\n"


def test_nodes_of_one_command_must_be_equal(node: SlurmNode) -> None:
    named = ("--node-name", "gpu[07-08]")
    node.slurm.expects("gpu:a100:2", "gpu07", "gpu08")
    assert node.printed(*named) == typed("a100", before="NodeName=gpu[07-08] ")
    node.slurm.shows("NodeName=gpu07 Gres=gpu:2", "NodeName=gpu08 Gres=gpu:4")
    said = node.run("gres-conf", *named)
    assert said.code == 2
    assert "and gpu08 has Gres=gpu:4; " in said.err


def test_gpus_of_unknown_type_get_comments_until_the_option_names_the_type(node: SlurmNode) -> None:
    node.slurm.expects("gpu:big:1,gpu:small:1", "gpu07")
    said = node.run("gres-conf")
    assert said.code == 1
    assert sum("Name=gpu Type=? File=/dev/nvidia" in line for line in said.out) == 2
    assert all(line.startswith("#") for line in said.out)
    assert "the types of 2 of 2 GPUs are not known: Gres=gpu:big:1,gpu:small:1 has" in said.err
    assert said.err.endswith("name a type for each GPU with --type\n")
    assert node.printed("--type", "big,small") == typed("big", "small")


def test_the_repository_s_lines_for_a_dgx_a100_are_the_printed_ones(node: SlurmNode) -> None:
    shown = (REPOSITORY / "slurm/gres.conf").read_text().splitlines()
    assert node.run("gres-conf", "--machine", "dgx-a100").out == shown
    lines = [line for line in shown if not line.startswith("#")]
    nodes = ("--machine", "dgx-a100", "--node-name", "gpu[001-500]")
    assert node.printed(*nodes) == [f"NodeName=gpu[001-500] {line}" for line in lines]


def test_a_diff_has_slurmd_s_lines_and_the_right_lines(node: SlurmNode) -> None:
    node.slurm.expects("gpu:2", "gpu07")
    node.slurm.has(RIGHT.replace("0-3", "4-7"))
    first, second = RIGHT.splitlines()
    lines = ["--- slurmd -G", "+++ affinityd slurm gres-conf", "@@ -1,2 +1,2 @@"]
    lines += [f"-{first.replace('0-3', '4-7')}", f"+{first}", f" {second}"]
    assert node.diff() == (1, lines, "")
    (node.slurm.folder / "nodes").unlink()  # slurmctld need not answer
    unknown = node.diff()
    assert unknown[:2] == (1, lines)
    assert unknown.err.endswith("name it with --type; types are not compared\n")
    added = [line[1:] for line in node.diff("--type", "a100").out[3:] if line[0] == "+"]
    assert added == typed("a100")


def test_a_diff_without_the_driver_says_that_lines_are_not_compared(node: SlurmNode) -> None:
    write_tree(made({0: "0-3", 1: "4-7"}, gpus=[0, 1]), node.root.with_name("bare"))
    node.slurm.expects("gpu:2", "bare")
    node.slurm.has("Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia1")
    said = replace(node, root=node.root.with_name("bare")).diff()
    assert (said.code, said.out) == (2, [])
    assert "the device files of 2 of 2 GPUs are not known; their lines are not" in said.err


def test_a_diff_without_a_slurm_conf_is_an_error(node: SlurmNode) -> None:
    said = node.diff("--slurm-conf", "/dev")
    assert (said.code, "/dev is not a file; name a slurm.conf" in said.err) == (2, True)
    assert main(["slurm", "gres-conf", "--diff", "--root", str(node.root)]) == 2
    said_of_none = node.capsys.readouterr().err
    assert "there is no slurm.conf in /etc/slurm, /etc/slurm-llnl, /run/slurm/conf" in said_of_none


@pytest.mark.parametrize("name", ["", "a b", "a=b", "x\n"])
def test_a_malformed_node_name_is_bad_usage(node: SlurmNode, name: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        node.run("gres-conf", "--node-name", name)
