"""The output of Slurm's commands, and GPUs that differ from the printed lines."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.slurm.commands import (
    GresEntry,
    LocalSlurm,
    SlurmdGres,
    SlurmError,
    differences,
    parse,
)
from affinityd.slurm.gres_conf import GresConf, TypeCounts, read_gres
from affinityd.topology.model import Topology
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.strategies import machines
from tests.support.paths import DATA
from tests.support.recorded_slurm import recorded_slurm

#: Two packages of two NUMA nodes each, 16 cores, 32 CPUs: core c has the CPUs c and c + 16.
NODES = {0: "0-3,16-19", 1: "4-7,20-23", 2: "8-11,24-27", 3: "12-15,28-31"}
PACKAGES = {0: "0-7,16-23", 1: "8-15,24-31"}


def node(*gpu_nodes: int | None) -> Topology:
    """Return this machine with a GPU on each of these nodes; the first is /dev/nvidia0."""
    topology = made(NODES, gpus=gpu_nodes, threads=2, packages=PACKAGES)
    return replace(topology, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in topology.gpus))


TWO_GPUS = node(0, 3)


def slurmd(lines: str) -> SlurmdGres:
    """Return slurmd's GPUs for lines of gres.conf that it accepts unchanged."""
    kept = [line for line in lines.splitlines() if line.strip() and not line.startswith("#")]
    return parse("\n".join(f"slurmd: Gres {line.split('gpu07 ')[-1]}" for line in kept))


def found(
    lines: str, topology: Topology, scope: str = "node", gres: TypeCounts | None = None
) -> list[str]:
    """Return the changed lines of the diff."""
    diff = differences(GresConf(topology, scope, gres), slurmd(lines))
    return [line for line in diff[2:] if not line.startswith((" ", "@"))]


ZERO = "Name=gpu File=/dev/nvidia0 Cores=0-3"
RECORDED = DATA / "slurmd"
_, *CASES = (RECORDED / "cases.txt").read_text().split("\n\n")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.split(" @")[0])
def test_slurmd_s_gpus_are_compared_with_the_printed_lines(case: str) -> None:
    title, *lines = case.splitlines()
    value = title.partition(" @ ")[2]
    gres = read_gres(value) if value else None
    has = "\n".join(line[2:] for line in lines if line[0] == "<")
    assert found(has, TWO_GPUS, gres=gres) == [line for line in lines if line[0] != "<"]


@pytest.mark.parametrize("topology", [node(None), machine("dgx-h100")])
def test_gpus_with_an_unknown_numa_node_or_device_file_are_not_compared(topology: Topology) -> None:
    assert found(ZERO, topology) == []


@given(machines(), st.sampled_from(["node", "socket"]), st.sampled_from([None, "gpu07"]))
def test_the_printed_lines_do_not_differ_from_themselves(
    topology: Topology, scope: str, name: str | None
) -> None:
    text = "\n".join(GresConf(topology, scope).lines(name))
    assert found(text, topology, scope) == []


FIRST, LAST = frozenset(range(4)), frozenset(range(4, 8))


@pytest.mark.parametrize("release", ["22.05", "26.05"])
def test_the_output_of_each_slurm_release_is_read(release: str) -> None:
    gres = parse((RECORDED / f"{release}.txt").read_text())
    assert gres.entries == (
        GresEntry("gpu", "a100", ("/dev/nvidia0",), FIRST, is_slice=False),
        GresEntry("gpu", "a100", ("/dev/nvidia1",), LAST, is_slice=False),
    )
    assert gres.messages == ()


def test_a_line_may_have_several_gpus_or_a_mig_instance_with_several_files() -> None:
    text = (RECORDED / "mig.txt").read_text()
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
[2026-11-22T14:23:31.728] Gres Name=shard Type=a100 Count=1 Index=0 File=/dev/nvidia0 Cores=0-3"""


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (f"slurmd: {KEY}\nslurmd: {LINE}\nslurmd: {FATAL}\n", (KEY, LINE, FATAL)),
        ("", ("slurmd -G failed; --node-name names the node as slurm.conf has it",)),
        (f"slurmd: {EXTRA}\n" * 2, (EXTRA,)),
        (OTHERS, ()),
    ],
    ids=["an unknown key", "no output", "an extra line", "lines about other things"],
)
def test_an_error_about_gpus_is_kept_once(text: str, messages: tuple[str, ...]) -> None:
    assert parse(text, is_complete=FATAL not in text and bool(text)).messages == messages


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
