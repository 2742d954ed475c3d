"""What `slurmd -G` prints, as recorded from each release, and slurm.conf beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.slurm.expected import expected, gres_of, has_host, node_lines
from affinityd.slurm.slurmd import FAILED, GresEntry, parse

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
        GresEntry("gpu", "a100", ("/dev/nvidia0",), FIRST, (-1, 4), is_slice=False),
        GresEntry("gpu", "a100", ("/dev/nvidia1",), LAST, (4, -1), is_slice=False),
    )
    assert (gres.faults, gres.warnings, gres.notes) == ((), (), ())
    assert gres.types == {"/dev/nvidia0": "a100", "/dev/nvidia1": "a100"}


def test_a_line_may_be_of_several_gpus_or_of_an_instance_and_its_files() -> None:
    text = """\
slurmd: Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 File=/dev/nvidia[0-1] Cores=0-3 \
CoreCnt=8 (null)
slurmd: Gres Name=gpu Type=a100_3g.20gb Count=1 Index=1 ID=7696487 \
File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22] Links=(null)
"""
    several = ("/dev/nvidia0", "/dev/nvidia1")
    caps = ("/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22")
    assert parse(text).entries == (
        GresEntry("gpu", None, several, FIRST, None, is_slice=False),
        GresEntry("gpu", "a100_3g.20gb", (several[0], *caps), None, None, is_slice=True),
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
NO_CORES = "Cores='0-x' is not a list of core numbers; write it like 0-3,8,10-11"


@pytest.mark.parametrize(
    ("text", "faults", "warnings", "notes"),
    [
        (f"slurmd: {KEY}\nslurmd: {LINE}\nslurmd: {FATAL}\n", (KEY, LINE, FATAL), (), ()),
        ("", (FAILED,), (), ()),
        (f"slurmd: {EXTRA}\n" * 2, (), (EXTRA,), ()),
        (OTHERS, (), (), (NO_NVML,)),
        (f"slurmd: {GPUS[0].replace('0-3', '0-x')}", (NO_CORES,), (), ()),
    ],
    ids=["no key", "no word", "an extra line", "what is not about GPUs", "no core numbers"],
)
def test_what_slurmd_says_besides_is_sorted(
    text: str, faults: tuple[str, ...], warnings: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    gres = parse(text, is_complete=FATAL not in text and bool(text))
    assert (gres.faults, gres.warnings, gres.notes) == (faults, warnings, notes)


@pytest.mark.parametrize(
    ("hosts", "has", "lacks"),
    [
        ("gpu1", "gpu1", "gpu11"),
        ("gpu[01-03,7],login", "gpu03 gpu7 login", "gpu3 gpu07 gpu04"),
        ("r[1-2]n[08-10]", "r2n10", "r2n7"),
        ("gpu[1-2]x", "gpu2x", "gpu2"),
        ("n[0-9][0-9][0-9][0-9]", "", "n1234"),
    ],
)
def test_a_hostlist_has_its_names(hosts: str, has: str, lacks: str) -> None:
    assert all(has_host(hosts, name) for name in has.split())
    assert not any(has_host(hosts, name) for name in lacks.split())


INCLUDED = """\
NodeName=DEFAULT Gres=gpu:h100:8
NodeName=DEFAULT CPUs=8
NodeName=gpu[01-06],gpu08
NodeName=DEFAULT \\
  Gres=shard:4,gpu:a100:2
NodeName="gpu[07,09]" CPUs=4
"""


@pytest.mark.parametrize(
    ("conf", "gres"),
    [
        ("nodename = gpu07 CPUs=4 gres = gpu:2 # Gres=gpu:4", "gpu:2"),
        ("NodeName=tux[1-9] Gres=gpu:2", None),
        ("PartitionName=a NodeName=gpu07 Gres=gpu:2\nNodeName=gpu07", ""),  # no line of nodes
        ("Include gpu/nodes.conf\nInclude gone\nInclude slurm.conf", "shard:4,gpu:a100:2"),
    ],
)
def test_the_gres_of_a_node_is_slurm_conf_s(tmp_path: Path, conf: str, gres: str | None) -> None:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu/nodes.conf").write_text(INCLUDED)
    (tmp_path / "slurm.conf").write_text(conf)
    assert gres_of("gpu07", node_lines(tmp_path / "slurm.conf")) == gres


def test_gres_is_read_in_its_order() -> None:
    for gres, counts in (
        ("gpu:a100:2,gpu:v100,gpu:a100:1", [("a100", 3), ("v100", 1)]),
        ("nic:2,gpu:1g.10gb:4(S:0-1)", [("1g.10gb", 4)]),
        ("gpu:no_consume:2", [(None, 2)]),
        ("gpu:0,(null)", []),
    ):
        assert list(expected("s", {"gres": gres}).counts.items()) == counts
