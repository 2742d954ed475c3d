"""Ranks of one job that each plan for themselves get CPUs that do not overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd import machines
from affinityd.client.local_plan import plan_on_node
from affinityd.client.process import ProcessContext
from affinityd.cpuset import CpuSet, parse_list
from affinityd.request.resolve import Reply
from affinityd.topology.model import Node, Topology
from tests.support.asking import codes
from tests.support.machines.facts import machine
from tests.support.tables import words

VARIABLES = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "amd": "ROCR_VISIBLE_DEVICES",
    "huawei": "ASCEND_RT_VISIBLE_DEVICES",
}


@dataclass(frozen=True)
class Launch:
    """How a launcher tells its ranks apart."""

    said: str  #: the variables that a rank has
    sees: str  #: the GPUs that a rank sees: "all" of the job, or one by "turns"
    most: int = 2  #: the most ranks on a GPU


MPI = "OMPI_COMM_WORLD_LOCAL_RANK={n} OMPI_COMM_WORLD_LOCAL_SIZE={of}"
SRUN = (
    "SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_LOCALID={n} SLURM_GTIDS={tasks} SLURM_GPUS_ON_NODE={gpus}"
)
LAUNCHES = {
    "torchrun": Launch("LOCAL_RANK={n} LOCAL_WORLD_SIZE={of}", "all"),
    "mpirun -x": Launch(MPI, "all"),
    "a wrapper below mpirun": Launch(MPI, "turns", most=1),
    "a wrapper in a batch script": Launch(
        f"{MPI} SLURM_JOB_ID=9 SLURM_LOCALID=0 SLURM_JOB_GPUS={{job}}", "turns"
    ),
    "srun, and the site says the job's GPUs": Launch(
        f"{SRUN} AFFINITYD_JOB_GPUS={{job}}", "turns", most=1
    ),
    "srun, with LOCAL_RANK=$SLURM_LOCALID": Launch(f"{SRUN} LOCAL_RANK={{n}}", "turns", most=1),
}


@dataclass(frozen=True)
class Rank:
    """A rank of a job, which may run on some CPUs."""

    topology: Topology
    launch: Launch
    number: int
    of: int
    job: Sequence[int]
    cpus: CpuSet

    @property
    def gpu(self) -> int:
        return self.job[self.number % len(self.job)]

    def plan(self, **chosen: str) -> Reply:
        facts: dict[str, object] = {"n": self.number, "of": self.of, "gpus": len(self.job)}
        facts |= {"job": named(self.job), "tasks": named(range(self.of))}
        variable = VARIABLES[self.topology.gpus[0].vendor]
        said = dict(word.format(**facts).split("=") for word in self.launch.said.split())
        said[variable] = named(self.job if self.launch.sees == "all" else [self.gpu])
        process = ProcessContext(0, 0, said, devices=None)
        return plan_on_node(Node(self.topology), process.query(chosen, self.cpus))


def named(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


@pytest.mark.parametrize(
    ("said", "devices", "is_sent"),
    [
        ("NVIDIA_VISIBLE_DEVICES=4,6 KUBERNETES_SERVICE_HOST=10.0.0.1", "minor:4,minor:6", True),
        ("NVIDIA_VISIBLE_DEVICES=GPU-1 KUBERNETES_SERVICE_HOST=10.0.0.1", "minor:4,minor:6", True),
        ("NVIDIA_VISIBLE_DEVICES=all KUBERNETES_SERVICE_HOST=10.0.0.1", "minor:4,minor:6", False),
        ("NVIDIA_VISIBLE_DEVICES=4 KUBERNETES_SERVICE_HOST=10.0.0.1", "drm:128", False),
        ("NVIDIA_VISIBLE_DEVICES=4 KUBERNETES_SERVICE_HOST=10.0.0.1", None, False),
        ("NVIDIA_VISIBLE_DEVICES=4,6", "minor:4,minor:6", False),  # on the node itself
    ],
)
def test_a_device_list_that_a_container_runtime_set_is_sent(
    said: str, devices: str | None, *, is_sent: bool
) -> None:
    process = ProcessContext(2**22 + 1, 0, words(said), devices=devices)
    sent = process.query({}, frozenset({0}))
    assert any(text.startswith("NVIDIA_VISIBLE_DEVICES=") for _, text in sent) == is_sent


def halves(topology: Topology) -> CpuSet:
    cores = topology.node_cores.values()
    first = (core for its in cores for core in its[: (len(its) + 1) // 2])
    return frozenset(cpu for core in first for cpu in core.cpus)


def none_overlap(replies: Sequence[Reply]) -> bool:
    return not any(one.cpus & other.cpus for one, other in combinations(replies, 2))


@pytest.mark.parametrize("name", LAUNCHES)
@given(data=st.data())
def test_ranks_never_share_cpus_in_a_unique_mode(name: str, data: st.DataObject) -> None:
    topology = machine(data.draw(st.sampled_from(machines.NAMES)))
    gpus = len(topology.gpus)
    job = data.draw(st.sampled_from([range(gpus), range(gpus // 2), range(1, gpus, 2)]))
    cpus = data.draw(st.sampled_from([topology.online, halves(topology)]))
    unique = ["unique_contiguous", "unique_interleaved", "exclusive", "single_unique"]
    chosen = {
        "mode": data.draw(st.sampled_from(unique)),
        "scope": data.draw(st.sampled_from(["node", "socket"])),
        **data.draw(st.sampled_from([{}, {"share": "auto"}, {"balanced": "false"}])),
    }
    launch = LAUNCHES[name]
    of = len(job) * data.draw(st.integers(1, launch.most))
    siblings = [Rank(topology, launch, n, of, job, cpus) for n in range(of)]
    replies = [sibling.plan(**chosen) for sibling in siblings]
    for sibling, reply in zip(siblings, replies, strict=True):
        assert [rank.gpu.index for rank in reply.ranks] == [sibling.gpu]
        assert reply.cpus <= cpus
    assert none_overlap([reply for reply in replies if "not_unique" not in codes(reply)])


#: Each GPU's cache by the maps that LUMI and Frontier publish; siblings are 64 apart.
MI250X = ["48-55", "56-63", "16-23", "24-31", "0-7", "8-15", "32-39", "40-47"]


@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize(
    "kept", [frozenset(), frozenset(range(0, 128, 8))], ids=["all", "low noise"]
)
@pytest.mark.parametrize("order", [range(8), (0, 2, 4, 6, 1, 3, 5, 7)], ids=str)
def test_each_gpu_of_mi250x_gets_the_cache_to_which_sites_bind_it(
    name: str, kept: CpuSet, order: Sequence[int]
) -> None:
    topology = machine("mi250x")
    cpus = topology.online - kept
    for number in range(8):
        rank = Rank(topology, LAUNCHES[name], number, 8, order, cpus)
        reply = rank.plan(mode="core_complex", AFFINITYD_CPUS="8")
        cache = parse_list(MI250X[rank.gpu])
        assert reply.cpus == (cache | {cpu + 64 for cpu in cache}) - kept
        assert not {"shared_gpu", "idle_cpus"} & {*codes(reply)}
