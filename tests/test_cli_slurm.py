"""`affinityd slurm`, on replayed nodes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.slurm.allocations import REMEDY
from tests.machines.by_hand import made
from tests.machines.facts import machine
from tests.machines.sysfs_tree import put, write_tree

GRES_CONF = "etc/slurm/gres.conf"
RIGHT = "Name=gpu File=/dev/nvidia0 Cores=0-3\nName=gpu File=/dev/nvidia1 Cores=4-7"
V1 = "sys/fs/cgroup/cpuset"
V2 = "sys/fs/cgroup/system.slice"


@pytest.fixture(autouse=True)
def _no_settings_of_this_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write a node of two packages with a GPU each, named gpu07."""
    nodes = {0: "0-3", 1: "4-7"}
    topology = made(nodes, gpus=[0, 1], packages=nodes)
    topology = replace(topology, gpus=tuple(replace(it, minor=it.index) for it in topology.gpus))
    return write_tree(topology, tmp_path / "gpu07")


def checked(root: Path, *flags: str) -> int:
    """Return the exit code of a check."""
    return main(["slurm", "check", "--root", str(root), *flags])


def write(root: Path, files: Mapping[str, str]) -> None:
    """Write files of the node."""
    for path, text in files.items():
        put(root / path, text)


SLURM_CONF = "etc/slurm/slurm.conf"


def printed(root: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    """Return the lines of gres-conf that are no comments; there must be one for each GPU."""
    assert main(["slurm", "gres-conf", "--root", str(root), *flags]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]


def typed(kind: str, before: str = "") -> list[str]:
    """Return the right lines with a type."""
    right = RIGHT.replace("Name=gpu", f"{before}Name=gpu Type={kind}")
    return right.splitlines()


@pytest.mark.parametrize(
    ("files", "flags", "lines"),
    [
        ({SLURM_CONF: "NodeName=gpu07 Gres=gpu:a100:2"}, [], typed("a100")),
        (
            {
                SLURM_CONF: "Include gpu/nodes.conf",
                "etc/slurm/gpu/nodes.conf": (
                    "NodeName=DEFAULT Gres=gpu:h100:8\nNodeName=DEFAULT CPUs=8\n"
                    "NodeName=gpu[01-06],gpu08\nNodeName=DEFAULT \\\n  Gres=shard:4,gpu:a100:2\n"
                    "NodeName=gpu[07,09] CPUs=4\n"
                ),
            },
            [],
            typed("a100"),
        ),
        ({"run/slurm/conf/slurm.conf": "NodeName=gpu07 Gres=gpu:a100:2"}, [], typed("a100")),
        (
            {SLURM_CONF: "NodeName=n7 NodeHostname=gpu07 Gres=gpu:a100:2"},
            [],
            typed("a100"),
        ),
        ({SLURM_CONF: "NodeName=gpu07 Gres=gpu:2"}, [], RIGHT.splitlines()),
        (
            {
                SLURM_CONF: "NodeName=gpu07 Gres=gpu:2",
                GRES_CONF: "Name=gpu Type=x File=/dev/nvidia0",
            },
            [],
            RIGHT.splitlines(),
        ),
        ({GRES_CONF: "Name=gpu Type=x File=/dev/nvidia0"}, [], typed("x")),
        ({GRES_CONF: "Name=gpu Type=x File=/dev/nvidia0"}, ["--type", "a100"], typed("a100")),
        ({}, ["--type", "a100"], typed("a100")),
        ({}, [], RIGHT.splitlines()),
        (
            {SLURM_CONF: "NodeName=gpu[001-500] Gres=gpu:a100:2"},
            ["--node-name", "gpu[001-500]"],
            typed("a100", "NodeName=gpu[001-500] "),
        ),
        (
            {SLURM_CONF: "NodeName=gpu[01-99] Gres=gpu:a100:2"},
            ["--node-name", "gpu08"],
            typed("a100", "NodeName=gpu08 "),
        ),
    ],
    ids=[
        "slurm.conf",
        "with defaults, an included file and a line that goes on",
        "configless Slurm's slurm.conf",
        "a node with another name than its host",
        "slurm.conf has no type",
        "slurm.conf has no type, and the present gres.conf has one",
        "no slurm.conf, and the present gres.conf",
        "the flag rather than the present gres.conf",
        "the flag",
        "nothing tells a type",
        "equal nodes",
        "another node",
    ],
)
def test_the_type_is_what_slurmctld_was_configured_with(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, str],
    flags: list[str],
    lines: list[str],
) -> None:
    write(root, files)
    assert printed(root, capsys, *flags) == lines


