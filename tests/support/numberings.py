"""The tables of how processes number their GPUs, and the right outcome of each row.

For a row of numberings.tsv the right outcome is computed: the device that an index means in each
order in which the driver may have numbered its devices. If these are several devices on several
nodes, the outcome is unknown. A row of numberings_held_out.tsv states the right outcome.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from affinityd.cpuset import format_list
from affinityd.errors import AffinityError, NoSuchGpuError
from affinityd.request.resolve import Reply
from affinityd.topology.model import Gpu, MigInstance, Topology
from tests.support.asking import codes
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.tables import table, words

UUIDS = [f"GPU-{index}{index}" for index in range(8)]
DGX = machine("dgx-a100")
NODES = {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"}

# Outcomes. Others are the indices of the GPUs, or "node" and a node if only the node is known.
NONE, UNKNOWN = "none", "?"
ALONE = "alone"


def with_gpus(topology: Topology, **facts: Sequence[object]) -> Topology:
    """Return a machine with these facts added to each of its GPUs."""
    facts = {"uuid": UUIDS, **facts}
    gpus = [
        replace(gpu, **{name: each[place] for name, each in facts.items()})  # type: ignore[arg-type]
        for place, gpu in enumerate(topology.gpus)
    ]
    return replace(topology, gpus=tuple(gpus))


TWO_MODELS = ["10de:2330"] * 4 + ["10de:20b0"] * 4
MIG = (MigInstance("MIG-1"), MigInstance("MIG-2"))
DIVIDED = [MIG if index == 5 else () for index in range(8)]
NO_UUID = [None] * 8
MACHINES = {
    "dgx": with_gpus(DGX, minor=range(8)),
    "reversed": with_gpus(DGX, minor=range(7, -1, -1)),
    "lost": with_gpus(DGX, minor=[0, 1, 2, None, 4, 5, 6, 7]),
    "docker": with_gpus(DGX, minor=[None, None, None, 3, 4, None, None, None]),
    "mixed": with_gpus(DGX, minor=range(8), pci_id=TWO_MODELS),
    "alike": with_gpus(DGX, minor=range(8), pci_id=TWO_MODELS, numa_node=[3] * 8),
    "mig": with_gpus(DGX, minor=range(8), mig=DIVIDED),
    "mig without NVML": with_gpus(
        DGX, minor=range(8), is_divided=[index == 5 for index in range(8)]
    ),
    "lost and mig": with_gpus(DGX, minor=[*range(7), None], mig=DIVIDED),
    "mi250x": with_gpus(
        machine("mi250x"),
        render_minor=range(128, 136),
        uuid=[f"GPU-{1 + index:x}{'0' * 15}" for index in range(8)],
    ),
    "ascend-910b": with_gpus(machine("ascend-910b"), uuid=NO_UUID),
    "gaudi": with_gpus(
        made(NODES, [3, 3, 1, 1, 0, 0, 2, 2]), vendor=["1da3"] * 8, minor=range(8), uuid=NO_UUID
    ),
    "max": with_gpus(
        made(NODES, [0, 1, 2]),
        vendor=["8086"] * 3,
        pci_id=["8086:0bd5"] * 3,
        minor=[None] * 3,
        render_minor=range(128, 131),
        uuid=NO_UUID,
    ),
}
#: Machines on which no index is resolved if any is unknown.
LEFT_SOONER = {"lost", "mig", "mig without NVML", "lost and mig"}
KINDS = {"nvidia": "minor", "huawei": "davinci", "1da3": "accel"}  #: others: drm


@dataclass(frozen=True)
class Case:
    """A process, and the right outcomes."""

    name: str
    machine: str
    files: tuple[int, ...] | None  #: the numbers of the device files; None: unknown
    environ: Mapping[str, str]
    right: frozenset[str]

    @property
    def topology(self) -> Topology:
        return MACHINES[self.machine]

    @property
    def granted(self) -> list[str]:
        """The device files in the form of a request."""
        kind = KINDS.get(self.topology.gpus[0].vendor, "drm")
        return [f"{kind}:{number}" for number in self.files or ()]


def held_out() -> Iterator[Case]:
    """Yield the rows of numberings_held_out.tsv, which state the right outcome."""
    for name, machine_name, files, variables, expected in table("numberings_held_out.tsv"):
        yield _case(name, machine_name, files, variables, frozenset([expected]))


def numberings() -> Iterator[Case]:
    """Yield eight ranks and a lone process for each row of numberings.tsv."""
    for name, machine_name, files, variables in table("numberings.tsv"):
        case = _case(name, machine_name, files, variables, frozenset())
        for rank in (*range(8), None):
            here = {"LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": "8"} if rank is not None else {}
            yield replace(
                case,
                name=f"{name}, {ALONE if rank is None else rank}",
                environ={**case.environ, **here},
                right=_right(case, rank),
            )


def _case(name: str, machine_name: str, files: str, variables: str, right: frozenset[str]) -> Case:
    topology = MACHINES[machine_name]
    for gpu in topology.gpus:
        variables = variables.replace(f"${gpu.index}", gpu.uuid or "")
    numbers: tuple[int, ...] | None = None
    if files == "all":
        numbers = tuple(file_of(gpu) for gpu in topology.gpus)
    elif files != "-":
        first = 0 if topology.gpus[0].render_minor is None else 128
        numbers = tuple(first + int(number) for number in files.split(","))
    return Case(name, machine_name, numbers, words(variables), right)


def file_of(gpu: Gpu) -> int:
    """Return the number of a GPU's device file."""
    if gpu.render_minor is not None:
        return gpu.render_minor
    return gpu.index if gpu.minor is None else gpu.minor


