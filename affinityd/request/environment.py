"""The variables of launchers, schedulers, drivers and communication libraries. Pure.

Scripts and commands send them unchanged to the daemon, as `env=NAME=VALUE`; task.py says what they
mean for a plan.

Sources: CUDA C++ Programming Guide "CUDA Environment Variables"; ROCm "GPU isolation techniques";
PyTorch "torchrun: Environment Variables"; mpirun(1) of Open MPI; Intel MPI and MPICH Hydra; Cray
PALS; flux-run(1); srun(1) and sbatch(1) "OUTPUT ENVIRONMENT VARIABLES"; of UCX, NVSHMEM, NCCL and
UCCL their pages on environment variables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

from affinityd.config import CHOOSE_GPU, CPUS, GPU_ORDER, PARAMETER_VARIABLES, YES
from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.text import quote, whole_number

Environment = Mapping[str, str]
Pairs = Sequence[tuple[str, str]]  #: a query: names and values of parameters

CUDA = "CUDA_VISIBLE_DEVICES"
ASCEND = "ASCEND_RT_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
ZE_MASK = "ZE_AFFINITY_MASK"
ZE_HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
DEVICE_ORDER = "CUDA_DEVICE_ORDER"
BUS_ORDER = "PCI_BUS_ID"
#: Each vendor's visible-device variables. ROCR's filters first, then HIP's indexes what is left.
VISIBLE = {"nvidia": (CUDA,), "amd": (ROCR, HIP), "huawei": (ASCEND,), "8086": (ZE_MASK,)}
VISIBLE_NAMES = tuple(chain.from_iterable(VISIBLE.values()))
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"  #: the MPS daemon's folder, set for its clients
MPS_LIST = "AFFINITYD_MPS_DEVICES"  #: CUDA_VISIBLE_DEVICES of the MPS daemon
MPS_UNKNOWN = "unknown"  #: the MPS daemon belongs to another user
#: Vendors' variables that choose devices, maybe by number, in an order that affinityd does not
#: know.
RENUMBERING = {"1da3": "HABANA_VISIBLE_MODULES", "8086": "ONEAPI_DEVICE_SELECTOR"}
#: Variables that concern a plan without being parameters of it.
OF_PLAN = (CPUS, CHOOSE_GPU, GPU_ORDER)

ENV = "env"  #: the parameter that passes a variable as NAME=VALUE
MAX_ENTRIES = 256  #: most ranks, or GPUs, on a node
SLURM_JOB = "SLURM_JOB_ID"
SLURM_TASK = "SLURM_LOCALID"
FLUX_TASK = "FLUX_TASK_LOCAL_ID"
LOCAL_RANK = "LOCAL_RANK"
#: Launchers: variable of the local rank → variables of the number of ranks. The launcher nearest
#: to the process comes first: torchrun runs under srun, and mpirun's ranks inherit srun's
#: variables.
LAUNCHERS = {
    LOCAL_RANK: ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),  # torchrun and accelerate; then deepspeed
    "OMPI_COMM_WORLD_LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    "MPI_LOCALRANKID": ("MPI_LOCALNRANKS",),
    "PMI_LOCAL_RANK": ("PMI_LOCAL_SIZE",),
    "PALS_LOCAL_RANKID": ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
    "MV2_COMM_WORLD_LOCAL_RANK": ("MV2_COMM_WORLD_LOCAL_SIZE",),
    "JSM_NAMESPACE_LOCAL_RANK": ("JSM_NAMESPACE_LOCAL_SIZE",),
    "HOROVOD_LOCAL_RANK": ("HOROVOD_LOCAL_SIZE",),
    FLUX_TASK: ("FLUX_JOB_SIZE",),
    SLURM_TASK: (),
}
#: Variable of a launcher's local rank → how to tell the launcher not to bind its ranks.
UNBINDING = {
    "LOCAL_RANK": "torchrun without --numa-binding, deepspeed without --bind_cores_to_rank",
    "OMPI_COMM_WORLD_LOCAL_RANK": "mpirun --bind-to none",
    "MPI_LOCALRANKID": "mpiexec -bind-to none (Intel MPI: I_MPI_PIN=0)",
    "PMI_LOCAL_RANK": "mpiexec -bind-to none",
    "PALS_LOCAL_RANKID": "mpiexec --cpu-bind none",
    "MV2_COMM_WORLD_LOCAL_RANK": "MV2_ENABLE_AFFINITY=0",
    "JSM_NAMESPACE_LOCAL_RANK": "jsrun --bind none",
    FLUX_TASK: "flux run -o cpu-affinity=off",
}
TORCHRUN = "TORCHELASTIC_RUN_ID"  #: set by torchrun for each of its workers
#: Slurm's steps from this number on are not started by srun: interactive, batch, extern
#: (slurm.h).
SLURM_SPECIAL_STEP = 0xFFFFFFFA

#: The CPUs that a process may use, without a pin: `exec` exports them, and commands send them.
ALLOWED = "AFFINITYD_ALLOWED"
CPULIST = "AFFINITYD_CPULIST"  #: the CPUs that a pin has given
#: The CPUs to which a launcher has bound a rank; commands send them to the daemon.
SLICE = "AFFINITYD_SLICE"
JOB_CPUS = "AFFINITYD_JOB_CPUS"  #: the number of a container's CPUs: its request, or its limit
#: The GPUs that were chosen for a process, as the node numbers them; commands send them for this
#: task.
GPUS = "AFFINITYD_GPUS"
PINNED_FOR = "AFFINITYD_PINNED_FOR"  #: the task that a process was pinned for
JOB_GPUS = "AFFINITYD_JOB_GPUS"  #: the GPUs of a job on this node, in the node's numbering
NVIDIA_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
#: Variables by which a process may number its GPUs differently from the node.
OF_NUMBERS = (DEVICE_ORDER, MPS_PIPE, MPS_LIST, ZE_HIERARCHY, *RENUMBERING.values())
#: The variables about a process's task, which commands send to the daemon.
SENT = (
    *LAUNCHERS,
    *dict.fromkeys(chain.from_iterable(LAUNCHERS.values())),  # two launchers share a variable
    "FLUX_JOB_NNODES",
    SLURM_JOB,
    "SLURM_STEP_ID",
    "SLURM_NTASKS",
    "SLURM_GTIDS",
    "SLURM_JOB_GPUS",
    "SLURM_GPUS_ON_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NODEID",
    "SLURM_CPU_BIND_TYPE",
    "SLURM_CPU_BIND_LIST",
    "SLURM_MEM_BIND_TYPE",
    "SLURM_TRES_BIND",
    JOB_CPUS,
    JOB_GPUS,
    CPULIST,
    ALLOWED,
    TORCHRUN,
    GPUS,
    SLICE,
    NVIDIA_VISIBLE,
    *VISIBLE_NAMES,
    *OF_PLAN,
    *OF_NUMBERS,
)
#: Variables with a list of CPUs or of nodes; lists in other variables are of tasks or GPUs.
LONG_LISTS = {ALLOWED, CPULIST, SLICE, "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"}
#: All names that `env` may have: commands send only SENT, scripts send all of them.
READ = frozenset((*SENT, *PARAMETER_VARIABLES.values()))

#: Variables by which libraries and launchers undo a pin, each with the setting that prevents it.
REBINDS = {
    "GOMP_CPU_AFFINITY": "OMP_PROC_BIND=false",
    "OMP_PROC_BIND": "OMP_PROC_BIND=false",
    "OMP_PLACES": "OMP_PROC_BIND=false",
    "KMP_AFFINITY": "KMP_AFFINITY=none",
    "ACCELERATE_CPU_AFFINITY": "ACCELERATE_CPU_AFFINITY=0",
    "AMD_CPU_AFFINITY": "AMD_CPU_AFFINITY=0",
    "TLLM_NUMA_AWARE_WORKER_AFFINITY": "TLLM_NUMA_AWARE_WORKER_AFFINITY=0",
    "NRL_GPU_CPU_AFFINITY_FILE": "NRL_DISABLE_NUMA_BINDING=1",
}

#: Library → variable that selects its NICs.
NIC_VARIABLES = {
    "ucx": "UCX_NET_DEVICES",
    "nvshmem": "NVSHMEM_HCA_LIST",
    "uccl": "UCCL_P2P_RDMA_DEV",
    "nccl": "NCCL_IB_HCA",
}


class Rank:
    """A local rank: its number, the number of ranks (None: unknown), and its variable."""

    def __init__(self, number: int, size: int | None, variable: str) -> None:
        self.number = number
        self.size = size
        self.variable = variable


def gpus_in(value: str) -> int:
    """Return how many GPUs a value of `visible` names; the last of ROCm's variables decides."""
    return len(value.rpartition("=")[2].split(","))