@pytest.mark.parametrize(
    ("gres", "flags", "said"),
    [
        ("gpu:a100:2", ["--type", "h100"], "--type 'h100' is not in Gres=gpu:a100:2 ("),
        ("gpu:2", ["--type", "h100"], "--type 'h100' is not in Gres=gpu:2 ("),
        ("gpu:x:2", ["--type", "x,x,x"], "--type names 3 types, and there are 2 GPUs"),
        (
            "gpu:2 \nNodeName=gpu08 Gres=gpu:4",
            ["--node-name", "gpu[07-08]"],
            "gpu08 has Gres=gpu:4 (",
        ),
        ("gpu:a:b:2", [], "'gpu:a:b:2' in Gres= is not written like gpu:a100:2"),
        ("gpu:\x1b[31ma:8", [], r"'gpu:\x1b[31ma:8' in Gres= is not written like gpu:a100:2"),
    ],
)
def test_lines_that_would_drain_a_node_are_refused_in_one_line(
    root: Path, capsys: pytest.CaptureFixture[str], gres: str, flags: list[str], said: str
) -> None:
    write(root, {SLURM_CONF: f"NodeName=gpu07 Gres={gres}"})
    assert main(["slurm", "gres-conf", "--root", str(root), *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_gpus_whose_type_nothing_tells_are_comments_until_the_flag_names_them(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, {SLURM_CONF: "NodeName=gpu07 Gres=gpu:big:1,gpu:small:1"})
    assert main(["slurm", "gres-conf", "--root", str(root)]) == 1
    out, err = capsys.readouterr()
    assert out.count("File=/dev/nvidia") == out.count("Name=gpu Type=? File=/dev/nvidia") == 2
    assert all(line.startswith("#") for line in out.splitlines())
    assert "the types of 2 of 2 GPUs are not known: Gres=gpu:big:1,gpu:small:1 (" in err
    assert err.endswith("name one for each with --type, or in the present gres.conf\n")
    big, small = RIGHT.splitlines()
    lines = [big.replace("gpu ", "gpu Type=big ", 1), small.replace("gpu ", "gpu Type=small ", 1)]
    assert printed(root, capsys, "--type", "big,small") == lines
    write(root, {GRES_CONF: "\n".join(lines)})
    assert printed(root, capsys) == lines


def test_an_untyped_line_is_said_to_drain_the_node_and_the_printed_ones_fit(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = {SLURM_CONF: "NodeName=gpu[01-09] CPUs=8 Sockets=2 CoresPerSocket=4 Gres=gpu:a100:2"}
    write(root, {**conf, GRES_CONF: RIGHT})
    assert checked(root) == 1
    expected = f"Gres=gpu:a100:2 ({root / SLURM_CONF}:1)"
    fault = f"the line has no Type=, and {expected}: slurmctld drains the node (INVALID_REG)"
    assert capsys.readouterr().out.splitlines() == [
        f"{root / GRES_CONF}:1: {fault}; add Type=a100",
        f"{root / GRES_CONF}:2: {fault}; add Type=a100",
        "2 GPUs, 2 lines wrong",
    ]
    write(root, {GRES_CONF: "\n".join(printed(root, capsys))})
    assert checked(root) == 0
    assert capsys.readouterr().out == "gres.conf fits this node\n"


def test_of_equal_nodes_this_one_is_looked_for(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, {GRES_CONF: "NodeName=gpu07 Name=gpu Type=x File=/dev/nvidia[0-1]"})
    assert printed(root, capsys, "--node-name", "gpu[01-09]") == typed("x", "NodeName=gpu[01-09] ")


def test_a_node_that_slurm_conf_does_not_have_is_named_with_what_it_was_looked_for_by(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, {SLURM_CONF: "NodeName=tux[1-9] Gres=gpu:a100:2", GRES_CONF: RIGHT})
    assert checked(root) == 0
    note = capsys.readouterr().out.splitlines()[0]
    assert main(["slurm", "gres-conf", "--root", str(root)]) == 0
    said = capsys.readouterr().err
    assert "the Gres= of node gpu07 (the machine's name) is not known here (slurm.conf has" in said
    assert said.endswith("if it has a type, name it with --type\n")
    assert "of node gpu07 (the machine's name) is not known here (slurm.conf has no node" in note
    assert checked(root, "--node-name", "tux3") == 1
    assert "and Gres=gpu:a100:2 (" in capsys.readouterr().out


def test_a_named_slurm_conf_counts_and_brings_the_gres_conf_beside_it(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "new/slurm.conf", "NodeName=gpu07 Gres=gpu:b200:2")
    put(tmp_path / "new/gres.conf", RIGHT)
    write(root, {SLURM_CONF: "NodeName=gpu07 Gres=gpu:a100:2", GRES_CONF: "AutoDetect=nvml"})
    named = ("--slurm-conf", str(tmp_path / "new/slurm.conf"))
    assert printed(root, capsys, *named) == typed("b200")
    assert checked(root, *named) == 1
    assert f"{tmp_path}/new/gres.conf:1: the line has no Type=" in capsys.readouterr().out
    assert checked(root, "--slurm-conf", "/nowhere") == 2
    assert capsys.readouterr().err.endswith("/nowhere cannot be read: No such file or directory\n")


def test_what_a_dgx_a100_is_shown_to_print_is_what_it_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["slurm", "gres-conf", "--machine", "dgx-a100"]) == 0
    shown = Path(__file__).parents[1] / "slurm/gres.conf"
    assert capsys.readouterr().out == shown.read_text()


def job(number: int, cpus: str, gpus: str | None) -> dict[str, str]:
    """Return the files of a job under cgroup v2, and its note."""
    note = {} if gpus is None else {f"run/affinityd/jobs/{number}": f"gpus={gpus}\nmore"}
    return {f"{V2}/slurmstepd.scope/job_{number}/cpuset.cpus.effective": cpus, **note}


def test_what_gres_conf_prints_fits_its_node(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", "gres-conf", "--root", str(root)]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[1:] == RIGHT.splitlines()
    write(root, {GRES_CONF: printed})
    assert checked(root) == 0
    assert capsys.readouterr().out == "gres.conf fits this node\n"


def test_lines_for_a_named_node_are_those_of_the_node_of_that_name(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", "gres-conf", "--root", str(root), "--node-name", "tux3"]) == 0
    printed = capsys.readouterr().out
    assert "NodeName=tux3 Name=gpu File=/dev/nvidia0 Cores=0-3" in printed.splitlines()
    write(root, {GRES_CONF: printed})
    assert checked(root, "--node-name", "tux3") == 0
    assert checked(root) == 1
    assert "are for 'tux3', not for gpu07; --node-name names another" in capsys.readouterr().out


def test_every_wrong_line_is_named_and_summed_up(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, {GRES_CONF: "# GPUs\nName=gpu File=/dev/nvidia0 Cores=4-7"})
    assert checked(root) == 1
    assert capsys.readouterr().out.splitlines() == [
        (
            f"{root / GRES_CONF}:2: gpu 0: Cores=4-7 is package 1, the GPU is on package 0 "
            "(node 0); right is Cores=0-3"
        ),
        "gpu 1: no line has it; add Name=gpu File=/dev/nvidia1 Cores=4-7",
        "2 GPUs, 1 line wrong, 1 GPU without a line",
    ]


def test_the_scope_says_whose_cores_are_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dgx = machine("dgx-a100")
    dgx = replace(dgx, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in dgx.gpus))
    root = write_tree(dgx, tmp_path / "dgx")
    assert main(["slurm", "gres-conf", "--root", str(root), "--scope", "socket"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[1] == "Name=gpu File=/dev/nvidia0 Cores=0-63"
    write(root, {GRES_CONF: "Name=gpu File=/dev/nvidia[0-7]"})
    for scope, right in (("node", "48-63"), ("socket", "0-63")):
        assert checked(root, "--scope", scope) == 1
        assert capsys.readouterr().out.splitlines()[0].endswith(f"add Cores={right}")


def test_a_malformed_line_is_named_and_the_rest_is_judged(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, {GRES_CONF: f"Nam=gpu\n{RIGHT.replace('0-3', '4-7')}"})
    assert checked(root) == 2
    malformed, wrong, total = capsys.readouterr().out.splitlines()
    assert malformed.startswith(f"{root / GRES_CONF}:1: 'Nam' is no key")
    assert "gpu 0: Cores=4-7 is package 1" in wrong
    assert total == "2 GPUs, 1 line malformed, 1 line wrong"


def test_an_included_file_is_read_where_it_is_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, {GRES_CONF: "Include racks/a.conf", "etc/slurm/racks/a.conf": "Include gpus.conf"})
    write(root, {"etc/slurm/gpus.conf": RIGHT})
    assert checked(root) == 0
    write(root, {"etc/slurm/gpus.conf": RIGHT.replace("0-3", "1-3")})
    assert checked(root) == 1
    assert f"{root / 'etc/slurm/gpus.conf'}:1: gpu 0" in capsys.readouterr().out


@pytest.fixture
def _in_time() -> Iterator[None]:
    """End a test that hangs."""

    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 5)  # a second is enough, where nothing else runs
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("included", "fault"),
    [
        ("none.conf", "none.conf cannot be read: No such file or directory"),
        ("gres.conf", "gres.conf includes itself"),
        ("other.conf", "gres.conf includes itself"),
        ("deep/0", "deep/8 is included more than 8 files deep"),
        ("/dev/zero", "/dev/zero is no regular file"),
        ("fifo", "fifo is no regular file"),
        ("/proc/self", "/proc/self is no regular file"),
        ("nul", "nul has a NUL in it"),
        ("a" * 1000, "cannot be read: File name too long"),
    ],
    ids=lambda text: text[:9],
)
@pytest.mark.usefixtures("_in_time")
def test_an_include_of_what_cannot_be_read_is_malformed(
    root: Path, capsys: pytest.CaptureFixture[str], included: str, fault: str
) -> None:
    write(root, {GRES_CONF: f"{RIGHT}\nInclude {included}"})
    write(root, {f"etc/slurm/deep/{depth}": f"Include deep/{depth + 1}" for depth in range(9)})
    folder = root / "etc/slurm"
    write(root, {"etc/slurm/other.conf": f"Include {folder}/../slurm/gres.conf"})
    write(root, {"etc/slurm/nul": "#\0"})
    os.mkfifo(folder / "fifo")
    assert checked(root) == 2
    malformed, total = capsys.readouterr().out.splitlines()
    assert malformed.startswith(str(folder))
    assert ": Include: " in malformed
    assert malformed.endswith(fault)
    assert total == "2 GPUs, 1 line malformed"


GPU = "Name=gpu File=/dev/nvidia0"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("\n" * 2**19, "have more than 20000 lines"),
        ("x\n" * 2**18, "have more than 20000 lines"),
        ("#" * 2**20, "have more than 1048576 characters"),
        ("Include a\0b", "has a NUL in it"),
        (f"Include {'a' * 2000}", "is not written as Key=value"),
        ("Include empty\n" * 15000, "empty and the files before it have more than 20000 lines"),
        ("Include large\n" * 15000, "large and the files before it have more than 1048576 char"),
        (f"NodeName={'[0-65535,' * 200} {GPU}", "is no hostlist"),
        (f"NodeName=[{'0-65535,' * 200}0] {GPU}", "stand for more than 1048576 names and cores"),
        (f"NodeName=n{'[0-65535]' * 9} {GPU}", "stand for more than 1048576 names and cores"),
        (f"NodeName=n[0-65535] {GPU}\n" * 9999, "stand for more than 1048576 names and cores"),
        (f"NodeName=[{'0' * 4000}-65535] {GPU}", "is no range of a hostlist"),
        (f"NodeName=n[1-{'9' * 5000}] {GPU}", "is no range of a hostlist"),
        (f"NodeName={'n' * 50000}[0-65535] {GPU}", "is longer than 255 characters"),
        ("Name=gpu File=/dev/nvidia[0-1024]", "gpu07 has more than 1024 GPUs, the most in Slurm"),
        (f"{GPU}\n" * 19000, "gpu07 has more than 1024 GPUs, the most in Slurm"),
        ("Name=gpu\n" * 19000, "gpu07 has more than 1024 GPUs, the most in Slurm"),
        (f"{GPU} Cores={'0-3,' * 10000}", "is no list of core numbers"),
        (f"{GPU} Cores={'0-3,' * 20000}0", "is no list of core numbers"),
        (f"{GPU} Cores=0-65535,x\n" * 9999, "stand for more than 1048576 names and cores"),
        (f"{GPU}{',/dev/nvidia0' * 99} Cores=0-65535", "stand for more than 1048576 names"),
        (f"{GPU}{',/dev/nvidia0' * 999} Cores={'0,' * 9999}0", "stand for more than 1048576 names"),
        (f"{GPU} Cores=0-{'9' * 5000}", "is no list of core numbers"),
        (f"{GPU} Links={'9' * 5000}", "is no list of numbers of links"),
        (f"{GPU} Links={'0,' * 5000}0", "is no list of numbers of links"),
        (f"AutoDetect={'x' * 5000}", "is not one of nvml,"),
    ],
    ids=lambda text: text[:24],
)
@pytest.mark.usefixtures("_in_time")
def test_a_file_without_measure_is_refused_in_time_and_in_one_line(
    root: Path, capsys: pytest.CaptureFixture[str], text: str, fault: str
) -> None:
    write(root, {GRES_CONF: f"{RIGHT}\n{text}"})
    write(root, {"etc/slurm/empty": "", "etc/slurm/large": "#" * 2**19})
    assert checked(root) == 2
    said = capsys.readouterr()
    first, *total = (said.out or said.err).splitlines()
    assert fault in first
    assert len(first) < 500
    assert total == (["2 GPUs, 1 line malformed"] if said.out else [])


