"""The check of who handles the interrupts of GPUs, and of irqbalance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.topology.model import Nic
from tests.support.doctor_facts import CPU, ONE, PCI, TWO, check, facts_of

GPU_0, GPU_1 = (gpu.pci_bus_id for gpu in TWO.gpus)
NIC = "0000:20:00.0"
WITH_NIC = replace(TWO, nics=(Nic(NIC, numa_node=1, kind="infiniband", names=("mlx5_0",)),))
LIST, MASK = "IRQBALANCE_BANNED_CPULIST", "IRQBALANCE_BANNED_CPUS"


def irq(device: str, number: int, effective: str, asked: str = "0-7") -> dict[str, object]:
    """Return the files of an interrupt."""
    return {
        f"{PCI}/{device}/msi_irqs/{number}": "msix",
        f"proc/irq/{number}/effective_affinity_list": effective,
        f"proc/irq/{number}/smp_affinity_list": asked,
    }


def named(pid: int, uid: int) -> dict[str, object]:
    """Return the files of a user's process that is called irqbalance."""
    status = f"Name:\tirqbalance\nUid:\t{uid}\t{uid}\t{uid}\t{uid}"
    return {f"proc/{pid}/comm": "irqbalance", f"proc/{pid}/status": status}


#: irqbalance does not run, though another user's process is called so.
QUIET = {"proc/irq/0/smp_affinity_list": "0-7", "proc/1/comm": "systemd", **named(9, uid=1000)}
UNREADABLE = {**QUIET, **named(77, uid=0)}


def running(*variables: str) -> dict[str, object]:
    """Return the files of a running irqbalance with these variables."""
    return {**UNREADABLE, "proc/77/environ": "\0".join(("LANG=C", *variables))}


ISOLATED = {f"{CPU}/isolated": "1-3", f"{CPU}/nohz_full": "5-7"}
SETTINGS = {"etc/sysconfig/irqbalance": f'#x=1\n{LIST}="1-3,5-7"'}
RUNS = "ok: irqbalance runs (process 77)"
KEEPS_OFF = f"{RUNS}, and does not use CPUs 1-3,5-7"
USES_RANKS = (
    "warn 1: may use CPUs 5-7, where ranks of GPU 1 run, though CPUs 0,4 are reserved → "
    f"{LIST}=1-3,5-7 in /etc/default/irqbalance"
)
NOT_NEAR = f"warn 0: irqbalance does not use CPUs 0-3, all that are near GPU 0 → {LIST}="
HANDLED = "its interrupts are handled on"
FAR_FROM_GPU = f"warn 1: GPU 1 ({GPU_1}): {HANDLED} CPU 0, and CPUs 4-7 are near → enable --now irq"
FAR_FROM_NIC = f"warn 1: adapter mlx5_0 ({NIC}): {HANDLED} CPUs 0-2 → let irqbalance use CPUs there"


@pytest.mark.parametrize(
    ("files", "reserved", "expected"),
    [
        ({}, "", "n/a: there is no /proc/irq to read"),
        (QUIET, "", "ok: irqbalance does not run"),
        (running(), "", RUNS),
        (running(f"{LIST}=1-3,5-7"), "0,4", KEEPS_OFF),
        (running(f"{MASK}=ee"), "0,4", KEEPS_OFF),
        ({**running(), **ISOLATED}, "0,4", KEEPS_OFF),
        ({**UNREADABLE, **SETTINGS}, "0,4", KEEPS_OFF),
        (running(f"{LIST}=1-3"), "0,4", USES_RANKS),
        (running(f"{LIST}=lots", f"{MASK}=f"), "", NOT_NEAR),
        ({**QUIET, **irq(GPU_1, 40, "0"), **irq(GPU_0, 41, "1")}, "", FAR_FROM_GPU),
        ({**running(), **irq(NIC, 40, "", "0-1"), **irq(NIC, 41, "2")}, "", FAR_FROM_NIC),
        ({**running(), **irq(NIC, 40, "0"), **irq(NIC, 41, "4")}, "", RUNS),
    ],
)
def test_interrupts(tmp_path: Path, files: dict[str, object], reserved: str, expected: str) -> None:
    check("irqbalance", facts_of(tmp_path, WITH_NIC, files, reserved=reserved), expected)


def test_on_one_node_no_interrupt_is_far(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, ONE, {**QUIET, **irq(GPU_0, 40, "0")})
    check("irqbalance", facts, "ok: irqbalance does not run")
