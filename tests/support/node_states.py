"""Documents of `GET /audit` on a DGX A100 with made-up processes: far, waiting and orphaned."""

import time
from collections.abc import Sequence
from dataclasses import replace

from affinityd.audit import findings
from affinityd.audit.document import AuditDocument, document
from affinityd.audit.memory import HostMemory
from affinityd.audit.model import AuditedProcess, CpuTime, Job, Membership
from affinityd.audit.waits import Waits
from affinityd.cpuset import parse_list
from affinityd.discovery.nvml import NvmlLoad
from affinityd.linux.resident import ANONYMOUS, ResidentMemory
from affinityd.topology.model import Topology
from affinityd.topology.nearness import REMOTE
from tests.support import audit_facts
from tests.support.audit_facts import audited, scan_of

NEAR, GIB = "48-63,176-191", 2**30  #: CPUs near GPU 0, which is on node 3
RUNNABLE = "R"  #: the state of a process that waits for a CPU


def with_gpus(topology: Topology, number: int) -> Topology:
    """Return the machine with `number` GPUs; if it has fewer, they are repeated."""
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


def process(pid: int, gpu: int, name: str = "python3", job: int | None = None) -> AuditedProcess:
    """Return a process near its GPU, of a Slurm job."""
    its = Membership(Job("slurm", f"{job or 4711 + gpu}"), step="0")
    facts = audit_facts.process(
        NEAR, pid=pid, gpu=("nvidia", gpu), name=name, uid=1000 + gpu % 3, membership=its
    )
    return audited(replace(facts, cpuset=parse_list("0-255")), near=NEAR)


def far(it: AuditedProcess) -> AuditedProcess:
    """Return the process as if it had moved to the other package, with its memory."""
    facts = replace(it.facts, threads=audit_facts.process("0-15", pid=it.facts.pid).threads)
    return audited(facts, "remote", cause="mask", near=NEAR)


def orphan(it: AuditedProcess, why: str = "its Slurm job has ended") -> AuditedProcess:
    return replace(it, orphan=why)


def waiting(it: AuditedProcess) -> AuditedProcess:
    return replace(it, facts=replace(it.facts, state=RUNNABLE))


def beside(it: AuditedProcess, gpu: int) -> AuditedProcess:
    return replace(it, facts=replace(it.facts, beside=(("nvidia", gpu),)))


def several(number: int, gpus: int) -> list[AuditedProcess]:
    """Return processes: far ones on GPU 0, orphans on GPU 1, waiting ones on GPU 2, others near."""
    kinds = {0: far, 1: orphan, 2: waiting}
    made = []
    for place in range(number):
        gpu = place % max(1, gpus - 1)  # the last GPU is idle
        name = "python3" if place % 5 else f"dataloader{place % 40}"
        it = process(10_000 + place, gpu, name)
        made.append(kinds[gpu](it) if gpu in kinds and place < 4 * gpus else it)
    return made


def _time_in(state: str) -> CpuTime:
    remote = 6011.0 if state == REMOTE else 0.0
    return CpuTime(8123.0, remote, 341.0 if state == findings.WAITING else 3.0, 0.2)


def _memory(it: AuditedProcess) -> HostMemory:
    """Return 64 GiB of mostly far memory if the process is far, or else 60 GiB of near memory."""
    near, elsewhere = (20, 44) if it.cause else (60, 0)
    drawn = {(ANONYMOUS, 3): 10 * near, (ANONYMOUS, 1): 10 * elsewhere}  # pages
    locked = {"VmPin": GIB} if it.cause else {}
    resident = ResidentMemory({ANONYMOUS: (near + elsewhere) * GIB}, drawn, locked)
    return HostMemory(resident, frozenset({3}), frozenset({1}), it.placement)


def audit(
    topology: Topology,
    processes: Sequence[AuditedProcess],
    *,
    age: float = 4.0,
    lost: Sequence[int] = (),
) -> AuditDocument:
    """Return the document of a scan that found these processes `age` seconds ago.

    `lost` has the indices of GPUs that do not answer.
    """
    keys = frozenset(("nvidia", index) for index in lost)
    scan = replace(
        scan_of(topology, *processes),
        time=time.time() - age,
        waits={
            it.facts.pid: Waits(15.0, 12.3, 15.0 * len(parse_list(NEAR)), parse_list(NEAR))
            for it in processes
            if it.facts.state == RUNNABLE
        },
        memory={it.facts.pid: _memory(it) for it in processes},
        unknown=dict.fromkeys(keys, "NVML: GPU is lost"),
        lost=keys,
        loads={it.key: NvmlLoad(87, 30 * GIB, 80 * GIB) for it in topology.gpus},
    )
    states = findings.states(scan)
    scan = replace(
        scan,
        gpu_time=dict.fromkeys(states, CpuTime(18123.0, 9876.0, 999.0, 0.2)),
        last_hour={key: _time_in(state) for key, state in states.items()},
        history={
            key: "." * 12 + "i" * 18 + "l" * 20 + findings.LETTERS[it] * 10
            for key, it in states.items()
        },
    )
    return document(topology, scan, names_all=True)
