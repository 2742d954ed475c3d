from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.model import GpuHolders, Holding
from affinityd.audit.sources.holders import NO_KFD, NOT_LISTED, kfd_holders
from affinityd.topology.model import Gpu
from tests.support.machines.sysfs_tree import put

KFD = "class/kfd/kfd"

#: KFD's gpu_id of each GPU, in the order of its nodes; they are hashes of no order.
IDS = (50432, 3112, 63091)
Held = dict[tuple[str, int], int]
FIRST, SECOND, THIRD = (("amd", index) for index in range(3))
GPUS = tuple(
    Gpu(index, "amd", f"0000:{index + 1:02x}:00.0", numa_node=0, render_minor=128 + index)
    for index in range(3)
)


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """Return a /sys whose KFD has a node of CPUs and three GPUs, and no process."""
    minors = {0: 0, **{number: gpu.render_minor for number, gpu in zip(IDS, GPUS, strict=True)}}
    for node, (number, minor) in enumerate(minors.items()):
        folder = tmp_path / KFD / f"topology/nodes/{node}"
        put(folder / "gpu_id", number)
        put(folder / "properties", f"simd_count 440\ndrm_render_minor {minor}")
    (tmp_path / KFD / "proc").mkdir()
    return tmp_path


def process(sys: Path, pid: str, *memory: int | str, queues: tuple[int, ...] = ()) -> None:
    """Write the files of a process: the memory that it holds in each GPU, its queues' GPUs."""
    folder = sys / KFD / "proc" / pid
    put(folder / "pasid", 32770)
    (folder / "queues").mkdir()
    for number, size in zip(IDS, memory, strict=True):
        put(folder / f"vram_{number}", size)
        put(folder / f"sdma_{number}", 7)
    for queue, gpu in enumerate(queues):
        put(folder / f"queues/{queue}/gpuid", IDS[gpu])


@pytest.mark.parametrize(
    ("memory", "queues", "holdings"),
    [
        ((0, 4096, 1 << 35), (), {SECOND: 4096, THIRD: 1 << 35}),
        ((0, 0, 0), (1,), {SECOND: 0}),
        ((0, 0, 0), (), {}),  # it only opened the driver
        (("", "", ""), (), {}),  # it ends meanwhile
    ],
)
def test_a_process_uses_the_gpus_in_which_it_has_memory_or_a_queue(
    sys: Path, memory: tuple[int | str, ...], queues: tuple[int, ...], holdings: Held
) -> None:
    process(sys, "4711", *memory, queues=queues)
    (sys / KFD / "proc/4712").mkdir()  # its files are gone, and its folder is not yet
    found = kfd_holders(GPUS, str(sys))
    assert set(found.holdings) == {Holding(4711, *it) for it in holdings.items()}
    assert found.unknown == {}
    # Partitions of one device are told apart by their render devices.
    parts = tuple(replace(gpu, pci_bus_id="0000:01:00.0") for gpu in GPUS)
    assert kfd_holders(parts, str(sys)) == found


def test_what_a_process_holds_through_further_contexts_is_added(sys: Path) -> None:
    process(sys, "4711", 0, 4096, 0)
    process(sys, "4711/context_1", 8192, 1024, 0, queues=(2,))
    memory = {it.gpu: it.memory_bytes for it in kfd_holders(GPUS, str(sys)).holdings}
    assert memory == {FIRST: 8192, SECOND: 5120, THIRD: 0}


def test_of_what_kfd_does_not_list_nothing_is_known(sys: Path) -> None:
    process(sys, "4711", 1, 0, 0)
    hidden = Gpu(3, "amd", "0000:09:00.0", numa_node=0)
    found = kfd_holders((*GPUS, hidden), str(sys))
    assert found == GpuHolders((Holding(4711, FIRST, 1),), {hidden.key: NOT_LISTED})
    assert kfd_holders(GPUS, "/none") == GpuHolders(unknown={gpu.key: NO_KFD for gpu in GPUS})
    assert kfd_holders((), "/none") == GpuHolders()
