"""What each release of Slurm makes of `Cores=` as `affinityd slurm gres-conf` prints them.

The node pretends to be a DGX A100: two packages, of four NUMA nodes each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from affinityd.cpuset import CpuSet, parse_list
from affinityd.slurm.gres_conf import GresConf
from tests.e2e.slurm.release import HOST
from tests.e2e.slurm.rig import Setup, Slurm, slurm
from tests.support.machines.facts import machine
from tests.unit.slurm.test_gres_conf import with_minors

THREADS = 2
PACKAGES = f"Sockets=2 CoresPerSocket=64 ThreadsPerCore={THREADS}"
NODES = f"Sockets=8 CoresPerSocket=16 ThreadsPerCore={THREADS}"  #: as by numa_node_as_socket

#: Of the job's details on its node: its CPUs, as slurmctld counts them, and its GPU.
DETAILS = re.compile(r"CPU_IDs=(\S+) .*\(IDX:(\d+)\)")


@contextmanager
def pretended(release: str, sockets: str, scope: str, state: str) -> Iterator[Slurm]:
    """Run a node with these sockets, and the lines of a scope, that comes to a state."""
    lines = GresConf(with_minors(machine("dgx-a100"), range(8)), scope).lines()
    setup = Setup(
        gpus=[f"{minor}" for minor in range(8)],
        gres_conf="".join(f"{line}\n" for line in lines),
        topology=sockets,
        conf=("SlurmdParameters=config_overrides",),
        release=release,
        state=state,
    )
    with slurm(setup) as cluster:
        yield cluster


def of_a_job(cluster: Slurm) -> tuple[CpuSet, CpuSet]:
    """Return the cores of a job that has one GPU, and those that its line names."""
    printed = cluster.srun(
        *("--ntasks=1", "--cpus-per-task=4", "--gres=gpu:1", "--gres-flags=enforce-binding"),
        *("sh", "-c", 'scontrol show job --details "$SLURM_JOB_ID"'),
    )
    found = DETAILS.search(printed)
    assert found, printed
    cores = frozenset(cpu // THREADS for cpu in parse_list(found[1]))
    gres_conf = (cluster.folder / "gres.conf").read_text()
    named = re.findall(r"^Name=.* Cores=(\S+)$", gres_conf, re.MULTILINE)
    return cores, parse_list(named[int(found[2])])


@pytest.mark.parametrize(("sockets", "scope"), [(NODES, "node"), (PACKAGES, "socket")])
def test_a_gpu_s_jobs_get_its_cores_where_these_are_a_socket(
    release: str, sockets: str, scope: str
) -> None:
    with pretended(release, sockets, scope, "idle") as cluster:
        cores, named = of_a_job(cluster)
    assert cores <= named


def test_cores_that_are_a_part_of_a_socket_drain_the_node_or_count_as_all_of_it_before_24_11(
    release: str,
) -> None:
    state = "idle" if release == HOST else "inval"
    with pretended(release, PACKAGES, "node", state) as cluster:
        if release == HOST:
            cores, named = of_a_job(cluster)
            assert cores.isdisjoint(named)
            assert cores <= parse_list("0-63")
        else:
            said = cluster.run("scontrol", "show", "node")
            assert re.search("Reason=gres/gpu GRES core .*doesn't match socket boundaries", said)
