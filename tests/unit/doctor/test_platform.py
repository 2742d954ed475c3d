"""The checks of what is between devices, and of the power management of CPUs."""

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.doctor.facts import NodeFacts
from affinityd.topology.model import Nic, RdmaPort, Topology
from tests.support.doctor_facts import CPU, NO_GPU, PCI, TWO, Files, check, facts_of
from tests.unit.doctor.test_checks import live

#: A root port, a switch's upstream port, and downstream ports to GPU 0 and its NIC; GPU 1 is alone.
ROOT, UP, DOWN, TO_NIC, OTHER = (
    *("0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:02:01.0"),
    "0000:80:01.0",
)
NIC = "0000:04:00.0"
GPU_0, GPU_1 = TWO.gpus
FIRST = replace(GPU_0, pci_path=("pci0000:00", ROOT, UP, DOWN, GPU_0.pci_bus_id))
SECOND = replace(GPU_1, pci_path=("pci0000:80", OTHER, GPU_1.pci_bus_id))
PORT = RdmaPort("mlx5_0", 1, is_active=True)
PATH = ("pci0000:00", ROOT, UP, TO_NIC, NIC)
SWITCHED = replace(
    TWO,
    gpus=(FIRST, SECOND),
    nics=(Nic(NIC, 0, "infiniband", ("mlx5_0",), PATH, (PORT,)),),
)
#: Two GPUs that have no NVLink, and no NIC.
PAIR = replace(TWO, gpus=(replace(FIRST, nvlinks=()), replace(SECOND, nvlinks=())))


def config(control: int | None, size: int = 4096) -> bytes:
    """Return a configuration space with AER, and ACS behind it unless `control` is None."""
    space = bytearray(size)
    if size > 0x100:
        space[0x100:0x104] = (
            0x0001 | 1 << 16 | (0x148 if control is not None else 0) << 20
        ).to_bytes(4, "little")
    if control is not None:
        space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")  # the last one
        space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


OFF, VALID_ONLY, ALL_ON = config(0), config(1), config(0x1D)
SHORT = config(None, 64)
GPUS_DMA = {f"{PCI}/{gpu.pci_bus_id}/iommu_group/type": "DMA-FQ" for gpu in TWO.gpus}
WITH_IOMMU = {**GPUS_DMA, "proc/cmdline": "quiet intel_iommu=on iommu.strict=0"}
ALL_OFF = dict.fromkeys((DOWN, TO_NIC), OFF)
NOT_REDIRECTED = "ok: neither ACS nor the IOMMU redirects"


def with_configs(
    root: Path, topology: Topology, configs: dict[str, bytes], files: Files
) -> NodeFacts:
    facts = facts_of(root, topology, files)
    for bridge, content in configs.items():
        folder = root / PCI / bridge
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config").write_bytes(content)
    return facts


@pytest.mark.parametrize(
    ("topology", "configs", "files", "expected"),
    [
        (NO_GPU, {}, {}, ["n/a: there is no GPU"]),
        (TWO, {}, WITH_IOMMU, ["n/a: no GPU has an RDMA device, or a GPU without NVLink"]),
        (SWITCHED, {}, {}, ["n/a: ACS of bridges is not known: a captured or built-in machine"]),
        (SWITCHED, {DOWN: SHORT, TO_NIC: SHORT}, {}, ["n/a: ACS of bridges is not known"]),
        (SWITCHED, ALL_OFF, {}, [NOT_REDIRECTED]),
        # A guest's bridge without extended capabilities; source validation redirects nothing.
        (SWITCHED, {DOWN: config(None, 256), TO_NIC: VALID_ONLY}, {}, [NOT_REDIRECTED]),
        (SWITCHED, {DOWN: config(None), TO_NIC: OFF}, {}, [NOT_REDIRECTED]),
        # What both share, and what only another GPU is below, is not between them.
        (SWITCHED, {**ALL_OFF, UP: ALL_ON, ROOT: ALL_ON, OTHER: ALL_ON}, {}, [NOT_REDIRECTED]),
        (
            SWITCHED,
            {DOWN: ALL_ON, TO_NIC: ALL_ON},
            {},
            [f"warn 0: ACS of {DOWN}, {TO_NIC} sends → setpci -s BRIDGE ECAP_ACS+6.w=0000"],
        ),
        (SWITCHED, {DOWN: ALL_ON}, {}, [f"warn 0: ACS of {DOWN} sends → it costs isolation"]),
        (PAIR, {ROOT: ALL_ON, UP: OFF, DOWN: OFF, OTHER: OFF}, {}, [f"warn 0-1: {ROOT} → setpci"]),
        (
            SWITCHED,
            ALL_OFF,
            WITH_IOMMU,
            ["warn 0: GPU 0 use (DMA-FQ; the kernel's command line has intel_iommu=on → iommu=pt"],
        ),
        (SWITCHED, {}, GPUS_DMA, ["warn 0: has no iommu=): → iommu.passthrough=1"]),
        (SWITCHED, ALL_OFF, dict.fromkeys(GPUS_DMA, "identity"), [NOT_REDIRECTED]),
    ],
)
def test_acs_and_iommu_between_gpus_and_other_devices_are_findings(
    tmp_path: Path,
    topology: Topology,
    configs: dict[str, bytes],
    files: Files,
    expected: list[str],
) -> None:
    check("peer-to-peer", with_configs(tmp_path, topology, configs, files), *expected)


