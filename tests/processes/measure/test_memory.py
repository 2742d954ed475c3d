"""Memory of this machine, measured in children: what is true of any machine's figures."""

from __future__ import annotations

import os
from pathlib import Path

from affinityd.cpuset import CpuSet
from affinityd.linux.processes import mask_of
from affinityd.measure.document import OF_MEMORY
from affinityd.measure.run import MemoryTarget, NodeTask, measured
from tests.support.children import children_of

HERE = frozenset(os.sched_getaffinity(0))
NOT_HERE = 1000  #: no machine of these tests has as many nodes, or CPUs


def task(*nodes: int, cpus: CpuSet = HERE) -> NodeTask:
    memory = tuple(MemoryTarget(node, HERE if node == 0 else frozenset()) for node in nodes)
    return NodeTask(0, cpus, memory, (), home=0, is_one_node=len(nodes) == 1)


def test_memory_has_a_bandwidth_and_a_latency() -> None:
    read, latency = measured(task(0))
    assert (read.why, latency.why) == (None, None)
    assert read.value is not None
    assert latency.value is not None
    # In any machine a load of memory takes longer than reading a line's 64 bytes in order.
    assert latency.value > 64 / read.value


def test_memory_on_another_node_is_not_measured() -> None:
    *local, read, latency = measured(task(0, NOT_HERE))
    assert all(it.value is not None for it in local)
    assert (read.value, latency.value) == (None, None)
    assert read.why is not None
    assert read.why.startswith("not all of ")
    assert f"MiB came to node {NOT_HERE}: preferred on node {NOT_HERE} was refused" in read.why


def test_cpus_outside_the_cpuset_leave_each_figure_with_a_reason() -> None:
    found = [*measured(task(0, cpus=frozenset({NOT_HERE})))]
    assert [it.quantity for it in found] == [*OF_MEMORY]
    assert {it.why for it in found} == {"its CPUs are outside this process's cpuset"}


def test_the_measuring_process_runs_on_the_cpus_of_its_node_and_ends_first_without_memory() -> None:
    cpus = frozenset({max(HERE)})
    for _ in measured(task(0, cpus=cpus)):
        for child in children_of(os.getpid()):  # none, once it has ended
            assert mask_of(child) == cpus
            assert Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n"
            return
    raise AssertionError("it was not seen")


def test_a_measurement_leaves_no_process_and_changes_no_mask() -> None:
    list(measured(task(0)))
    assert os.sched_getaffinity(0) == HERE
    assert children_of(os.getpid()) == []