def visible(environ: Environment, vendors: Collection[str] = ()) -> str | None:
    """Return the request's `visible`: the values of these vendors' variables; (): all vendors'.

    HIP reads CUDA's variable, too; Slurm sets both to the same value, which counts once.
    """
    for names in [VISIBLE[vendor] for vendor in VISIBLE if vendor in vendors or not vendors]:
        values = {name: environ[name] for name in names if name in environ}
        is_other = values.get(ROCR) != environ.get(CUDA)
        if HIP in names and vendors and not values.get(HIP) and is_other:
            values[HIP] = environ.get(CUDA, "")
        if not values.get(HIP, "all"):  # HIP treats an empty variable as unset
            del values[HIP]
        if values:
            return ";".join(
                text if name in {CUDA, ASCEND} else f"{name}={text}"
                for name, text in values.items()
            )
    return None


def local_rank(environ: Environment) -> Rank | None:
    """Return the local rank that the nearest launcher gave; None if no launcher gave a rank.

    If that launcher does not tell the number of ranks, a farther launcher with the same rank
    counts: a script under srun exports LOCAL_RANK=$SLURM_LOCALID. A number of 1 proves nothing: the
    process may be one of many ranks of a farther launcher. Raises InvalidRequestError.
    """
    ranks = list(_ranks(environ))
    if not ranks:
        return None
    nearest = ranks[0]
    of_torchrun = nearest.variable == LOCAL_RANK and TORCHRUN in environ
    of_several = [rank for rank in ranks if (rank.size or 0) > 1]
    if nearest.size == 1 and of_several and not of_torchrun:
        nearest = of_several[0]
    no_mpi = (LOCAL_RANK, FLUX_TASK, SLURM_TASK)  # of MPI launchers, the nearer one is unknown
    among = [rank for rank in ranks if rank.variable not in no_mpi and rank.size != 1]
    for rank in among[1:]:
        sizes = {rank.size, among[0].size} - {None}
        if rank.number != among[0].number or len(sizes) > 1:
            raise _contradiction(among[0], rank)
    for rank in of_several:
        if rank.number != nearest.number:
            if rank.size == nearest.size and not of_torchrun:
                raise _contradiction(nearest, rank)
            continue
        # A script may export the number of tasks as well; torchrun within a task has its own ranks.
        is_script_s = rank.variable == SLURM_TASK and rank.size == nearest.size
        if nearest.size is None or (is_script_s and TORCHRUN not in environ):
            return rank
    return nearest


