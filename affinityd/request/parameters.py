"""The parameters of a plan: one table for the API, its OpenAPI document and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import InvalidRequestError, UnknownParameterError
from affinityd.planner.model import Options
from affinityd.planner.modes import MODES
from affinityd.request import parsers
from affinityd.text import quote

MAX_LENGTH = 32768  #: of a value, in characters; every second one of 8192 CPUs takes 20,000
#: Parameters about one task among others.
OF_TASKS = frozenset(("job", "gpu_bind", "cpu_bind", "step_gpus"))
FORMATS = ("json", "cpulist", "mask", "numactl", "shell", "lines", "nics", "vllm")


@dataclass(frozen=True)
class Request:
    """A request as understood; equal requests have equal answers."""

    gpus: tuple[str, ...] | None = None  #: None: all visible
    rank: tuple[int, ...] | None = None  #: None: all
    ranks: int | None = None  #: None: as many as `gpus`
    job: tuple[str, ...] | None = None  #: None: `gpus` are all that count
    gpu_bind: str = ""  #: how Slurm gave the ranks their GPUs
    cpu_bind: tuple[CpuSet, ...] = ()  #: the CPUs that Slurm gave each of the ranks
    step_gpus: int | None = None  #: how many the ranks have together; None: not known
    job_cpus: int | None = None  #: how many the job has on this node; None: not known
    task_cpus: parsers.TaskCpus | None = None  #: each task's request; None: unknown
    cpuset: CpuSet | None = None
    visible: str | None = None
    granted: str | None = None
    nvidia_visible: str | None = None  #: the variable of NVIDIA's container runtime
    observe: CpuSet | None = None  #: where the caller runs, and stays; None: it takes its plan
    nics: int | None = None  #: how many of each rank; None: its GPU's part
    whose: str = "caller"  #: "node": plan as for an unidentified caller
    format: str | None = None  #: None: the client's Accept header decides
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Parameter:
    """One parameter: how its text is read, and its help."""

    read: Callable[[str], Any]
    help: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})  #: of OpenAPI
    may_be_empty: bool = False


def parse_request(pairs: Iterable[tuple[str, str]]) -> Request:
    """Read (name, value) pairs. Raises InvalidRequestError, which names the first that is wrong."""
    values: dict[str, Any] = {}
    for name, text in pairs:
        parameter = PARAMETERS.get(name)
        if parameter is None:
            raise UnknownParameterError(f"{quote(name)} is no parameter; {_suggestion(name)}")
        if name in values:
            raise InvalidRequestError(f"{name} is given twice; give it once")
        if not text.strip() and not parameter.may_be_empty:
            raise InvalidRequestError(f"{name} is empty; give it a value or leave it out")
        try:
            values[name] = parameter.read(plain(text))
        except ValueError as error:
            raise InvalidRequestError(f"{name}: {error}") from None
    options = Options(**{name: values.pop(name) for name in _OPTION_NAMES & values.keys()})
    most = options.max_physical_cores
    if most is not None and options.min_physical_cores > most:
        raise InvalidRequestError(
            f"min_physical_cores={options.min_physical_cores} is more than "
            f"max_physical_cores={most}; make it no more than that"
        )
    request = Request(**values, options=options)
    _check_task(request, OF_TASKS & values.keys())
    if request.task_cpus is not None and options.cpus is not None:
        raise InvalidRequestError(
            f"cpus={options.cpus} is what each rank asked for, task_cpus what each task did; give "
            "one of them"
        )
    if request.whose == "node" and request.cpuset is not None:
        raise InvalidRequestError(
            "whose=node plans on the whole node, cpuset on some of its CPUs; give one of them"
        )
    return request


def _check_task(request: Request, given: frozenset[str]) -> None:
    """Raise InvalidRequestError for a parameter of one task without the task's rank."""
    bound = sorted(given & {"gpu_bind", "cpu_bind"})
    if request.ranks is None and (bound or (given and request.rank is not None)):
        raise InvalidRequestError(
            f"{(bound or sorted(given))[0]} needs ranks and rank: how many tasks, and which"
        )
    if given and request.ranks is not None and len(request.rank or ()) != 1:
        raise InvalidRequestError(
            f"{min(given)} needs one rank, of {request.ranks}: which of them asks, like rank=0"
        )


def _suggestion(name: str) -> str:
    import difflib  # noqa: PLC0415 - a rank has no use for it

    near = difflib.get_close_matches(name[:64], PARAMETERS, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(PARAMETERS)}"


