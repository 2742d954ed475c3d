"""The check of the memory of Grace's GPUs."""

from pathlib import Path

import pytest

from affinityd.topology.model import Topology
from tests.support.doctor_facts import TWO, Files, check, facts_of
from tests.support.machines.facts import machine

PARAMS = "proc/driver/nvidia/params"
GRACE, CDMM = machine("gb200"), machine("gb200-cdmm")
IS_NUMA = {PARAMS: 'CoherentGPUMemoryMode: "numa"\nCreateImexChannel0: 0'}
IS_DRIVER = {PARAMS: 'CoherentGPUMemoryMode: "driver"'}
IS_UNSET = {PARAMS: 'CoherentGPUMemoryMode: ""'}
NUMA_OK = "memory of GPUs 0-3 is NUMA nodes 2,10,18,26, little of it otherwise used"
NAMED = "NUMA nodes 2,10,18,26"


def used(node: int, key: str, gib: float) -> Files:
    """Return the files of a node of GPU memory of which so much is used otherwise."""
    lines = [f"Node {node} {key}: {int(gib * 2**20):>14} kB", f"Node {node} FilePmdMapped: 9 kB"]
    return {f"sys/devices/system/node/node{node}/meminfo": "\n".join(lines)}


def process(pid: int, mems: str, folder: str) -> dict[str, object]:
    scope = "/system.slice/slurmstepd.scope"
    return {
        f"proc/{pid}/cgroup": f"0::{scope}/{folder}/step_0/user/task_0",
        f"proc/{pid}/status": f"Mems_allowed:\t00,00000003\nMems_allowed_list:\t{mems}",
    }


ON_ALL = process(7, "0-33", "job_41") | process(8, "0-33", "job_41") | process(9, "0-1", "job_9")
BY_SLUID = process(7, "0,2", "sEKNKTV3WPV500")
SIX = {key: it for job in range(6) for key, it in process(job + 1, "2", f"job_{job}").items()}


@pytest.mark.parametrize(
    ("topology", "files", "expected"),
    [
        (TWO, IS_UNSET, ["n/a: no GPU shares its memory with CPUs"]),
        (GRACE, {}, ["n/a: there is no CoherentGPUMemoryMode and no use of memory to read"]),
        (GRACE, used(2, "FilePages", 0.9), [f"ok: is not known: {NUMA_OK}"]),
        (GRACE, IS_NUMA, [f"ok: CoherentGPUMemoryMode is numa: {NUMA_OK}"]),
        (GRACE, IS_UNSET, [f"warn 0-3: as {NAMED}, and from R615 on → NVreg_Coherent"]),
        (CDMM, IS_DRIVER, ["ok: is driver: memory of GPUs 0-3 is the driver's, and no NUMA node"]),
        (CDMM, IS_UNSET, ["ok: is not set: memory of GPUs 0-3 is the driver's"]),
        (
            GRACE,
            {**IS_NUMA, **used(10, "FilePages", 40)},
            ["warn 0-3: page cache takes 40 GiB of the memory of GPUs, on node 10 → drop_caches"],
        ),
        (
            GRACE,
            {**IS_NUMA, **used(2, "AnonPages", 1), **used(26, "AnonPages", 2)},
            ["warn 0-3: ordinary memory of programs takes 3.0 GiB → on purpose"],
        ),
        (GRACE, {**IS_NUMA, **used(2, "FilePages", 0.9)}, [f"ok: {NUMA_OK}"]),
        (
            GRACE,
            {**IS_NUMA, **ON_ALL},
            [f"warn 0-3: Mems_allowed of slurm 41 has {NAMED} → affinityd exec --memory bind"],
        ),
        (GRACE, {**IS_NUMA, **BY_SLUID}, ["warn 0-3: of slurm sEKNKTV3WPV500 has → bind"]),
        (GRACE, {**IS_NUMA, **SIX}, ["warn 0-3: slurm 3 and 2 more has → bind"]),
        (CDMM, {**IS_DRIVER, **process(7, "0-1", "job_1")}, ["ok: is driver"]),
    ],
)
def test_memory_of_graces_gpus(
    tmp_path: Path, topology: Topology, files: Files, expected: list[str]
) -> None:
    check("gpu-memory", facts_of(tmp_path, topology, files), *expected)