def _contradiction(one: Rank, other: Rank) -> InvalidRequestError:
    return InvalidRequestError(
        f"{one.variable}={one.number} and {other.variable}={other.number} are of two launchers, "
        "and it is not known which is nearer: unset one variable"
    )


def variables_of_rank(environ: Environment) -> tuple[str, ...]:
    """Return the variables that name the local rank, also those that a script exported."""
    rank = local_rank(environ)
    if rank is None:
        return ()
    sizes = {None, rank.size}
    ranks = [other for other in _ranks(environ) if other.number == rank.number]
    return tuple(other.variable for other in ranks if other.size in sizes)


def number(text: str | None) -> int | None:
    """Return the number in a variable; None for any other text."""
    return whole_number(text, 2**32 - 1)  # the largest number that Slurm and launchers write


def _ranks(environ: Environment) -> Iterator[Rank]:
    for variable, sizes in LAUNCHERS.items():
        rank = _count(environ, variable)
        if rank is None:
            continue
        size = None
        if variable == SLURM_TASK:
            step = number(environ.get("SLURM_STEP_ID"))
            in_no_step = SLURM_JOB in environ and step is None
            if rank == 0 and (in_no_step or (step or 0) >= SLURM_SPECIAL_STEP):
                continue  # Slurm also numbers a batch script and an interactive shell
            tasks = slurm_tasks(environ)
            size = tasks if tasks is not None and rank < tasks else None
        elif variable != FLUX_TASK or environ.get("FLUX_JOB_NNODES") == "1":  # else the job's
            size = next((_count(environ, name) for name in sizes if environ.get(name)), None)
        if size is not None and rank >= size:
            line = f"{variable}={rank}, but there are {size} ranks here: unset it"
            raise InvalidRequestError(line)
        yield Rank(rank, size, variable)


