"""`affinityd slurm`, on replayed nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from affinityd.cli import main
from affinityd.slurm.jobs import REMEDY
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import put, write_tree
from tests.support.paths import REPOSITORY
from tests.support.recorded_slurm import RecordedSlurm, recorded_slurm

RIGHT = "Name=gpu File=/dev/nvidia0 Cores=0-3\nName=gpu File=/dev/nvidia1 Cores=4-7"
V1 = "sys/fs/cgroup/cpuset"
V2 = "sys/fs/cgroup/system.slice"


class Said(NamedTuple):
    """What a command answered."""

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
        """Run a command about a node, this one unless a machine is named."""
        node = () if "--machine" in flags else ("--root", str(self.root))
        code = main(["slurm", command, *node, "--slurm-conf", str(self.slurm.conf), *flags])
        out, err = self.capsys.readouterr()
        return Said(code, out.splitlines(), err)

    def check(self, *flags: str) -> Said:
        return self.run("check", *flags)

    def printed(self, *flags: str) -> list[str]:
        """Return the lines of gres-conf that are no comments; there must be one for each GPU."""
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
    """Make the node; no settings of this one count, nor its Slurm."""
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))
    nodes = {0: "0-3", 1: "4-7"}
    topology = made(nodes, gpus=[0, 1], packages=nodes)
    topology = replace(topology, gpus=tuple(replace(it, minor=it.index) for it in topology.gpus))
    slurm = recorded_slurm(tmp_path / "slurm", monkeypatch)
    return SlurmNode(write_tree(topology, tmp_path / "gpu07"), slurm, capsys)


def typed(*kinds: str, before: str = "") -> list[str]:
    """Return the right lines with types, the last of them also for those that follow."""
    pairs = zip(RIGHT.splitlines(), (*kinds, *kinds), strict=False)
    return [line.replace("Name=gpu", f"{before}Name=gpu Type={kind}") for line, kind in pairs]


def test_types_are_those_of_slurm_conf_else_of_a_valid_node_else_the_flag_s_else_slurmd_s(
    node: SlurmNode,
) -> None:
    node.slurm.expects("gpu:a100:2", "gpu07")
    assert node.printed() == typed("a100")
    node.slurm.expects("gpu:2", "gpu07")
    assert node.printed() == RIGHT.splitlines()
    assert not (node.slurm.folder / "asked").exists()  # slurmd, which may wait for device files
    node.slurm.conf.write_text("")
    for state, lines in ("IDLE", typed("x")), ("IDLE+DRAIN+INVALID_REG", RIGHT.splitlines()):
        node.slurm.shows(f"NodeName=gpu07 Gres=gpu:x:2(S:0-1) State={state}")
        assert node.printed() == lines
    node.slurm.has("Name=gpu Type=x File=/dev/nvidia0")
    assert node.printed() == typed("x")
    assert node.printed("--type", "a100") == typed("a100")


def test_a_node_may_have_another_name_than_its_host(node: SlurmNode) -> None:
    node.slurm.is_called("n7")
    node.slurm.expects("gpu:a100:2", "n7")
    node.slurm.has("\n".join(typed("a100")))
    assert node.printed() == typed("a100")
    assert node.check().code == 0
    asked = (node.slurm.folder / "asked").read_text()
    assert asked == f"-G -N n7 -f {node.slurm.conf}\n"


def test_nodes_that_are_named_are_equal(node: SlurmNode) -> None:
    named = ("--node-name", "gpu[07-08]")
    node.slurm.expects("gpu:a100:2", "gpu07", "gpu08")
    assert node.printed(*named) == typed("a100", before="NodeName=gpu[07-08] ")
    node.slurm.conf.write_text("NodeName=gpu07 Gres=gpu:2\nNodeName=gpu08 Gres=gpu:4")
    said = node.run("gres-conf", *named)
    assert said.code == 2
    assert f"gpu08 has Gres=gpu:4 ({node.slurm.conf})" in said.err


def test_lines_that_would_drain_a_node_are_refused_in_one_line(node: SlurmNode) -> None:
    node.slurm.expects("gpu:a100:2", "gpu07")
    for kinds, told in (
        ("h100", "--type 'h100' is not in Gres=gpu:a100:2 ("),
        ("a100,a100,a100", "--type names 3 types, and there are 2 GPUs"),
    ):
        said = node.run("gres-conf", "--type", kinds)
        assert (said.code, said.out, said.err.count("\n")) == (2, [], 1)
        assert told in said.err


def test_gpus_whose_type_nothing_tells_are_comments_until_the_flag_names_them(
    node: SlurmNode,
) -> None:
    node.slurm.expects("gpu:big:1,gpu:small:1", "gpu07")
    said = node.run("gres-conf")
    assert said.code == 1
    assert sum("Name=gpu Type=? File=/dev/nvidia" in line for line in said.out) == 2
    assert all(line.startswith("#") for line in said.out)
    assert "the types of 2 of 2 GPUs are not known: Gres=gpu:big:1,gpu:small:1 (" in said.err
    assert said.err.endswith("name one for each with --type\n")
    lines = typed("big", "small")
    assert node.printed("--type", "big,small") == lines
    node.slurm.has("\n".join(lines))
    assert node.printed() == lines


def test_a_node_that_slurm_does_not_have_is_named(node: SlurmNode) -> None:
    node.slurm.has(RIGHT)
    unknown = "of node gpu07 is not known here (scontrol show node gpu07: Node not found)"
    checked, printed = node.check(), node.run("gres-conf")
    assert (checked.code, printed.code) == (0, 0)
    assert unknown in checked.out[0]
    assert unknown in printed.err
    assert printed.err.endswith("if it has a type, name it with --type\n")


def test_what_a_dgx_a100_is_shown_to_print_is_what_it_prints_for_equal_nodes_too(
    node: SlurmNode,
) -> None:
    shown = (REPOSITORY / "slurm/gres.conf").read_text().splitlines()
    assert node.run("gres-conf", "--machine", "dgx-a100").out == shown
    lines = [line for line in shown if not line.startswith("#")]
    nodes = ("--machine", "dgx-a100", "--node-name", "gpu[001-500]")
    assert node.printed(*nodes) == [f"NodeName=gpu[001-500] {line}" for line in lines]


def test_what_is_wrong_is_summed_up_and_is_the_exit_status(node: SlurmNode) -> None:
    node.slurm.expects("gpu:2", "gpu07")
    for lines, code, said in (
        (RIGHT, 0, "gres.conf fits this node"),
        (RIGHT.replace("0-3", "4-7"), 1, "2 GPUs, 1 finding"),
        ("error: Parse error\nfatal: x", 2, "2 GPUs, 2 errors of slurmd"),
    ):
        node.slurm.has(lines)
        told = node.check()
        assert (told.code, told.out[-1]) == (code, said)


def test_the_scope_says_whose_cores_are_right(node: SlurmNode, tmp_path: Path) -> None:
    halves = made({0: "0-1", 1: "2-3", 2: "4-7"}, gpus=[1], packages={0: "0-3", 1: "4-7"})
    halves = replace(halves, gpus=(replace(halves.gpus[0], minor=0),))
    node = replace(node, root=write_tree(halves, tmp_path / "halves"))
    node.slurm.has("Name=gpu File=/dev/nvidia0")
    for scope, right in (("node", "2-3"), ("socket", "0-3")):
        assert node.printed("--scope", scope) == [f"Name=gpu File=/dev/nvidia0 Cores={right}"]
        assert node.check("--scope", scope).out[0].endswith(f"add Cores={right}")


def test_another_gres_conf_may_be_asked_about_beside_the_same_slurm_conf(
    node: SlurmNode, tmp_path: Path
) -> None:
    node.slurm.has(RIGHT)
    (tmp_path / "new").write_text("")
    script = node.slurm.folder / "programs/slurmd"
    names = (
        f"for name in gres.conf slurm.conf; do readlink -f ${{5%/*}}/$name; done >{tmp_path}/read"
    )
    script.write_text(f"{script.read_text()}{names}\n")
    assert node.check("--gres-conf", str(tmp_path / "new")).code == 0
    assert (tmp_path / "read").read_text() == f"{tmp_path}/new\n{node.slurm.conf}\n"


def test_a_file_that_is_not_there_or_no_file_is_an_error(node: SlurmNode) -> None:
    for flag, file in (("--gres-conf", "/nowhere"), ("--slurm-conf", "/dev")):
        said = node.check(flag, file)
        assert said.code == 2
        assert f"{file} is not a file; name a {flag[2:].replace('-', '.')}" in said.err


def test_without_slurm_there_is_no_check(node: SlurmNode) -> None:
    assert main(["slurm", "check", "--root", str(node.root)]) == 2
    said = node.capsys.readouterr().err
    assert "there is no slurm.conf in /etc/slurm, /etc/slurm-llnl, /run/slurm/conf; name" in said


@pytest.mark.parametrize("command", ["check", "gres-conf"])
@pytest.mark.parametrize("name", ["", "a b", "a=b", "x\n"])
def test_what_names_no_node_is_bad_usage(node: SlurmNode, command: str, name: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        node.run(command, "--node-name", name)


def test_gpus_without_device_files_are_counted_and_a_node_without_gpus_is_told(
    node: SlurmNode, tmp_path: Path
) -> None:
    said = node.run("gres-conf", "--machine", "dgx-h100")
    assert all(line.startswith("#") for line in said.out)
    unknown = "the device files of 8 of 8 GPUs are not known"
    assert (said.code, said.err) == (1, f"affinityd slurm gres-conf: {unknown}\n")
    login = replace(node, root=write_tree(made({0: "0-3"}, gpus=[]), tmp_path / "login1"))
    assert login.run("gres-conf") == (1, [], "affinityd slurm gres-conf: this node has no GPU\n")


BY_SLUID = f"{V2}/slurmstepd.scope/sEKNKTV3WPV500"


@pytest.mark.parametrize(
    "files",
    [
        {f"{V1}/slurm_gpu07/uid_0/job_4711/cpuset.effective_cpus": "0-3"},
        {
            f"{V1}/slurm/uid_1000/job_4711/cpuset.cpus": "",
            f"{V1}/slurm/uid_1000/job_4711/step_0/cpuset.cpus": "0-1",
            f"{V1}/slurm/uid_1000/job_4711/step_batch/cpuset.cpus": "2-3",
        },
        {f"{V2}/gpu07_slurmstepd.scope/job_4711/cpuset.cpus.effective": "0-3"},
        {"sys/fs/cgroup/slurmstepd.scope/job_4711/cpuset.cpus.effective": "0-3"},
        {"sys/fs/cgroup/a/b/slurmstepd.scope/job_4711/cpuset.cpus.effective": "0-3"},
        {
            f"{BY_SLUID}/cpuset.cpus.effective": "0-3",
            f"{BY_SLUID}/step_0/user/task_0/cgroup.procs": "97\n98\n99",
            "proc/97/environ": f"SLURM_JOB_ID={'9' * 5000}\0",  # it lies, and so does the next
            "proc/98/environ": "SLURM_JOB_ID=²\0SLURM_JOB_ID=12345678901\0",
            "proc/99/environ": "HOME=/\0SLURM_JOB_ID=4711\0",
            f"{V2}/slurmstepd.scope/system/cpuset.cpus.effective": "0-7",
        },
    ],
    ids=["v1 named", "v1 steps", "v2 named", "v2 top", "v2 in a container", "v2 by SLUID"],
)
def test_a_job_far_from_its_gpu_is_found_under_either_version_of_cgroups(
    node: SlurmNode, files: dict[str, str]
) -> None:
    node.slurm.expects("gpu:2", "gpu07")
    node.slurm.has(RIGHT)
    node.write({**files, "run/affinityd/jobs/4711": "gpus=1"})
    far = "job 4711 has gpu 1 (package 1, node 1) and CPUs 0-3 (package 0, node 0), none of them"
    assert node.check()[:2] == (1, [f"{far} near it; {REMEDY}", "2 GPUs, 1 finding about jobs"])


def job(number: int, cpus: str, gpus: str | None) -> dict[str, str]:
    """Return the files of a job under cgroup v2, and its note."""
    note = {} if gpus is None else {f"run/affinityd/jobs/{number}": f"gpus={gpus}\nmore"}
    return {f"{V2}/slurmstepd.scope/job_{number}/cpuset.cpus.effective": cpus, **note}


def test_jobs_near_their_gpus_are_counted_and_those_without_a_note_passed_over(
    node: SlurmNode,
) -> None:
    node.slurm.expects("gpu:2", "gpu07")
    node.slurm.has(RIGHT)
    near = [("0-3", "0"), ("3-4", "0,1"), ("4", "")]
    unknown = [("0", gpus) for gpus in (None, "all", "²", "٣", "9" * 5000)]
    for number, (cpus, gpus) in enumerate([*near, *unknown], start=1):
        node.write(job(number, cpus, gpus))
    skipped = f"5 jobs skipped: {node.root / 'run/affinityd/jobs'} does not list the GPUs"
    fits = "gres.conf fits this node; 2 running jobs near the GPUs"
    assert node.check()[:2] == (0, [f"note: {skipped}", fits])


def test_the_findings_are_there_as_json(node: SlurmNode) -> None:
    node.slurm.expects("gpu:1", "gpu07")
    node.slurm.has(RIGHT.splitlines()[0].replace("0-3", "0-x"))
    node.write(job(1, "0", "1"))
    said = node.check("--format", "json")
    assert said.code == 2
    document = json.loads("".join(said.out))
    assert (document["node"], document["fits"]) == ("gpu07", False)
    assert document["faults"][0].startswith("Cores='0-x' is not a list")
    assert [it["gpu"] for it in document["findings"]] == [0, 1, None]
    assert document["jobs"]["judged"] == len(document["jobs"]["findings"]) == 1
    shipped = json.loads("".join(node.check("--machine", "dgx-a100", "--format", "json").out))
    assert shipped["jobs"] == {"judged": 0, "findings": []}
