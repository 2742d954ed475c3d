"""The memory of processes, scan by scan."""

import os

from affinityd.audit.memory import HostMemory, MemoryMeter
from affinityd.linux.processes import stat_of
from affinityd.topology.nearness import LOCAL, vicinity
from tests.support.children import sleeping
from tests.support.machines.by_hand import made

NEAR = vicinity(topology := made({0: "0-3", 1: "4-7"}, gpus=[0]), topology.gpus)


def test_processes_are_sampled_in_turns_and_the_sizes_of_the_others_are_known() -> None:
    meter = MemoryMeter(-1.0)  # time for one process in each scan
    with sleeping() as first, sleeping() as second:
        starts = {it.pid: stat.start for it in (first, second) if (stat := stat_of(it.pid))}
        processes = dict.fromkeys(starts.items(), (NEAR, LOCAL))
        seen = [meter.look(processes, {}) for _ in range(4)]
    assert [len(found) for found in seen] == [2, 2, 2, 2]
    of_unknown_place = [[it for it in found.values() if it.placed["unknown"] > 0] for found in seen]
    assert [len(found) for found in of_unknown_place] == [1, 0, 0, 0]
    assert all(it.placed["local"] == it.size > 0 for it in seen[-1].values())
    fresh = [{pid for pid in starts if seen[n][pid] is not seen[n - 1].get(pid)} for n in (1, 2, 3)]
    assert [len(pids) for pids in fresh] == [1, 1, 1]
    assert fresh[1] != fresh[2]
    assert meter.look({}, {}) == {}


def test_a_process_s_policy_and_nodes_are_those_of_the_machine() -> None:
    held = HostMemory.of(os.getpid(), NEAR, LOCAL, None)
    assert held.cause is None
    assert held.far_part is not None
    assert held.room > 0
    assert str(held).endswith("MiB, near")