@pytest.mark.usefixtures("_in_time")
def test_every_include_of_the_file_itself_is_malformed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, {GRES_CONF: f"{RIGHT}\n" + "Include gres.conf\n" * 6})
    assert checked(root) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "2 GPUs, 6 lines malformed"


@pytest.mark.usefixtures("_in_time")
def test_as_many_lines_as_slurm_takes_are_judged_in_time(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, {GRES_CONF: f"{GPU} Cores=0-255 Links=0\n" * 1024})
    assert checked(root) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "2 GPUs, 1024 lines wrong, 1 GPU without a line"
    )


def test_where_slurm_detects_gpus_no_line_is_missed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, {GRES_CONF: "AutoDetect=nvml"})
    assert checked(root) == 0
    note, total = capsys.readouterr().out.splitlines()
    assert note == (
        "note: AutoDetect=nvml: Slurm finds GPUs, cores and links itself; no line is to be "
        "checked, but jobs are"
    )
    assert total == "gres.conf fits this node"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "gres.conf; name the file with --gres-conf"),
        (["--gres-conf", "/nowhere/gres.conf"], "/nowhere/gres.conf cannot be read: No such file"),
        (["--gres-conf", "/dev/zero"], "/dev/zero is no regular file"),
        (["--gres-conf", "/dev"], "/dev is no regular file"),
    ],
)
@pytest.mark.usefixtures("_in_time")
def test_a_file_that_is_not_there_or_no_file_is_an_error(
    root: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert checked(root, *flags) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "a b", "a=b", "gpu[1-2]", "x\n"])
