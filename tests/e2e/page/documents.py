"""Documents of `GET /audit` for the page: of so many processes, some far, waiting or orphans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from affinityd.audit import verdict
from affinityd.audit.document import (
    AuditDocument,
    AuditGpuDocument,
    AuditJobDocument,
    AuditMemoryDocument,
    AuditProcessDocument,
    AuditThreadDocument,
    AuditWaitsDocument,
    GpuBesideDocument,
)
from affinityd.cpuset import format_list
from affinityd.topology.model import Topology
from affinityd.topology.nearness import CAUSES, PLACEMENTS

PIN = "GPU 0 is on node 3, near CPUs 48-63,176-191, and its cpuset has CPUs there; {} fixes it now"
KILL = "it has used no CPU time for 812 s: check what it is, then end it: kill {}"


def with_gpus(topology: Topology, number: int) -> Topology:
    """Return a machine with so many of its GPUs, again and again."""
    few = len(topology.gpus)
    if number <= few:
        return replace(topology, gpus=topology.gpus[:number])
    gpus = tuple(
        replace(
            topology.gpus[place % few],
            index=place,
            pci_bus_id=f"{place // 32:04x}:{place % 32 + 32:02x}:00.0",
            uuid=f"GPU-{place:08x}-51aa-9d02-4c1e-0b7de3f1a001",
        )
        for place in range(number)
    )
    return replace(topology, gpus=gpus, nics=())


def process(pid: int, gpu: int, name: str = "python3") -> AuditProcessDocument:
    """Return a process near its GPU, of a Slurm job."""
    return AuditProcessDocument(
        pid=pid,
        name=name,
        uid=1000 + gpu % 3,
        parent=1,
        state="S",
        vendor="nvidia",
        gpu=gpu,
        gpus_beside=[],
        holds_gpu=True,
        gpu_memory_bytes=40 * 2**30,
        mig=None,
        job=AuditJobDocument("slurm", str(4711 + gpu), "0"),
        container=None,
        pod=None,
        cpuset="0-255",
        placement="local",
        cause=None,
        remedy=None,
        daemon=False,
        orphan=None,
        threads=[AuditThreadDocument(pid, name, "48-63,176-191", 50, "local", pinned_itself=False)],
        waits=AuditWaitsDocument(15.0, 0.0, {}, None, None),
        host_memory=_memory(near=60 * 2**30, far=0),
    )


def far(it: AuditProcessDocument) -> AuditProcessDocument:
    """Return the process on the other package, with its memory."""
    threads = [replace(one, cpulist="0-15", last_cpu=3, placement="remote") for one in it.threads]
    return replace(
        it,
        placement="remote",
        cause="mask",
        remedy=PIN.format(f"affinityd pin --tree --gpus GPU-8a1f0c3e {it.pid}"),
        threads=threads,
        host_memory=_memory(near=20 * 2**30, far=44 * 2**30),
    )


def orphan(it: AuditProcessDocument) -> AuditProcessDocument:
    return replace(it, orphan="its Slurm job has ended", remedy=KILL.format(it.pid))


def waiting(it: AuditProcessDocument) -> AuditProcessDocument:
    waits = AuditWaitsDocument(
        15.0, 12.3, {"own_threads": 12.3}, "own_threads", "set OMP_NUM_THREADS=16"
    )
    return replace(it, waits=waits)


def beside(it: AuditProcessDocument, gpu: int) -> AuditProcessDocument:
    return replace(it, gpus_beside=[GpuBesideDocument("nvidia", gpu)])


def several(number: int, gpus: int) -> list[AuditProcessDocument]:
    """Return so many: GPU 0's are far, 1's orphans, 2's wait, and few alike ones elsewhere."""
    kinds = {0: far, 1: orphan, 2: waiting}
    made = []
    for place in range(number):
        gpu = place % max(1, gpus - 1)  # the last GPU is idle
        name = "python3" if place % 5 else f"dataloader{place % 40}"
        it = process(10_000 + place, gpu, name)
        made.append(kinds[gpu](it) if gpu in kinds and place < 4 * gpus else it)
    return made


def audit(
    topology: Topology,
    processes: Sequence[AuditProcessDocument],
    *,
    sees: str = "all",
    age: float = 4.0,
) -> AuditDocument:
    """Return the document of these processes, as the daemon would make it."""
    gpus = [
        _gpu(topology, gpu.index, [it for it in processes if it.gpu == gpu.index])
        for gpu in topology.gpus
    ]
    now = datetime.now(timezone.utc).timestamp() - age
    return AuditDocument(
        node=topology.name,
        time=datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds"),
        seconds=0.2,
        sees=sees,
        gpus=gpus,
        pin_overlap="",
        skipped=0,
        numa_balancing=0,
        notices=[],
        verdict=list(_verdict(gpus, processes, sees)),
        processes=None if sees == "counts" else list(processes),
    )


def _state(processes: Sequence[AuditProcessDocument]) -> str:
    if any(it.cause for it in processes):
        return verdict.FAR
    if any(it.orphan for it in processes):
        return verdict.ORPHAN
    if any(it.waits and it.waits.waited > 1 for it in processes):
        return verdict.WAITING
    return verdict.NEAR if processes else verdict.IDLE


def _gpu(
    topology: Topology, index: int, processes: Sequence[AuditProcessDocument]
) -> AuditGpuDocument:
    gpu, state = topology.gpus[index], _state(processes)
    placements = Counter(it.placement for it in processes)
    causes = Counter(it.cause for it in processes if it.cause)
    memory = [it.host_memory.placed_bytes for it in processes if it.host_memory]
    history = "." * 12 + "i" * 18 + "n" * 20 + verdict.LETTERS[state] * 10
    return AuditGpuDocument(
        vendor=gpu.vendor,
        index=index,
        uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        near=format_list(topology.cpus_of_node(gpu.numa_node)),
        audited=True,
        unknown=None,
        processes={it: placements[it] for it in PLACEMENTS},
        threads={"local": len(processes)},
        mismatch={it: causes[it] for it in CAUSES},
        orphans=sum(it.orphan is not None for it in processes),
        cpu_seconds=8123.0 if processes else 0.0,
        remote_cpu_seconds=6011.0 if causes else 0.0,
        wait_seconds={"own_threads": 341.0 if state == verdict.WAITING else 0.2, "neighbor": 3.0},
        host_memory_bytes={it: sum(one[it] for one in memory) for it in ("near", "far", "unknown")},
        host_memory_pinned_far_bytes=2**33 if causes else 0,
        state=state,
        history=history,
    )


def _verdict(
    gpus: Sequence[AuditGpuDocument], processes: Sequence[AuditProcessDocument], sees: str
) -> list[verdict.Finding]:
    sentences = {state: many for state, (_, many, _) in verdict.FINDINGS.items()}
    found = []
    for state, words in sentences.items():
        concerned = [it for it in gpus if it.state == state]
        if concerned:
            first = next(it for it in processes if it.gpu == concerned[0].index)
            cure = first.waits.remedy if state == verdict.WAITING and first.waits else first.remedy
            text = f"{len(concerned)} of {len(gpus)} GPUs {words}"
            found.append(verdict.Finding(state, text, None if sees == "counts" else cure))
    idle = "no process uses a GPU" if gpus else "there is no GPU here"
    return found or [verdict.Finding(verdict.IDLE, idle, None)]


def _memory(near: int, far: int) -> AuditMemoryDocument:
    placed = {"near": near, "far": far, "unknown": 0}
    move = "affinityd pin --memory moves it" if far else None
    return AuditMemoryDocument(placed, {}, 0, None, [1] if far else [], [], None, move)
