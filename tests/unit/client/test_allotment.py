"""Plans of ranks that have a part of a machine for themselves, or share it with their job."""

import pytest

from affinityd.client.local_plan import plan_on_node
from affinityd.client.process import ProcessContext
from affinityd.cpuset import format_list, parse_list
from affinityd.planner.modes import MODES
from affinityd.request.resolve import Reply
from affinityd.topology.model import Node
from tests.support.asking import codes
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import cases, rows, words

#: Two nodes of 8 cores and 2 threads; GPUs 0 to 3 are on node 1, GPUs 4 to 7 on node 0.
TWO_NODES = made({0: "0-15", 1: "16-31"}, [1] * 4 + [0] * 4, threads=2, siblings="adjacent")
TORCHRUN = "LOCAL_RANK={} LOCAL_WORLD_SIZE=4"


def planned(
    environ: str, mask: str, node: Node, launchers_mask: str | None = None, **chosen: str
) -> Reply:
    cpus = None if launchers_mask is None else parse_list(launchers_mask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessContext, "launcher", (cpus, None))
        process = ProcessContext(0, 0, words(environ), devices=None)
        return plan_on_node(node, process.query(chosen, parse_list(mask)))


@pytest.mark.parametrize(("environ", "mask", "cpus", "locality"), cases("allotments.tsv"))
def test_a_rank_gets_its_part_of_the_machine_if_fewer_cpus_are_near(
    environ: str, mask: str, cpus: str, locality: str
) -> None:
    reply = planned(environ, mask, Node(TWO_NODES))
    assert (format_list(reply.cpus), reply.locality) == (cpus, locality)
    assert ("widened" in codes(reply)) == (locality == "mixed")


SCOPE = "0-13,16-17"  #: systemd-run --scope -p AllowedCPUs


@pytest.mark.parametrize(
    ("seen", "mode", "cpus"),
    [
        ("0,1,2,3", "node", ["0-5,16-17"] * 4),
        ("{}", "node", ["0-5,16-17"] * 4),
        ("0,1,2,3", "unique_contiguous", ["16-17", "0-1", "2-3", "4-5"]),
    ],
    ids=["ranks that see all four GPUs", "ranks that see one GPU", "ranks that divide the CPUs"],
)
def test_ranks_in_a_systemd_scope_get_near_cpus_first_and_then_far_cpus(
    seen: str, mode: str, cpus: list[str]
) -> None:
    environ = f"{TORCHRUN} CUDA_VISIBLE_DEVICES={seen}"
    ranks = [environ.replace("{}", f"{rank}") for rank in range(4)]
    replies = [planned(rank, SCOPE, Node(TWO_NODES), mode=mode) for rank in ranks]
    assert [format_list(reply.cpus) for reply in replies] == cpus


def test_a_rank_in_most_of_a_machine_keeps_its_near_cpus() -> None:
    topology = machine("dgx-a100")
    reply = planned("CUDA_VISIBLE_DEVICES=0", "0-249", Node(topology))
    near = topology.cpus_of_node(3) & parse_list("0-249")
    assert (reply.cpus, reply.locality) == (near, "local")
    reserved = Node(topology, parse_list("0-1,128-129"))
    reply = planned("CUDA_VISIBLE_DEVICES=0", "2-127,130-255", reserved)
    assert (reply.request.options.cpus, codes(reply)) == (None, [])


def test_a_container_s_cpus_count_in_full_unless_they_are_the_whole_machine() -> None:
    topology = machine("dgx-a100")
    for asked in (31, 33, 130, 250, 255):
        environ = f"AFFINITYD_JOB_CPUS={asked} CUDA_VISIBLE_DEVICES=0"
        reply = planned(environ, "0-255", Node(topology))
        assert len(reply.cpus) in {max(32, asked), max(32, asked) + 1}, asked  # whole cores
    reply = planned("AFFINITYD_JOB_CPUS=256 CUDA_VISIBLE_DEVICES=0", "0-255", Node(topology))
    assert (reply.cpus, reply.locality) == (topology.cpus_of_node(3), "local")


def test_jobs_in_the_same_part_of_a_machine_are_warned_that_a_unique_mode_may_overlap() -> None:
    for mode, mask, seen, expected in (
        ("unique_contiguous", "0-27", "0", ["not_unique"]),
        ("unique_contiguous", "0-27", "0,1,2,3,4,5,6,7", []),
        ("unique_contiguous", "0-31", "0", []),  # each GPU has a block
        ("node", "0-27", "0", []),
    ):
        reply = planned(f"CUDA_VISIBLE_DEVICES={seen}", mask, Node(TWO_NODES), mode=mode)
        assert [code for code in codes(reply) if code == "not_unique"] == expected


MPIRUN = "OMPI_COMM_WORLD_LOCAL_RANK={} OMPI_COMM_WORLD_LOCAL_SIZE=8"
SRUN = "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_GTIDS=0,1 SLURM_GPUS_ON_NODE=8"


@pytest.mark.parametrize(("rank", "mask", "mode", "cpus", "locality"), cases("bound_ranks.tsv"))
def test_cpus_to_which_a_launcher_bound_a_rank_are_the_rank_s_own(
    rank: str, mask: str, mode: str, cpus: str, locality: str
) -> None:
    node = Node(TWO_NODES, parse_list("30-31"))
    chosen = words(f"mode={mode}")
    reply = planned(MPIRUN.format(rank), mask, node, "0-31", **chosen)
    assert [place.rank for place in reply.ranks] == [int(rank)]
    assert [place.gpu.index for place in reply.ranks] == [int(rank)]
    assert (format_list(reply.cpus), reply.locality) == (cpus, locality)
    is_unique = MODES[chosen["mode"]].unique
    assert codes(reply) == ["not_unique"] * is_unique + ["remote_home"] * (locality == "remote")


@pytest.mark.parametrize(
    ("environ", "mask", "launchers_mask", "cpus"),
    rows("""
    a launcher with the same mask divides | MPIRUN | 0-16 | 0-16 | 0-6,16
    a launcher whose mask is unknown      | MPIRUN | 0-16 | None | 0-6,16
    a launcher with fewer CPUs            | MPIRUN | 0-31 | 0-1  | 16-31
    a launcher with other CPUs            | MPIRUN | 14-16 | 0-1 | 14-16
    a task of Slurm, which lists masks    | SRUN | 14-17 | 0-31 | 16-17
    """),
)
def test_a_mask_is_the_rank_s_own_if_the_launcher_has_more_cpus(
    environ: str, mask: str, launchers_mask: str, cpus: str
) -> None:
    launchers = {"MPIRUN": MPIRUN.format(0).replace("SIZE=8", "SIZE=4"), "SRUN": SRUN}
    mask_above = None if launchers_mask == "None" else launchers_mask
    reply = planned(launchers[environ], mask, Node(TWO_NODES), mask_above)
    assert format_list(reply.cpus) == cpus
