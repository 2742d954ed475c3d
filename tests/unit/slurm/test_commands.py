"""What Slurm's commands print, as recorded from each release, and slurm.conf beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.slurm.commands import FAILED, GresEntry, LocalSlurm, SlurmError, node_lines, parse
from tests.support.recorded_slurm import recorded_slurm

FIRST, LAST = frozenset(range(4)), frozenset(range(4, 8))
GPUS = (
    "Gres Name=gpu Type=a100 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Cores=0-3 CoreCnt=8 ",
    "Gres Name=gpu Type=a100 Count=1 Index=1 ID=7696487 File=/dev/nvidia1 Cores=4-7 CoreCnt=8 ",
)
LINKS = ("Links=-1,4", "Links=4,-1")
FLAGS = "Flags=HAS_FILE,HAS_TYPE,ENV_NVML,ENV_RSMI,ENV_ONEAPI,ENV_OPENCL,ENV_DEFAULT"

#: Of two GPUs with Links=, by 22.05 and by 26.05.
OLD = "".join(f"slurmd: {gpu}{links}\n" for gpu, links in zip(GPUS, LINKS, strict=True))
NEW = """\
[2026-11-22T14:20:04.519] warning: cgroup/v1 plugin is deprecated, please upgrade to cgroup/v2 at \
your earliest convenience
[2026-11-22T14:20:04.525] Node configuration differs from hardware: CPUs=8:2(hw) Boards=1:1(hw) \
SocketsPerBoard=2:1(hw) CoresPerSocket=4:2(hw) ThreadsPerCore=1:1(hw)
""" + OLD.replace("slurmd:", "[2026-11-22T14:20:04.526]").replace("\n", f" {FLAGS}\n")


@pytest.mark.parametrize("text", [OLD, NEW], ids=["22.05", "26.05"])
def test_the_gpus_of_each_release_are_read(text: str) -> None:
    gres = parse(text)
    assert gres.entries == (
        GresEntry("gpu", "a100", ("/dev/nvidia0",), FIRST, is_slice=False),
        GresEntry("gpu", "a100", ("/dev/nvidia1",), LAST, is_slice=False),
    )
    assert gres.messages == ()
    assert gres.types == {"/dev/nvidia0": "a100", "/dev/nvidia1": "a100"}


def test_a_line_may_have_several_gpus_or_a_mig_instance_with_several_files() -> None:
    text = """\
slurmd: Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 File=/dev/nvidia[0-1] Cores=0-3 \
CoreCnt=8 (null)
slurmd: Gres Name=gpu Type=a100_3g.20gb Count=1 Index=1 ID=7696487 \
File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22] Links=(null)
"""
    several = ("/dev/nvidia0", "/dev/nvidia1")
    caps = ("/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22")
    assert parse(text).entries == (
        GresEntry("gpu", None, several, FIRST, is_slice=False),
        GresEntry("gpu", "a100_3g.20gb", (several[0], *caps), None, is_slice=True),
    )


KEY = "error: Parsing error at unrecognized key: Coress"
LINE = 'error: Parse error in file /etc/slurm/gres.conf line 1: " Coress=0-3"'
FATAL = "fatal: error opening/reading /etc/slurm/gres.conf"
EXTRA = (
    "WARNING: A line in gres.conf for GRES gpu has 1 more configured than expected in slurm.conf. "
    "Ignoring extra GRES."
)
NO_NVML = (
    "We were configured to autodetect nvml functionality, but we weren't able to find that lib "
    "when Slurm was configured."
)
OTHERS = f"""\
(null): _log_init: Unable to open logfile `/var/log/slurmd.log': Permission denied
[2026-11-22T14:23:31.642] error: Cannot reset slurmd memory limits
{NO_NVML}
[2026-11-22T14:23:31.728] {GPUS[0].replace("gpu", "shard")}"""


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (f"slurmd: {KEY}\nslurmd: {LINE}\nslurmd: {FATAL}\n", (KEY, LINE, FATAL)),
        ("", (FAILED,)),
        (f"slurmd: {EXTRA}\n" * 2, (EXTRA,)),
        (OTHERS, ()),
    ],
    ids=["no key", "no word", "an extra line", "what is not about GPUs"],
)
def test_errors_about_gpus_are_kept_once(text: str, messages: tuple[str, ...]) -> None:
    assert parse(text, is_complete=FATAL not in text and bool(text)).messages == messages


INCLUDED = """\
NodeName=DEFAULT Gres=gpu:h100:8
NodeName=DEFAULT CPUs=8
NodeName=gpu[01-06],gpu08
NodeName=DEFAULT \\
  Gres=shard:4,gpu:a100:2
NodeName="gpu[07,09]" CPUs=4
"""


@pytest.mark.parametrize(
    ("conf", "lines"),
    [
        ("nodename = gpu07 CPUs=4 gres = gpu:2 # Gres=gpu:4", [("gpu07", "gpu:2")]),
        ("PartitionName=a NodeName=gpu07 Gres=gpu:2\nNodeName=gpu07", [("gpu07", "")]),
        (
            "Include gpu/nodes.conf\nInclude gone\nInclude slurm.conf",
            [("gpu[01-06],gpu08", "gpu:h100:8"), ("gpu[07,09]", "shard:4,gpu:a100:2")],
        ),
    ],
)
def test_the_nodes_of_slurm_conf_are_read(
    tmp_path: Path, conf: str, lines: list[tuple[str, str]]
) -> None:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu/nodes.conf").write_text(INCLUDED)
    (tmp_path / "slurm.conf").write_text(conf)
    assert node_lines(tmp_path / "slurm.conf")[: len(lines)] == lines


SHOWN = (
    "NodeName=gpu07 Arch=x86_64 CoresPerSocket=16 CPUAlloc=0 Gres=gpu:A100:2(S:0-1) Sockets=2 "
    "State=UNKNOWN+DRAIN+INVALID_REG ThreadsPerCore=2 TmpDisk=0 "
    "Reason=gres/gpu:a100 count too low (0 < 2) [root@2026-11-23T23:12:39] Comment=x"
)


def test_a_node_is_read_as_slurmctld_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = recorded_slurm(tmp_path, monkeypatch)
    slurm.shows(SHOWN)
    (node,) = LocalSlurm(slurm.conf).nodes("gpu07")
    assert (node.name, node.cores, node.threads, node.gres.counts) == ("gpu07", 32, 2, {"A100": 2})
    assert node.is_refused
    assert str(node).endswith("+INVALID_REG Reason=gres/gpu:a100 count too low (0 < 2)")


def test_a_command_that_fails_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = recorded_slurm(tmp_path, monkeypatch)
    local = LocalSlurm(slurm.conf)
    with pytest.raises(SlurmError, match=r"^scontrol show node gpu07: Node not found; "):
        local.nodes("gpu07")
    (tmp_path / "programs/scontrol").write_text("no program")
    with pytest.raises(SlurmError, match="scontrol: cannot be run"):
        local.nodes("gpu07")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setattr("affinityd.slurm.commands.SBIN", ())
    with pytest.raises(SlurmError, match="there is no slurmd on this machine"):
        local.slurmd_gres("gpu07")
