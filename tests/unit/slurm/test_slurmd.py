"""What `slurmd -G` prints, as recorded from each release, and slurm.conf beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.slurm.expected import expected, gres_of, has_host, node_lines
from affinityd.slurm.slurmd import FAILED, GresEntry, parse

GPUS = [
    (
        "Gres Name=gpu Type=a100 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Cores=0-3 CoreCnt=8 "
        "Links=-1,4"
    ),
    (
        "Gres Name=gpu Type=a100 Count=1 Index=1 ID=7696487 File=/dev/nvidia1 Cores=4-7 CoreCnt=8 "
        "Links=4,-1"
    ),
]
FLAGS = "Flags=HAS_FILE,HAS_TYPE,ENV_NVML,ENV_RSMI,ENV_ONEAPI,ENV_OPENCL,ENV_DEFAULT"

#: Of two GPUs with Links=, by 22.05 and by 26.05.
OLD = "".join(f"slurmd: {line}\n" for line in GPUS)
NEW = (
    "[2026-11-22T14:20:04.519] warning: cgroup/v1 plugin is deprecated, please upgrade to "
    "cgroup/v2 at your earliest convenience\n"
    "[2026-11-22T14:20:04.525] Node configuration differs from hardware: CPUs=8:2(hw) "
    "Boards=1:1(hw) SocketsPerBoard=2:1(hw) CoresPerSocket=4:2(hw) ThreadsPerCore=1:1(hw)\n"
) + "".join(f"[2026-11-22T14:20:04.526] {line} {FLAGS}\n" for line in GPUS)


@pytest.mark.parametrize("text", [OLD, NEW], ids=["22.05", "26.05"])
def test_the_gpus_of_each_release_are_read(text: str) -> None:
    gres = parse(text)
    cores = (frozenset(range(4)), frozenset(range(4, 8)))
    assert gres.entries == (
        GresEntry("gpu", "a100", ("/dev/nvidia0",), cores[0], (-1, 4), is_slice=False),
        GresEntry("gpu", "a100", ("/dev/nvidia1",), cores[1], (4, -1), is_slice=False),
    )
    assert (gres.faults, gres.warnings, gres.notes) == ((), (), ())
    assert gres.types == {"/dev/nvidia0": "a100", "/dev/nvidia1": "a100"}


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (
            (
                "slurmd: Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 "
                "File=/dev/nvidia[0-1] Cores=0-3 CoreCnt=8 (null)"
            ),
            GresEntry(
                "gpu",
                None,
                ("/dev/nvidia0", "/dev/nvidia1"),
                frozenset(range(4)),
                None,
                is_slice=False,
            ),
        ),
        (
            (
                "slurmd: Gres Name=gpu Type=a100_3g.20gb Count=1 Index=1 ID=7696487 "
                "File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22] Links=(null)"
            ),
            GresEntry(
                "gpu",
                "a100_3g.20gb",
                (
                    "/dev/nvidia0",
                    "/dev/nvidia-caps/nvidia-cap21",
                    "/dev/nvidia-caps/nvidia-cap22",
                ),
                None,
                None,
                is_slice=True,
            ),
        ),
    ],
    ids=["several files", "a MIG instance"],
)
def test_a_line_may_be_of_several_files(line: str, entry: GresEntry) -> None:
    assert parse(line).entries == (entry,)


SHARD = "Gres Name=shard Type=a100 Count=4 Index=0 ID=1918986455 File=/dev/nvidia0 Cores=0-3"


@pytest.mark.parametrize(
    ("text", "is_complete", "faults", "warnings", "notes"),
    [
        (
            (
                "slurmd: error: Parsing error at unrecognized key: Coress\n"
                'slurmd: error: Parse error in file /etc/slurm/gres.conf line 1: " Coress=0-3"\n'
                "slurmd: fatal: error opening/reading /etc/slurm/gres.conf\n"
            ),
            False,
            (
                "error: Parsing error at unrecognized key: Coress",
                'error: Parse error in file /etc/slurm/gres.conf line 1: " Coress=0-3"',
                "fatal: error opening/reading /etc/slurm/gres.conf",
            ),
            (),
            (),
        ),
        ("", False, (FAILED,), (), ()),
        (
            "slurmd: WARNING: A line in gres.conf for GRES gpu has 1 more configured than expected "
            "in slurm.conf. Ignoring extra GRES.\n" * 2,
            True,
            (),
            (
                (
                    "WARNING: A line in gres.conf for GRES gpu has 1 more configured than expected "
                    "in slurm.conf. Ignoring extra GRES."
                ),
            ),
            (),
        ),
        (
            (
                "(null): _log_init: Unable to open logfile `/var/log/slurmd.log': Permission "
                "denied\n"
                "[2026-11-22T14:23:31.642] error: Cannot reset slurmd memory limits\n"
                "We were configured to autodetect nvml functionality, but we weren't able to "
                f"find that lib when Slurm was configured.\n[2026-11-22T14:23:31.728] {SHARD}"
            ),
            True,
            (),
            (),
            (
                (
                    "We were configured to autodetect nvml functionality, but we weren't able to "
                    "find that lib when Slurm was configured."
                ),
            ),
        ),
        (
            "slurmd: Gres Name=gpu Type=a100 Count=1 File=/dev/nvidia0 Cores=0-x CoreCnt=8 (null)",
            True,
            ("Cores='0-x' is no list of core numbers; write it like 0-3,8,10-11",),
            (),
            (),
        ),
    ],
    ids=["no key", "no word", "an extra line", "what is not about GPUs", "no core numbers"],
)
def test_what_slurmd_says_besides_is_sorted(
    text: str,
    is_complete: bool,
    faults: tuple[str, ...],
    warnings: tuple[str, ...],
    notes: tuple[str, ...],
) -> None:
    gres = parse(text, is_complete=is_complete)
    assert (gres.faults, gres.warnings, gres.notes) == (faults, warnings, notes)


@pytest.mark.parametrize(
    ("hosts", "has", "lacks"),
    [
        ("gpu1", "gpu1", "gpu11"),
        ("gpu[01-03,7],login", "gpu03", "gpu3"),
        ("gpu[01-03,7],login", "gpu7", "gpu07"),
        ("gpu[01-03,7],login", "login", "gpu04"),
        ("r[1-2]n[08-10]", "r2n10", "r2n7"),
        ("gpu[9-11]", "gpu11", "gpu011"),
        ("gpu[1-2]x", "gpu2x", "gpu2"),
        ("n[0-9][0-9][0-9][0-9]", "", "n1234"),
    ],
)
def test_a_hostlist_has_its_names(hosts: str, has: str, lacks: str) -> None:
    assert has_host(hosts, has) == bool(has)
    assert not has_host(hosts, lacks)


@pytest.mark.parametrize(
    ("files", "gres"),
    [
        ({"slurm.conf": "NodeName=gpu07 Gres=gpu:a100:2"}, "gpu:a100:2"),
        ({"slurm.conf": "nodename = gpu07 CPUs=4 gres = gpu:2 # Gres=gpu:4"}, "gpu:2"),
        ({"slurm.conf": "NodeName=gpu07"}, ""),
        ({"slurm.conf": "NodeName=tux[1-9] Gres=gpu:2"}, None),
        ({"slurm.conf": "PartitionName=a NodeName=gpu07 Gres=gpu:2\nNodeName=gpu07"}, ""),
        (
            {
                "slurm.conf": "Include gpu/nodes.conf\nInclude gone\nInclude slurm.conf",
                "gpu/nodes.conf": (
                    "NodeName=DEFAULT Gres=gpu:h100:8\nNodeName=DEFAULT CPUs=8\n"
                    "NodeName=gpu[01-06],gpu08\nNodeName=DEFAULT \\\n  Gres=shard:4,gpu:a100:2\n"
                    'NodeName="gpu[07,09]" CPUs=4\n'
                ),
            },
            "shard:4,gpu:a100:2",
        ),
    ],
    ids=[
        "a line",
        "blanks and a comment",
        "no Gres=",
        "other nodes",
        "no line of nodes",
        "defaults, an included file and a line that goes on",
    ],
)
def test_the_gres_of_a_node_is_slurm_confs(
    tmp_path: Path, files: Mapping[str, str], gres: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert gres_of("gpu07", node_lines(tmp_path / "slurm.conf")) == gres


@pytest.mark.parametrize(
    ("gres", "counts"),
    [
        ("gpu:2", {None: 2}),
        ("gpu", {None: 1}),
        ("gpu:a100", {"a100": 1}),
        ("gpu:a100:2,gpu:v100:1,gpu:a100:1", {"a100": 3, "v100": 1}),
        ("nic:2,gpu:1g.10gb:4(S:0-1)", {"1g.10gb": 4}),
        ("gpu:no_consume:2", {None: 2}),
        ("gpu:0,(null)", {}),
        ("", {}),
    ],
)
def test_gres_is_read_in_its_order(gres: str, counts: Mapping[str | None, int]) -> None:
    found = expected("s", {"gres": gres}).counts
    assert list(found.items()) == list(counts.items())
