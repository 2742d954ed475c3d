"""`affinityd slurm`, on replayed nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.slurm.gres_counts import DRAINED
from affinityd.slurm.jobs import REMEDY
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import put, write_tree
from tests.support.paths import REPOSITORY
from tests.support.recorded_slurm import RecordedSlurm, recorded_slurm

RIGHT = "Name=gpu File=/dev/nvidia0 Cores=0-3\nName=gpu File=/dev/nvidia1 Cores=4-7"
V1 = "sys/fs/cgroup/cpuset"
V2 = "sys/fs/cgroup/system.slice"


@pytest.fixture(autouse=True)
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RecordedSlurm:
    """Have no settings of this node count, nor its Slurm."""
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))
    return recorded_slurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write a node of two packages with a GPU each, named gpu07."""
    nodes = {0: "0-3", 1: "4-7"}
    topology = made(nodes, gpus=[0, 1], packages=nodes)
    topology = replace(topology, gpus=tuple(replace(it, minor=it.index) for it in topology.gpus))
    return write_tree(topology, tmp_path / "gpu07")


def of(root: Path, slurm: RecordedSlurm) -> list[str]:
    """Return the flags that name a node and its Slurm."""
    return ["--root", str(root), "--slurm-conf", str(slurm.conf)]


def checked(root: Path, slurm: RecordedSlurm, *flags: str) -> int:
    """Return the exit code of a check."""
    return main(["slurm", "check", *of(root, slurm), *flags])


def write(root: Path, files: Mapping[str, str]) -> None:
    """Write files of the node."""
    for path, text in files.items():
        put(root / path, text)


def printed(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str], *flags: str
) -> list[str]:
    """Return the lines of gres-conf that are no comments; there must be one for each GPU."""
    assert main(["slurm", "gres-conf", *of(root, slurm), *flags]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]


def typed(kind: str, before: str = "") -> list[str]:
    """Return the right lines with a type."""
    return RIGHT.replace("Name=gpu", f"{before}Name=gpu Type={kind}").splitlines()