def test_a_user_is_told_that_only_root_sees_acs(tmp_path: Path) -> None:
    facts = live(with_configs(tmp_path, SWITCHED, {DOWN: SHORT, TO_NIC: SHORT}, {}))
    check("peer-to-peer", facts, "n/a: not known: only root reads their configuration space")


def test_capabilities_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    circle = bytearray(4096)
    circle[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    check(
        "peer-to-peer",
        with_configs(tmp_path, SWITCHED, dict.fromkeys((DOWN, TO_NIC), bytes(circle)), {}),
        NOT_REDIRECTED,
    )


def clock(cpus: str, governor: str, preference: str | None = None) -> Files:
    values = {"scaling_governor": governor, "energy_performance_preference": preference}
    return {
        f"{CPU}/cpu{cpu}/cpufreq/{name}": value
        for cpu in cpus
        for name, value in values.items()
        if value is not None
    }


def idle(cpus: str, *states: tuple[str, int, int]) -> Files:
    """Return the idle states of CPUs: name, exit latency, whether it is disabled."""
    return {
        f"{CPU}/cpu{cpu}/cpuidle/state{number}/{name}": value
        for cpu in cpus
        for number, state in enumerate(states)
        for name, value in zip(("name", "latency", "disable"), state, strict=True)
    }


EVERY = "01234567"
SAVING = "governor powersave, energy_performance_preference balance_power"
POLL, C1, C6, C6_OFF = ("POLL", 0, 0), ("C1", 2, 0), ("C6", 170, 0), ("C6", 170, 1)
FAST = clock(EVERY, "performance", "performance")
SHALLOW = idle(EVERY, POLL, C1, C6_OFF)


@pytest.mark.parametrize(
    ("topology", "files", "expected"),
    [
        (NO_GPU, FAST, ["n/a: there is no GPU"]),
        (TWO, {}, ["n/a: there is no cpufreq and no cpuidle to read, as in a guest"]),
        (TWO, FAST, ["ok: fast after a pause: no idle state is on"]),
        (TWO, {**FAST, **SHALLOW}, ["ok: the deepest idle state is C1, of 2 µs"]),
        (TWO, clock(EVERY, "powersave", "performance"), ["ok: fast"]),
        (
            TWO,
            {**FAST, **clock("45", "powersave", "balance_power")},
            [f"warn 0-1: CPUs 4-5 near GPUs: {SAVING}: after → frequency-set -g performance"],
        ),
        (TWO, clock("0", "schedutil"), ["warn 0-1: CPU 0 near GPUs: governor schedutil: → -g"]),
        (
            TWO,
            {**FAST, **idle("0123", POLL, C1, C6), **idle("4567", POLL, C1, C6_OFF)},
            ["warn 0-1: CPUs 0-3 near GPUs may sleep in C6, and take 170 µs → idle-set -D 100"],
        ),
        (
            TWO,
            {**clock(EVERY, "ondemand"), **idle(EVERY, POLL, C6)},
            ["warn 0-1: governor ondemand → it costs power", "warn 0-1: C6 → it costs power"],
        ),
    ],
)
def test_frequency_and_idle_states_of_cpus_near_gpus(
    tmp_path: Path, topology: Topology, files: Files, expected: list[str]
) -> None:
    check("cpu-power", facts_of(tmp_path, topology, files), *expected)


def test_reserved_cpus_may_sleep(tmp_path: Path) -> None:
    files = {**FAST, **idle("0", POLL, C6), **idle("1", POLL, C1)}
    check("cpu-power", facts_of(tmp_path, TWO, files, reserved="0"), "ok: is C1, of 2 µs")