def plain(text: str) -> str:
    """Return a value that can be read in no time and answered as JSON."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{len(text)} characters are too many; the most is {MAX_LENGTH}")
    is_utf8 = text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
    if "\0" in text or not is_utf8:
        raise ValueError(f"{quote(text)} is not text: it has a NUL or bytes that are no UTF-8")
    return text


def _choice(text: str, *words: str) -> Parameter:
    """Return a parameter that is one of these words, the first by default."""
    schema = {"type": "string", "enum": list(words), "default": words[0]}
    return Parameter(parsers.one_of(*words), text, schema)


def _flag(text: str, *, default: bool) -> Parameter:
    return Parameter(parsers.boolean, text, {"type": "boolean", "default": default})


def _number(
    text: str,
    read: Callable[[str], int] = parsers.positive,
    most: int = parsers.MAX_NUMBER,
    **schema: int,
) -> Parameter:
    return Parameter(read, text, {"type": "integer", "minimum": 1, "maximum": most, **schema})


_DEFAULTS = Options()

PARAMETERS = {
    "gpus": Parameter(
        parsers.gpus,
        (
            "one entry for each rank, in local-rank order: index, UUID, UUID prefix, PCI "
            "bus id; or just all"
        ),
        {"type": "string", "default": "all"},
    ),
    "rank": Parameter(parsers.ranks, "answer only for these ranks of the request"),
    "ranks": _number(
        "how many ranks there are: rank i drives entry i of gpus, modulo their number",
        read=parsers.count,
        most=parsers.MAX_ENTRIES,
    ),
    "job": Parameter(
        parsers.entries,
        (
            "all GPUs of the caller's job, in node numbering: they divide the cores, and "
            "the answer is for gpus"
        ),
    ),
    "gpu_bind": Parameter(str, "how Slurm gave the ranks their GPUs, as in SLURMD_TRES_BIND"),
    "cpu_bind": Parameter(
        parsers.masks, "the CPUs that Slurm gave each of the ranks, as in SLURM_CPU_BIND_LIST"
    ),
    "step_gpus": _number("how many GPUs the ranks have together, as in SLURM_GPUS_ON_NODE"),
    "job_cpus": _number(
        "how many CPUs the job has on this node: a step that has fewer, and sees only its own "
        "GPUs, divides its CPUs without the job's other GPUs"
    ),
    "task_cpus": Parameter(
        parsers.task_cpus,
        "how many CPUs each task asked for, or 1/8: of the CPUs of eight tasks; its GPUs divide it",
    ),
    "mode": Parameter(
        parsers.mode,
        "how ranks divide the cores",
        {"type": "string", "enum": list(MODES), "default": _DEFAULTS.mode},
    ),
    "scope": _choice("the cores of the NUMA node, or of its whole socket", "node", "socket"),
    "multithreading": _choice(
        "all CPUs of a core, or only its lowest allowed one", "all_logical", "single_logical"
    ),
    "balanced": _flag("ranks get the same number of near cores", default=_DEFAULTS.balanced),
    "min_physical_cores": _number(
        "fewer cores for any rank is an error", default=_DEFAULTS.min_physical_cores
    ),
    "max_physical_cores": _number("the most cores of any rank"),
    "cpus": _number(
        "how many CPUs each rank asked for: if fewer are near, the nearest others are added"
    ),
    "cpuset": Parameter(parse_list, "the CPUs to plan on, as a list like 0-3,8"),
    "whose": _choice("plan on the caller's CPUs, if known, or on the node's", "caller", "node"),
    "visible": Parameter(
        parsers.visible,
        "the caller's CUDA_VISIBLE_DEVICES (or ROCR/HIP, ASCEND_RT); empty: none",
        may_be_empty=True,
    ),
    "granted": Parameter(
        parsers.granted,
        "the devices the caller was given, in node numbering: indices, UUIDs, minor:N, drm:N, or "
        "none",
    ),
    "nvidia_visible": Parameter(
        parsers.listed,
        (
            "the caller's NVIDIA_VISIBLE_DEVICES, the devices requested for its container: used "
            "if all of them are granted"
        ),
    ),
    "observe": Parameter(parse_list, "count the plan only: the caller stays on these CPUs"),
    "share": _choice(
        "divide the cores among the requested GPUs, or all of the node's",
        *("auto", "requested", "node"),
    ),
    "nics": Parameter(
        parsers.nics,
        "how many of the nearest RDMA devices each rank gets: a number, all, or none (default: "
        "the GPU's share)",
    ),
    "strict": _flag("a rank far from its GPU is an error", default=_DEFAULTS.strict),
    "format": _choice("how the answer is written", *FORMATS),
}

_OPTION_NAMES = frozenset(Options.__annotations__)