def test_the_type_is_what_slurmctld_was_configured_with(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.expects("gpu:a100:2", "gpu07")
    assert printed(root, slurm, capsys) == typed("a100")
    slurm.expects("gpu:2", "gpu07")
    assert printed(root, slurm, capsys) == RIGHT.splitlines()
    assert not (slurm.folder / "asked").exists()  # slurmd, which may wait for device files


@pytest.mark.parametrize(
    ("state", "lines"), [("IDLE", typed("x")), ("IDLE+DRAIN+INVALID_REG", RIGHT.splitlines())]
)
def test_what_slurm_conf_does_not_have_slurmctld_tells_of_a_node_that_is_valid(
    root: Path,
    slurm: RecordedSlurm,
    capsys: pytest.CaptureFixture[str],
    state: str,
    lines: list[str],
) -> None:
    slurm.shows(f"NodeName=gpu07 Gres=gpu:x:2(S:0-1) State={state}")
    assert printed(root, slurm, capsys) == lines


def test_a_node_may_have_another_name_than_its_host(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.is_called("n7")
    slurm.expects("gpu:a100:2", "n7")
    slurm.has("\n".join(typed("a100")))
    assert printed(root, slurm, capsys) == typed("a100")
    assert checked(root, slurm) == 0
    assert (slurm.folder / "asked").read_text() == f"-G -N n7 -f {slurm.conf}\n"


def test_without_slurmctld_the_types_are_the_flags_else_those_that_slurmd_has(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(root, slurm, capsys) == RIGHT.splitlines()
    slurm.has("Name=gpu Type=x File=/dev/nvidia0")
    assert printed(root, slurm, capsys) == typed("x")
    assert printed(root, slurm, capsys, "--type", "a100") == typed("a100")


def test_nodes_that_are_named_are_equal(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "gpu[07-08]"
    slurm.expects("gpu:a100:2", "gpu07", "gpu08")
    lines = printed(root, slurm, capsys, "--node-name", names)
    assert lines == typed("a100", f"NodeName={names} ")
    slurm.conf.write_text("NodeName=gpu07 Gres=gpu:2\nNodeName=gpu08 Gres=gpu:4")
    assert main(["slurm", "gres-conf", *of(root, slurm), "--node-name", names]) == 2
    assert f"gpu08 has Gres=gpu:4 ({slurm.conf})" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case",
    [
        ("gpu:a100:2", ["--type", "h100"], "--type 'h100' is not in Gres=gpu:a100:2 ("),
        ("gpu:2", ["--type", "h100"], "--type 'h100' is not in Gres=gpu:2 ("),
        ("gpu:x:2", ["--type", "x,x,x"], "--type names 3 types, and there are 2 GPUs"),
    ],
)
def test_lines_that_would_drain_a_node_are_refused_in_one_line(
    root: Path,
    slurm: RecordedSlurm,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, list[str], str],
) -> None:
    gres, flags, said = case
    slurm.expects(gres, "gpu07")
    assert main(["slurm", "gres-conf", *of(root, slurm), *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_gpus_whose_type_nothing_tells_are_comments_until_the_flag_names_them(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.expects("gpu:big:1,gpu:small:1", "gpu07")
    assert main(["slurm", "gres-conf", *of(root, slurm)]) == 1
    out, err = capsys.readouterr()
    assert out.count("File=/dev/nvidia") == out.count("Name=gpu Type=? File=/dev/nvidia") == 2
    assert all(line.startswith("#") for line in out.splitlines())
    assert "the types of 2 of 2 GPUs are not known: Gres=gpu:big:1,gpu:small:1 (" in err
    assert err.endswith("name one for each with --type\n")
    big, small = RIGHT.splitlines()
    lines = [big.replace("gpu ", "gpu Type=big ", 1), small.replace("gpu ", "gpu Type=small ", 1)]
    assert printed(root, slurm, capsys, "--type", "big,small") == lines
    slurm.has("\n".join(lines))
    assert printed(root, slurm, capsys) == lines


def test_lines_without_a_type_drain_the_node_and_the_printed_ones_fit(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    """slurmd leaves out what does not fit Gres=."""
    slurm.expects("gpu:a100:2", "gpu07")
    slurm.has("")
    assert checked(root, slurm) == 1
    assert capsys.readouterr().out.splitlines() == [
        (
            "gpu 0: Slurm has no /dev/nvidia0; its line is "
            "Name=gpu Type=a100 File=/dev/nvidia0 Cores=0-3"
        ),
        (
            "gpu 1: Slurm has no /dev/nvidia1; its line is "
            "Name=gpu Type=a100 File=/dev/nvidia1 Cores=4-7"
        ),
        (
            f"Gres=gpu:a100:2 has 2 GPUs of type a100, and slurmd 0: {DRAINED}; write lines for "
            "all, or leave gpu out of Gres="
        ),
        "2 GPUs, 3 findings",
    ]
    slurm.has("\n".join(printed(root, slurm, capsys)))
    assert checked(root, slurm) == 0
    assert capsys.readouterr().out == "gres.conf fits this node\n"


def test_a_node_that_slurm_does_not_have_is_named(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.has(RIGHT)
    assert checked(root, slurm) == 0
    note = capsys.readouterr().out.splitlines()[0]
    assert main(["slurm", "gres-conf", *of(root, slurm)]) == 0
    said = capsys.readouterr().err
    unknown = "of node gpu07 is not known here (scontrol show node gpu07: Node not found)"
    assert unknown in said
    assert said.endswith("if it has a type, name it with --type\n")
    assert unknown in note


def test_what_a_dgx_a100_is_shown_to_print_is_what_it_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["slurm", "gres-conf", "--machine", "dgx-a100"]) == 0
    shown = REPOSITORY / "slurm/gres.conf"
    assert capsys.readouterr().out == shown.read_text()


def job(number: int, cpus: str, gpus: str | None) -> dict[str, str]:
    """Return the files of a job under cgroup v2, and its note."""
    note = {} if gpus is None else {f"run/affinityd/jobs/{number}": f"gpus={gpus}\nmore"}
    return {f"{V2}/slurmstepd.scope/job_{number}/cpuset.cpus.effective": cpus, **note}


def test_every_gpu_that_is_wrong_is_named_and_summed_up(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.expects("gpu:2", "gpu07")
    slurm.has(RIGHT.replace("0-3", "4-7"))
    assert checked(root, slurm) == 1
    assert capsys.readouterr().out.splitlines() == [
        ("gpu 0: Cores=4-7 is package 1, the GPU is on package 0 (node 0); right is Cores=0-3"),
        "2 GPUs, 1 finding",
    ]


def test_the_scope_says_whose_cores_are_right(
    tmp_path: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    dgx = machine("dgx-a100")
    dgx = replace(dgx, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in dgx.gpus))
    root = write_tree(dgx, tmp_path / "dgx")
    assert main(["slurm", "gres-conf", "--root", str(root), "--scope", "socket"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[1] == "Name=gpu File=/dev/nvidia0 Cores=0-63"
    slurm.has("Name=gpu Count=8 File=/dev/nvidia[0-7]")
    for scope, right in (("node", "48-63"), ("socket", "0-63")):
        assert checked(root, slurm, "--scope", scope) == 1
        assert capsys.readouterr().out.splitlines()[0].endswith(f"add Cores={right}")


def test_where_slurmd_ends_its_words_are_the_findings(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.expects("gpu:2", "gpu07")
    slurm.has('error: Parse error in file gres.conf line 1: " Nam=gpu"\nfatal: error reading')
    assert checked(root, slurm) == 2
    assert capsys.readouterr().out.splitlines() == [
        'slurmd: error: Parse error in file gres.conf line 1: " Nam=gpu"',
        "slurmd: fatal: error reading",
        "2 GPUs, 2 errors of slurmd",
    ]


def test_another_gres_conf_may_be_asked_about_beside_the_same_slurm_conf(
    root: Path, slurm: RecordedSlurm, tmp_path: Path
) -> None:
    slurm.has(RIGHT)
    (tmp_path / "new").write_text("")
    script = slurm.folder / "programs/slurmd"
    names = (
        f"for name in gres.conf slurm.conf; do readlink -f ${{5%/*}}/$name; done >{tmp_path}/read"
    )
    script.write_text(f"{script.read_text()}{names}\n")
    assert checked(root, slurm, "--gres-conf", str(tmp_path / "new")) == 0
    assert (tmp_path / "read").read_text() == f"{tmp_path}/new\n{slurm.conf}\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gres-conf", "/nowhere/gres.conf"], "/nowhere/gres.conf is no file; name a gres.conf"),
        (["--gres-conf", "/dev"], "/dev is no file"),
        (["--slurm-conf", "/nowhere"], "/nowhere is no file; name a slurm.conf"),
    ],
)
def test_a_file_that_is_not_there_or_no_file_is_an_error(
    root: Path,
    slurm: RecordedSlurm,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    said: str,
) -> None:
    assert checked(root, slurm, *flags) == 2
    assert said in capsys.readouterr().err


def test_without_slurm_there_is_no_check(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "check", "--root", str(root)]) == 2
    said = capsys.readouterr().err
    assert "there is no slurm.conf in /etc/slurm, /etc/slurm-llnl, /run/slurm/conf; name" in said


@pytest.mark.parametrize("name", ["", "a b", "a=b", "gpu[1-2]", "x\n"])
def test_what_is_no_name_of_a_node_is_bad_usage(
    root: Path, slurm: RecordedSlurm, name: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        checked(root, slurm, "--node-name", name)


@pytest.mark.parametrize("names", ["", "gpu 1", "a=b"])
def test_what_names_no_nodes_is_bad_usage(
    root: Path, capsys: pytest.CaptureFixture[str], names: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["slurm", "gres-conf", "--root", str(root), "--node-name", names])
    (line,) = capsys.readouterr().err.splitlines()
    assert "names no nodes; write it like gpu[01-04]" in line


def test_a_login_node_prints_the_lines_of_equal_nodes_of_a_shipped_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--machine", "dgx-a100", "--type", "a100", "--node-name", "gpu[001-500]"]
    assert main(["slurm", "gres-conf", *flags]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert len(lines) == 8
    assert lines[0] == "NodeName=gpu[001-500] Name=gpu Type=a100 File=/dev/nvidia0 Cores=48-63"


def test_gpus_whose_device_files_are_unknown_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["slurm", "gres-conf", "--machine", "dgx-h100"]) == 1
    said = capsys.readouterr()
    assert all(line.startswith("#") for line in said.out.splitlines())
    assert said.err == (
        "affinityd slurm gres-conf: the device files of 8 of 8 GPUs are not known\n"
    )


def test_a_node_without_gpus_has_no_lines(
    tmp_path: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_tree(made({0: "0-3"}, gpus=[]), tmp_path / "login1")
    slurm.expects("gpu:a100:2", "gpu07")
    assert main(["slurm", "gres-conf", *of(root, slurm)]) == 1
    assert capsys.readouterr() == ("", "affinityd slurm gres-conf: this node has no GPU\n")
    slurm.expects("", "login1")
    slurm.has("")
    assert checked(root, slurm) == 0


@pytest.mark.parametrize(
    "files",
    [
        {f"{V1}/slurm/uid_1000/job_4711/cpuset.cpus": "0-3"},
        {f"{V1}/slurm_gpu07/uid_0/job_4711/cpuset.effective_cpus": "0-3"},
        {
            f"{V1}/slurm/uid_1000/job_4711/cpuset.cpus": "",
            f"{V1}/slurm/uid_1000/job_4711/step_0/cpuset.cpus": "0-1",
            f"{V1}/slurm/uid_1000/job_4711/step_batch/cpuset.cpus": "2-3",
        },
        {f"{V2}/slurmstepd.scope/job_4711/cpuset.cpus.effective": "0-3"},
        {f"{V2}/gpu07_slurmstepd.scope/job_4711/cpuset.cpus.effective": "0-3"},
        {"sys/fs/cgroup/slurmstepd.scope/job_4711/cpuset.cpus.effective": "0-3"},
        {"sys/fs/cgroup/a/b/slurmstepd.scope/job_4711/cpuset.cpus.effective": "0-3"},
        {
            f"{V2}/slurmstepd.scope/sEKNKTV3WPV500/cpuset.cpus.effective": "0-3",
            f"{V2}/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0/cgroup.procs": "99",
            "proc/99/environ": "HOME=/\0SLURM_JOB_ID=4711\0",
            f"{V2}/slurmstepd.scope/system/cpuset.cpus.effective": "0-7",
        },
        {
            f"{V2}/slurmstepd.scope/sEKNKTV3WPV500/cpuset.cpus.effective": "0-3",
            f"{V2}/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0/cgroup.procs": "97\n98\n99",
            "proc/97/environ": f"SLURM_JOB_ID={'9' * 5000}\0",
            "proc/98/environ": "SLURM_JOB_ID=²\0SLURM_JOB_ID=12345678901\0",
            "proc/99/environ": "SLURM_JOB_ID=4711\0",
        },
    ],
    ids=[
        "v1",
        "v1 of a named node",
        "v1 steps",
        "v2",
        "v2 of a named node",
        "v2 at the top",
        "v2 in a container",
        "v2 by SLUID",
        "processes that lie about it",
    ],
)
def test_a_job_far_from_its_gpu_is_found_under_either_version_of_cgroups(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> None:
    slurm.expects("gpu:2", "gpu07")
    slurm.has(RIGHT)
    write(root, {**files, "run/affinityd/jobs/4711": "gpus=1"})
    assert checked(root, slurm) == 1
    assert capsys.readouterr().out.splitlines() == [
        (
            "job 4711 has gpu 1 (package 1, node 1) and CPUs 0-3 (package 0, node 0), none of them "
            f"near it; {REMEDY}"
        ),
        "2 GPUs, 1 finding about jobs",
    ]


#: What a job's note may have instead of numbers.
NO_GPUS = ("all", "²", "٣", "9" * 5000)


def test_jobs_near_their_gpus_are_counted_and_those_without_a_note_passed_over(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.expects("gpu:2", "gpu07")
    slurm.has(RIGHT)
    jobs = [job(1, "0-3", "0"), job(2, "3-4", "0,1"), job(3, "4", ""), job(4, "0", None)]
    jobs += (job(number, "0", gpus) for number, gpus in enumerate(NO_GPUS, start=5))
    for files in jobs:
        write(root, files)
    assert checked(root, slurm) == 0
    assert capsys.readouterr().out.splitlines() == [
        (
            f"note: {len(NO_GPUS) + 1} jobs passed over: {root / 'run/affinityd/jobs'} does not "
            "tell the GPUs"
        ),
        "gres.conf fits this node; 2 running jobs near the GPUs",
    ]


def test_a_shipped_machine_has_no_jobs(
    slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.has("")
    flags = ["--machine", "dgx-a100", "--slurm-conf", str(slurm.conf)]
    assert main(["slurm", "check", *flags, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["jobs"] == {"judged": 0, "findings": []}


def test_the_findings_are_there_as_json(
    root: Path, slurm: RecordedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.expects("gpu:1", "gpu07")
    slurm.has(RIGHT.splitlines()[0].replace("0-3", "0-x"))
    write(root, job(1, "0", "1"))
    assert checked(root, slurm, "--format", "json") == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["node"], document["fits"]) == ("gpu07", False)
    assert document["faults"][0].startswith("Cores='0-x' is no list")
    assert [it["gpu"] for it in document["findings"]] == [0, 1, None]
    assert document["jobs"]["judged"] == len(document["jobs"]["findings"]) == 1
