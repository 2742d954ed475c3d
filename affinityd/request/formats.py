"""The formats of a plan: a JSON document, or lines for shells and tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from affinityd.config import ON
from affinityd.cpuset import CpuSet, format_list, format_mask
from affinityd.request.environment import JOB_GPUS, NIC_VARIABLES, nic_value
from affinityd.request.process_plan import FIELDS, REPLAYED
from affinityd.request.resolve import Reply, process_plan


def _json(reply: Reply) -> Iterator[str]:
    from affinityd.json_codec import dumps  # noqa: PLC0415 - a rank needs no document
    from affinityd.request.document import document  # noqa: PLC0415

    yield dumps(document(reply), ensure_ascii=False)


def _shell(reply: Reply) -> Iterator[str]:
    """Yield NAME=value lines; no value has a character that a shell or TaskProlog would change."""
    plan = process_plan(reply)
    for field, (variable, _, write) in FIELDS.items():
        value = getattr(plan, field)
        if value is not None and (field != "switch" or value != ON):
            yield f"{variable}={write(value)}"
    if plan.replayed:
        yield f"{REPLAYED}=yes"
    if reply.request.task.job is not None:
        yield f"{JOB_GPUS}={','.join(reply.request.task.job)}"
    yield from map("=".join, plan.visible.items())
    for rank in reply.ranks:
        yield f"AFFINITYD_RANK_{rank.rank}_CPULIST={format_list(rank.cpus)}"
        yield f"AFFINITYD_RANK_{rank.rank}_LOCALITY={rank.locality}"


def _nics(reply: Reply) -> Iterator[str]:
    if not reply.rdma:
        return
    for library in ("ucx", "nvshmem", "uccl"):  # without nccl, which chooses near devices itself
        yield f"{NIC_VARIABLES[library]}={nic_value(library, reply.rdma)}"


def _map_gpu(reply: Reply) -> Iterator[str]:
    gpus: dict[int, list[str]] = {}
    for place, rank in enumerate(reply.plan.ranks):
        name = f"{rank.gpu.index}"
        if reply.request.choose:
            name = reply.entries[place]
        gpus.setdefault(rank.rank, []).append(name)
    if all(len(names) == 1 for names in gpus.values()):
        yield f"--gpu-bind=map_gpu:{','.join(names[0] for names in gpus.values())}"
    else:
        masks = [format_mask(map(int, names)) for names in gpus.values()]
        yield f"--gpu-bind=mask_gpu:{','.join(masks)}"


def _each(write: Callable[[CpuSet], str]) -> Callable[[Reply], Iterator[str]]:
    def write_each(reply: Reply) -> Iterator[str]:
        for rank in reply.ranks:
            yield write(rank.cpus)

    return write_each


def _numactl(cpus: CpuSet) -> str:
    return f"--physcpubind={format_list(cpus)} --localalloc"


_WRITERS: dict[str, Callable[[Reply], Iterator[str]]] = {
    "json": _json,
    "cpulist": _each(format_list),
    "mask": _each(format_mask),
    "numactl": _each(_numactl),
    "shell": _shell,
    "nics": _nics,
    "map_gpu": _map_gpu,
}


def render(reply: Reply, format_name: str) -> str:
    """Return a plan in one of the request's formats, ended by a newline."""
    return "".join(f"{line}\n" for line in _WRITERS[format_name](reply))