def outcome(reply: Reply | AffinityError) -> str:
    """Return the outcome of an answer, as the table writes it."""
    if isinstance(reply, NoSuchGpuError):
        return NONE
    if isinstance(reply, AffinityError):
        return UNKNOWN
    if "ambiguous_index" in codes(reply):
        return f"node {format_list({rank.gpu.numa_node or 0 for rank in reply.ranks})}"
    return format_list({rank.gpu.index for rank in reply.ranks})


def _right(case: Case, rank: int | None) -> frozenset[str]:
    """Return the right outcomes for one of eight ranks, or for a lone process if `rank` is None."""
    topology, orders = case.topology, _orders(case)
    may_be = {frozenset([order[(rank or 0) % len(order)]]) for order in orders}
    if rank is None:  # a lone process has the CPUs near all GPUs that it may see
        seen = {frozenset(order) for order in orders}
        may_be = {gpus for gpus in seen if not any(gpus < others for others in seen)}
    right = set()
    places = {frozenset(topology.gpus[index].numa_node or 0 for index in gpus) for gpus in may_be}
    if len(places) == 1:
        right |= {f"node {format_list(place)}" for place in places}
    if len(may_be) == 1:
        right |= {format_list(gpus) for gpus in may_be}
    if len(places) > 1 or case.machine in LEFT_SOONER:
        right.add(UNKNOWN)
    return frozenset(right)


def _selected(order: list[int], text: str) -> list[int]:
    """Return the devices that a list selects from devices in this order."""
    devices = []
    for entry in text.split(","):
        if entry.isdigit() and int(entry) < len(order):
            devices.append(order[int(entry)])
        elif entry.startswith("GPU-"):
            devices.append(int(entry.removeprefix("GPU-")[0]))
        else:
            break
    return devices


#: The visible-device variables that each vendor's driver reads, one after the other.
VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "huawei": ("ASCEND_RT_VISIBLE_DEVICES",),
    "8086": ("ZE_AFFINITY_MASK",),
}


def _lists(vendor: str, environ: Mapping[str, str]) -> list[str]:
    """Return the lists that the driver applies."""
    lists = [environ[name] for name in VARIABLES.get(vendor, ()) if environ.get(name)]
    if vendor == "8086":  # the order stays that of the driver, whatever the order of the mask
        lists = [",".join(sorted({tile[0] for tile in mask.split(",")})) for mask in lists]
    return lists


def _orders(case: Case) -> list[list[int]]:
    """Return each order in which the driver may number the GPUs that the process may see."""
    gpus, environ = case.topology.gpus, case.environ
    seen = [gpu.index for gpu in gpus if case.files is None or file_of(gpu) in case.files]
    if listed := environ.get("NVIDIA_VISIBLE_DEVICES"):
        seen = sorted(_selected([gpu.index for gpu in gpus], listed))
    if gpus[0].pci_id == "8086:0bd5" and "ZE_FLAT_DEVICE_HIERARCHY" not in environ:
        seen = [index for index in seen for _tile in range(2)]
    orders = [seen]
    models = {gpus[index].pci_id for index in seen}
    if len(models) > 1 and "CUDA_DEVICE_ORDER" not in environ:  # either model may be the faster
        fast_first = sorted(seen, key=lambda index: gpus[index].pci_id != "10de:2330")
        slow_first = sorted(seen, key=lambda index: gpus[index].pci_id != "10de:20b0")
        orders = [fast_first, slow_first]
    if any(gpu.vendor == "nvidia" and gpu.minor is None for gpu in gpus):
        orders.append([index for index in seen if gpus[index].minor is not None])
    mps = environ.get("AFFINITYD_MPS_DEVICES")
    selected_otherwise = environ.get("ONEAPI_DEVICE_SELECTOR", "level_zero:gpu") != "level_zero:gpu"
    is_unknown = mps == "unknown" or "CUDA_MPS_PIPE_DIRECTORY" in environ
    if is_unknown or selected_otherwise or "HABANA_VISIBLE_MODULES" in environ:
        orders += [[index] * len(seen) for index in seen]
    elif mps:  # if the list does not fit, it names other devices
        fits = all(len(_selected(order, mps)) == mps.count(",") + 1 for order in orders)
        unknown = [[index] * len(seen) for index in seen]
        orders = [_selected(order, mps) for order in orders] if fits else [*orders, *unknown]
    for text in _lists(gpus[0].vendor, environ):
        orders = [_selected(order, text) for order in orders]
    divided = [index for index in orders[0] if gpus[index].mig or gpus[index].is_divided]
    if divided and len(orders[0]) > 1:  # CUDA shows an instance, and no other GPU
        orders.append(divided * len(orders[0]))
    return orders
