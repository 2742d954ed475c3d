"""Jobs with fewer near CPUs than requested: another allocation helps them, and a pin does not."""

from dataclasses import replace

import pytest

from affinityd.audit.judge import Judge, with_allocations
from affinityd.audit.model import AuditedProcess, ProcessFacts
from affinityd.audit.remedies import Remedies
from affinityd.cpuset import format_list, parse_list
from affinityd.topology.model import GpuKey, Topology
from tests.support.asking import ask
from tests.support.audit_facts import KUBERNETES_POD, LONE_CONTAINER, SLURM_JOB, process, scan_of
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

PAIR = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
LONE = made({0: "0-3", 1: "4-7"})
DGX = machine("dgx-a100")
GPU, SECOND = ("nvidia", 0), ("nvidia", 1)


def audited(*found: ProcessFacts, on: Topology = LONE, reserved: str = "") -> list[AuditedProcess]:
    judged = [Judge(on).judge(facts) for facts in found]
    return with_allocations(on, parse_list(reserved), judged)


def causes(*found: ProcessFacts, on: Topology = LONE) -> list[str | None]:
    return [it.cause for it in audited(*found, on=on)]


def of_slurm(mask: str, cpuset: str, pid: int = 100, gpu: GpuKey = GPU) -> ProcessFacts:
    return process(mask, cpuset=cpuset, membership=SLURM_JOB, pid=pid, gpu=gpu)


def in_a_pod(mask: str, cpuset: str, limit: int | None) -> ProcessFacts:
    facts = process(mask, cpuset=cpuset, membership=KUBERNETES_POD)
    return replace(facts, cpu_limit=limit, cgroups="0::/a")


POD = in_a_pod("2-7", "2-7", 4)


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (of_slurm("2-5", "2-5"), "allocation"),  # all four requested CPUs
        (of_slurm("5", "2-5"), "allocation"),  # some of these CPUs, as one of several tasks has
        (of_slurm("2-3", "2-5"), None),
        (of_slurm("0-7", "2-5"), "unpinned"),  # also CPUs outside of its cpuset
        (of_slurm("4-5", "4-5"), "allocation"),  # no near CPU at all
        (replace(of_slurm("2-5", "2-5"), is_confined=False), "mask"),
        (in_a_pod("2-5", "2-7", 4), "allocation"),  # a pod's limit
        (POD, "mask"),  # more CPUs than the pod's limit
        (in_a_pod("2-5", "2-7", 2), "mask"),  # the near CPUs are enough for the limit
        (in_a_pod("2-5", "2-7", None), "allocation"),  # a plan gives these CPUs
        (in_a_pod("2-3,5", "2-7", None), "mask"),  # no plan gives these CPUs
    ],
)
def test_requested_cpus_that_are_far_are_not_blamed_on_the_mask(
    facts: ProcessFacts, cause: str | None
) -> None:
    assert causes(facts) == [cause]


def test_the_gpus_of_a_job_divide_the_cpus_that_it_requested() -> None:
    first = of_slurm("0-1,4-7", "0-1,4-7")
    second = of_slurm("4-7", "0-1,4-7", pid=200, gpu=SECOND)
    assert causes(first, second, on=PAIR) == ["mask", None]  # 2 and 4 CPUs are near
    assert causes(first, on=PAIR) == ["allocation"]  # the lone GPU's part is all six CPUs


def test_descendants_and_processes_in_child_cgroups_are_judged_with_the_holder() -> None:
    worker = replace(of_slurm("3-4", "2-5", pid=101), holding=None, holder=100)
    assert causes(of_slurm("2-5", "2-5"), worker) == ["allocation", "allocation"]
    assert causes(POD, replace(POD, pid=300, cgroups="0::/a/b")) == ["mask", "mask"]
    of_no_job = replace(in_a_pod("2-5", "2-7", 4), membership=LONE_CONTAINER)
    assert causes(of_no_job) == ["mask"]


def test_the_remedy_is_another_allocation_and_says_how_many_cpus_are_near() -> None:
    facts = of_slurm("2-5", "2-5")
    (found,) = audited(facts)
    remedy = Remedies(LONE, scan_of(LONE, found)).of(found)
    assert remedy is not None
    assert "its job was given only 2 CPUs there: have gres.conf" in remedy
    assert "affinityd pin" not in remedy
    (found,) = audited(of_slurm("3-5", "0-5"), reserved="0-2")  # no plan gives reserved CPUs
    assert found.cause == "allocation"


def test_cpus_that_a_plan_gave_beyond_a_gpu_s_part_are_not_taken_back() -> None:
    """The job is one task of `srun --exclusive -c64`: no cgroup tells how many CPUs it requests."""
    given = of_slurm(
        format_list(ask(DGX, gpus="0", mode="node", AFFINITYD_CPUS="64").cpus), "0-255"
    )
    assert causes(given, on=DGX) == ["allocation"]
    moved = of_slurm("0-63", "0-255")  # as many CPUs, but not the nearest ones
    assert causes(moved, on=DGX) == ["mask"]


def test_a_job_with_a_whole_machine_is_unpinned() -> None:
    assert causes(of_slurm("0-255", "0-255"), on=DGX) == ["unpinned"]


def test_a_far_slice_of_slurm_is_not_blamed_on_the_mask() -> None:
    """Pinning one task near its GPU would take CPUs of the other task."""
    far = of_slurm("4-5", "0-7")
    neighbor = of_slurm("0-1", "0-7", pid=200, gpu=SECOND)
    assert causes(far, neighbor, on=PAIR) == ["allocation", "allocation"]
    beside = of_slurm("5-7", "0-7", pid=200, gpu=SECOND)
    assert causes(far, beside, on=PAIR) == ["mask", None]
