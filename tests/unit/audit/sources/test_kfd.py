from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.model import GpuHolders, Holding
from affinityd.audit.sources import kfd
from affinityd.audit.sources.kfd import NO_KFD, NOT_LISTED
from affinityd.linux.files import text
from affinityd.topology.model import Gpu
from tests.support.machines.sysfs_tree import put

KFD = "class/kfd/kfd"

#: KFD's gpu_id of each GPU, in the order of its nodes; they are hashes of no order.
IDS = (50432, 3112, 63091)

GPUS = tuple(
    Gpu(index, "amd", f"0000:{index + 1:02x}:00.0", numa_node=0, render_minor=128 + index)
    for index in range(3)
)


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """Return a /sys whose KFD has a node of CPUs and three GPUs, and no process."""
    nodes = tmp_path / KFD / "topology/nodes"
    put(nodes / "0/gpu_id", 0)
    put(nodes / "0/properties", "cpu_cores_count 64\nsimd_count 0\ndrm_render_minor 0")
    for node, (number, gpu) in enumerate(zip(IDS, GPUS, strict=True), 1):
        put(nodes / f"{node}/gpu_id", number)
        put(nodes / f"{node}/properties", f"simd_count 440\ndrm_render_minor {gpu.render_minor}")
    (tmp_path / KFD / "proc").mkdir()
    return tmp_path


def process(sys: Path, pid: str, *memory: int, queues: tuple[int, ...] = ()) -> None:
    """Write the files of a process: the memory that it holds in each GPU, its queues' GPUs."""
    folder = sys / KFD / "proc" / pid
    put(folder / "pasid", 32770)
    (folder / "queues").mkdir()
    for number, size in zip(IDS, memory, strict=True):
        put(folder / f"vram_{number}", size)
        put(folder / f"stats_{number}/evicted_ms", 0)
    for queue, gpu in enumerate(queues):
        put(folder / f"queues/{queue}/gpuid", IDS[gpu])


def test_a_process_uses_the_gpus_in_which_it_has_memory(sys: Path) -> None:
    process(sys, "4711", 0, 4096, 1 << 35)
    found = kfd.found(GPUS, str(sys))
    assert set(found.holdings) == {
        Holding(4711, ("amd", 1), 4096),
        Holding(4711, ("amd", 2), 1 << 35),
    }
    assert found.unknown == {}


def test_a_process_uses_the_gpus_in_which_it_has_a_queue(sys: Path) -> None:
    process(sys, "4711", 0, 0, 0, queues=(1,))
    assert kfd.found(GPUS, str(sys)) == GpuHolders((Holding(4711, ("amd", 1), 0),))


def test_a_process_that_only_opened_the_driver_uses_no_gpu(sys: Path) -> None:
    process(sys, "4711", 0, 0, 0)
    assert kfd.found(GPUS, str(sys)) == GpuHolders()


def test_what_a_process_holds_through_further_contexts_is_added(sys: Path) -> None:
    process(sys, "4711", 0, 4096, 0)
    process(sys, "4711/context_1", 8192, 1024, 0, queues=(2,))
    found = kfd.found(GPUS, str(sys))
    memory = {it.gpu[1]: it.memory_bytes for it in found.holdings}
    assert memory == {0: 8192, 1: 5120, 2: 0}


def test_what_costs_the_process_time_to_answer_is_not_read(
    sys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(sys, "4711", 0, 4096, 0)
    put(sys / KFD / f"proc/4711/sdma_{IDS[1]}", 7)
    read: list[str] = []

    def noted(path: str) -> str:
        read.append(path.rpartition("/")[2])
        return text(path)

    monkeypatch.setattr(kfd, "text", noted)
    assert kfd.found(GPUS, str(sys)).holdings
    assert f"vram_{IDS[1]}" in read
    assert f"sdma_{IDS[1]}" not in read


def test_a_process_that_ends_meanwhile_uses_nothing(sys: Path) -> None:
    """Its folder is there yet and its files are not."""
    (sys / KFD / "proc/4711").mkdir()
    process(sys, "4712", 0, 1, 0)
    (sys / KFD / f"proc/4712/vram_{IDS[1]}").write_text("")
    assert kfd.found(GPUS, str(sys)) == GpuHolders()


def test_partitions_of_one_device_are_told_apart(sys: Path) -> None:
    process(sys, "4711", 0, 0, 4096)
    parts = tuple(replace(gpu, pci_bus_id="0000:01:00.0") for gpu in GPUS)
    assert kfd.found(parts, str(sys)).holdings == (Holding(4711, ("amd", 2), 4096),)


def test_of_a_gpu_that_kfd_does_not_list_nothing_is_known(sys: Path) -> None:
    process(sys, "4711", 1, 0, 0)
    hidden = Gpu(3, "amd", "0000:09:00.0", numa_node=0)
    found = kfd.found((*GPUS, hidden), str(sys))
    assert found == GpuHolders((Holding(4711, ("amd", 0), 1),), {("amd", 3): NOT_LISTED})


def test_without_kfds_list_of_processes_nothing_is_known(tmp_path: Path) -> None:
    assert kfd.found(GPUS, str(tmp_path)) == GpuHolders((), {gpu.key: NO_KFD for gpu in GPUS})


def test_a_machine_without_amds_gpus_is_not_asked(tmp_path: Path) -> None:
    assert kfd.found((), str(tmp_path)) == GpuHolders()