def _count(environ: Environment, name: str) -> int | None:
    value = environ.get(name)
    if not value or value == "-1":  # trainers write -1 for no rank
        return None
    count = number(value)
    if count is None:
        raise InvalidRequestError(f"{name}={quote(value)} is no number: unset it")
    return count


def is_alone(environ: Environment, rank: Rank) -> bool:
    """Return whether a task is its launcher's only one here: all GPUs that it sees are its own.

    If no launcher tells the number of tasks, the first task counts as alone; but a worker of
    torchrun does not, as LOCAL_RANK says which GPU it has.
    """
    if rank.variable == LOCAL_RANK and TORCHRUN in environ:
        return False
    return rank.size == 1 or (rank.size is None and rank.number == 0)


def slurm_tasks(environ: Environment) -> int | None:
    """Return how many tasks a Slurm step has here, by SLURM_GTIDS or a list like 4(x2),3."""
    listed = environ.get("SLURM_GTIDS")
    if listed:
        tasks_here = listed.split(",")
        return None if None in map(number, tasks_here) else len(tasks_here)
    node = number(environ.get("SLURM_NODEID"))
    if node is None:
        return None
    for entry in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        tasks, is_repeated, nodes_alike = entry.partition("(x")
        nodes = number(nodes_alike.removesuffix(")")) if is_repeated else 1
        if nodes is None:
            return None
        if node < nodes:
            return number(tasks)
        node -= nodes
    return None


def chooses_gpu(environ: Environment) -> bool:
    """Return whether to choose a GPU: AFFINITYD_CHOOSE_GPU is set, and nothing names a GPU yet."""
    word = environ.get(CHOOSE_GPU, "").lower()
    return word in YES and environ.keys().isdisjoint((LOCAL_RANK, GPUS))


def job_cpus(environ: Environment) -> int | None:
    """Return how many CPUs a job has on this node; None: unknown, or nodes differ."""
    by_node = environ.get("SLURM_JOB_CPUS_PER_NODE", "")
    return None if "," in by_node else number(by_node.partition("(")[0])


def cpus_to_plan_on(environ: Environment, mask: CpuSet) -> CpuSet:
    """Return a process's mask or, if affinityd set it, the CPUs that affinityd had planned on."""
    pinned = read_cpus(environ, CPULIST)
    allowed = read_cpus(environ, ALLOWED)
    if pinned == mask and pinned <= allowed:
        return allowed
    return mask


def read_cpus(environ: Environment, name: str) -> CpuSet:
    """Return the CPUs in a variable; empty if it is not set, or malformed."""
    try:
        return parse_list(environ.get(name, ""))
    except ValueError:
        return frozenset()


def task_of(environ: Environment) -> str:
    """Return a process's task as text: step, ranks, GPUs and settings, by the variables.

    A pin is for one task; ranks of a launcher that inherit the pin's variables are other tasks. A
    rank's script may export the rank's number by another name. Raises InvalidRequestError.
    """
    again = variables_of_rank(environ)[:-1]
    launchers = [name for name in LAUNCHERS if name not in again]
    of_step = (SLURM_JOB, "SLURM_STEP_ID")
    names = (*of_step, *launchers, *VISIBLE_NAMES, *OF_PLAN, *PARAMETER_VARIABLES.values())
    return " ".join(f"{name}={environ[name]}" for name in names if environ.get(name))


def nic_value(library: str, ports: Sequence[str]) -> str:
    """Return the value of a library's NIC variable for ports, each like `mlx5_2:1`."""
    if library == "uccl":
        return ",".join(dict.fromkeys(port.partition(":")[0] for port in ports))
    names = ",".join(ports)
    if library == "nccl":
        return f"={names}"
    return names