def test_what_is_no_name_of_a_node_is_bad_usage(root: Path, name: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        checked(root, "--node-name", name)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("", "has 0 names"),
        ("gpu 1", "is no node's name"),
        ("gpu[1-", "is no hostlist"),
        ("gpu[3-1]", "is no range of a hostlist"),
        ("rack[1-2]gpu", "goes on after its range"),
        ("gpu[0-65536]", "has 65537 names, and Slurm takes 1 to 65536"),
        ("n[0-9999][0-999]", "stand for more than"),
    ],
)
def test_a_hostlist_that_slurm_does_not_read_is_bad_usage(
    root: Path, capsys: pytest.CaptureFixture[str], names: str, why: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["slurm", "gres-conf", "--root", str(root), "--node-name", names])
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def test_a_shipped_machine_has_no_present_gres_conf(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "slurm.conf", "NodeName=gpu07")
    put(tmp_path / "gres.conf", "Name=gpu Type=x File=/dev/nvidia0")
    flags = ["--machine", "dgx-a100", "--slurm-conf", str(tmp_path / "slurm.conf")]
    assert main(["slurm", "gres-conf", *flags]) == 0
    assert "Type=" not in capsys.readouterr().out


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_tree(made({0: "0-3"}, gpus=[]), tmp_path / "login1")
    write(root, {SLURM_CONF: "NodeName=login1\nNodeName=gpu07 Gres=gpu:a100:2"})
    assert main(["slurm", "gres-conf", "--root", str(root)]) == 1
    assert capsys.readouterr() == ("", "affinityd slurm gres-conf: this node has no GPU\n")
    assert main(["slurm", "gres-conf", "--root", str(root), "--node-name", "gpu07"]) == 1
    assert capsys.readouterr().out == ""
    write(root, {GRES_CONF: ""})
    assert checked(root) == 0


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
    root: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> None:
    write(root, {GRES_CONF: RIGHT, **files, "run/affinityd/jobs/4711": "gpus=1"})
    assert checked(root) == 1
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
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [job(1, "0-3", "0"), job(2, "3-4", "0,1"), job(3, "4", ""), job(4, "0", None)]
    jobs += (job(number, "0", gpus) for number, gpus in enumerate(NO_GPUS, start=5))
    for files in ({GRES_CONF: RIGHT}, *jobs):
        write(root, files)
    assert checked(root) == 0
    assert capsys.readouterr().out.splitlines() == [
        (
            f"note: {len(NO_GPUS) + 1} jobs passed over: {root / 'run/affinityd/jobs'} does not "
            "tell the GPUs"
        ),
        "gres.conf fits this node; 2 running jobs near the GPUs",
    ]


def test_a_shipped_machine_has_no_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gres.conf").write_text("AutoDetect=nvml\n")
    flags = ["--machine", "dgx-h100", "--gres-conf", str(tmp_path / "gres.conf")]
    assert main(["slurm", "check", *flags, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == {"judged": 0, "findings": []}


def test_the_findings_are_there_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, {GRES_CONF: f"x\n{RIGHT.splitlines()[0]}", **job(1, "0", "1")})
    assert checked(root, "--format", "json") == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["node"], document["fits"]) == ("gpu07", False)
    assert [it["place"] for it in document["malformed"]] == [f"{root / GRES_CONF}:1"]
    assert [it["place"] for it in document["findings"]] == [None]
    assert document["jobs"]["judged"] == len(document["jobs"]["findings"]) == 1
