"""The query of a plan: its parameters, and the facts that follow from the caller's variables. Pure.

The API, its OpenAPI document and the command line have one table of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from affinityd.config import CHOOSE_GPU, GPU_ORDER, PARAMETER_VARIABLES, YES
from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import InvalidRequestError, UnknownParameterError
from affinityd.planner import Options
from affinityd.planner.modes import MODES
from affinityd.request.environment import ENV, LONG_LISTS, MAX_ENTRIES, READ, chooses_gpu
from affinityd.request.task import Task, read_task
from affinityd.request.task_cpus import read_masks
from affinityd.text import one_of, quote, whole_number

#: Most characters of a query, and of a value: the masks of 256 tasks on 512 CPUs take 34,000, a
#: list of every second CPU of 8192 takes 20,000.
MAX_LENGTH = 49152
MAX_NUMBER = 2**31
FORMATS = ("json", "cpulist", "mask", "numactl", "shell", "nics", "map_gpu")
_DEFAULTS = Options()


class Request(NamedTuple):
    """A request as understood; equal requests have equal answers."""

    task: Task = Task()
    observe: CpuSet | None = None  #: CPUs that an observing caller keeps; None: the caller pins
    nics: int | None = None  #: NICs for each rank; None: its GPU's part
    whose: str = "caller"  #: "node": plan as for an unidentified caller
    format: str | None = None  #: None: the client's Accept header decides
    choose: str | None = None  #: "gpu": the ranks keep their CPUs, and near GPUs are chosen
    gpus_per_rank: int | None = None  #: GPUs for each rank; None: all get equally many
    options: Options = _DEFAULTS


class Parameter(NamedTuple):
    """One parameter: the reader of its text, and its help."""

    read: Callable[[str], Any]
    help: str
    schema: Mapping[str, Any] = {"type": "string"}  #: of OpenAPI
    may_be_empty: bool = False


def parse_request(pairs: Iterable[tuple[str, str]]) -> Request:
    """Read (name, value) pairs. Raises InvalidRequestError, which names the first wrong pair."""
    values: dict[str, Any] = {}
    for name, text in pairs:
        parameter = PARAMETERS.get(name)
        if parameter is None:
            hint = suggestion(name, PARAMETERS)
            raise UnknownParameterError(f"{quote(name)} is no parameter; {hint}")
        if name in values:
            raise InvalidRequestError(f"{name} is given twice; give it once")
        if not text.strip() and not parameter.may_be_empty:
            raise InvalidRequestError(f"{name} is empty; give it a value or leave it out")
        try:
            values[name] = parameter.read(plain(text))
        except ValueError as error:
            raise InvalidRequestError(f"{name}: {error}") from None
    if "scope" in values:
        values.setdefault("mode", "all")  # mode `node` would ignore the scope
    of_options = Options.__annotations__.keys() & values.keys()
    options = Options(**{name: values.pop(name) for name in of_options})
    most = options.max_physical_cores
    if most is not None and options.min_physical_cores > most:
        raise InvalidRequestError(
            f"min_physical_cores={options.min_physical_cores} is more than "
            f"max_physical_cores={most}; make it no more than that"
        )
    of_task = Task.__annotations__.keys() & values.keys()
    task = Task(**{name: values.pop(name) for name in of_task})
    request = Request(task, **values, options=options)
    names_one = task.ranks and len(task.rank or ()) == 1
    if task.job and (task.rank or task.ranks) and not names_one:
        raise InvalidRequestError("job needs ranks (how many tasks) and one rank (which task)")
    if request.whose == "node" and task.cpuset is not None:
        raise InvalidRequestError(
            "whose=node plans on the whole node, cpuset on some of its CPUs; give one of them"
        )
    return request


def suggestion(name: str, known: Collection[str]) -> str:
    """Return a hint for an unknown name: the most similar known name, else all known names."""
    import difflib  # noqa: PLC0415 - a rank has no use for it

    near = difflib.get_close_matches(name[:64], known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def plain(text: str) -> str:
    """Return a value, if it is short enough to read and JSON can hold it. Raises ValueError."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{len(text)} characters are too many; the most is {MAX_LENGTH}")
    is_utf8 = text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
    if "\0" in text or not is_utf8:
        raise ValueError(f"{quote(text)} is not text: it has a NUL or bytes that are no UTF-8")
    return text


def _read_mode(text: str) -> str:
    name = text.replace("-", "_")
    return name if name in MODES else one_of(*MODES)(text)


def _read_boolean(text: str) -> bool:
    if text.lower() not in (*YES, "false", "0", "no", "off"):
        raise ValueError(f"{quote(text)} is neither true nor false")
    return text.lower() in YES


def _read_nics(text: str) -> int:
    if text == "none":
        return 0
    number = MAX_NUMBER if text == "all" else whole_number(text, MAX_NUMBER)
    if not number:
        raise ValueError(f"{quote(text)} is neither all, none nor a whole number from 1")
    return number


def _read_entries(text: str) -> tuple[str, ...]:
    names: list[str] = []
    for entry in map(str.strip, read_listed(text).split(",")):
        begin, _, end = entry.partition("-")
        first, last = whole_number(begin, MAX_NUMBER), whole_number(end, MAX_NUMBER)
        if first is None or last is None:
            names.append(entry)
            continue
        if last < first:
            raise ValueError(f"{quote(entry)} is not a range; write it like 0-3")
        _few(len(names) + last + 1 - first, "entries")
        names += map(str, range(first, last + 1))
    if "" in names:
        raise ValueError(f"{quote(text)} has an empty entry; write it like 0,1 or 0-3")
    return tuple(names)


def _read_gpus(text: str) -> tuple[str, ...] | None:
    names = _read_entries(text)
    return None if names == ("all",) else names


def _read_ranks(text: str) -> tuple[int, ...]:
    try:
        numbers = sorted(parse_list(text))
    except ValueError:
        problem = f"{quote(text)} is not a rank; write it like 3, several like 0,1 or 0-3"
        raise ValueError(problem) from None
    _few(len(numbers), "ranks")
    return tuple(numbers)


def read_listed(text: str) -> str:
    """Return a list's text if it has few entries. Raises ValueError before it reads any."""
    _few(text.count(",") + 1, "entries")
    return text


def _few(number: int, noun: str) -> None:
    if number > MAX_ENTRIES:
        raise ValueError(f"{number} {noun} are too many; the most is {MAX_ENTRIES}")


def _choice(text: str, *words: str) -> Parameter:
    schema = {"type": "string", "enum": list(words), "default": words[0]}
    return Parameter(one_of(*words), text, schema)


def _flag(text: str, *, default: bool) -> Parameter:
    return Parameter(_read_boolean, text, {"type": "boolean", "default": default})


def _number(text: str, most: int = MAX_NUMBER, **schema: int) -> Parameter:
    def read(value: str) -> int:
        number = whole_number(value, most)
        if not number:
            raise ValueError(f"{quote(value)} is not a whole number from 1 to {most}")
        return number

    return Parameter(read, text, {"type": "integer", "minimum": 1, "maximum": most, **schema})


PARAMETERS = {
    "gpus": Parameter(
        _read_gpus,
        "the ranks' GPUs, an entry each: index, UUID or its beginning, PCI bus id, range; or all",
        {"type": "string", "default": "all"},
    ),
    "rank": Parameter(_read_ranks, "answer only for these ranks of the request"),
    "ranks": _number(
        "how many ranks: rank i drives entry i of gpus, modulo the number of entries", MAX_ENTRIES
    ),
    "job": Parameter(
        _read_entries, "all GPUs of the caller's job, in node numbering: they divide the cores"
    ),
    "mode": Parameter(
        _read_mode,
        "how ranks divide the cores",
        {"type": "string", "enum": list(MODES), "default": _DEFAULTS.mode},
    ),
    "scope": _choice("the cores of the NUMA node, or of its whole socket", "node", "socket"),
    "multithreading": _choice(
        "all CPUs of a core, or only its lowest allowed one", "all_logical", "single_logical"
    ),
    "balanced": _flag("ranks get the same number of near cores", default=_DEFAULTS.balanced),
    "min_physical_cores": _number("fewer cores for any rank is an error", default=1),
    "max_physical_cores": _number("the most cores of any rank"),
    "cpus": _number(
        "how many CPUs each rank asked for: if fewer are near, the nearest others are added"
    ),
    "cpuset": Parameter(parse_list, "the CPUs to plan on, as a list like 0-3,8"),
    "whose": _choice("plan on the caller's CPUs, if known, or on the node's", "caller", "node"),
    "visible": Parameter(
        read_listed,
        "the caller's CUDA_VISIBLE_DEVICES (or ROCR/HIP, ASCEND_RT); empty: none",
        may_be_empty=True,
    ),
    "granted": Parameter(
        lambda text: ",".join(_read_entries(text)),
        "the caller's devices, in node numbering: indices, UUIDs, files (minor:N of NVIDIA's, "
        "drm:N, davinci:N, accel:N), or none",
    ),
    "observe": Parameter(parse_list, "only count the plan: the caller keeps these CPUs"),
    "share": _choice(
        "divide the cores among the requested GPUs, or all of the node's",
        "auto",
        "requested",
        "node",
    ),
    "nics": Parameter(
        _read_nics,
        "how many near RDMA devices each rank gets: a number, all, or none (default: its part)",
    ),
    "choose": Parameter(
        one_of("gpu"),
        "gpu: the ranks keep their CPUs, and the GPUs near them are chosen for them",
        {"type": "string", "enum": ["gpu"]},
    ),
    "gpus_per_rank": _number(
        "how many GPUs are chosen for each rank (default: all, divided by the ranks)", MAX_ENTRIES
    ),
    "strict": _flag("a rank far from its GPU is an error", default=_DEFAULTS.strict),
    "format": _choice("how the answer is written", *FORMATS),
}

VARIABLE = Parameter(
    str,
    "a variable of the caller's environment, like LOCAL_RANK=3; given once for each variable",
    {"type": "array", "items": {"type": "string", "pattern": f"^({'|'.join(sorted(READ))})="}},
)


def parse_query(pairs: Iterable[tuple[str, str]]) -> Request:
    """Read (name, value) pairs; some may be variables, and stated parameters override these.

    Raises InvalidRequestError, which names the first wrong pair.
    """
    query = list(pairs)
    environ = _environment(text for name, text in query if name == ENV)
    stated = [(name, text) for name, text in query if name != ENV]
    names = {name for name, _ in stated}
    chosen = [
        (name, environ[variable])
        for name, variable in PARAMETER_VARIABLES.items()
        if environ.get(variable) and name not in names
    ]
    request = parse_request([*stated, *chosen])
    if "gpus" not in names and chooses_gpu(environ):
        request = request._replace(choose="gpu")
    if request.gpus_per_rank and not request.choose:
        raise InvalidRequestError("gpus_per_rank is for GPUs that are chosen; add choose=gpu")
    if request.choose and request.task.gpus is not None:
        raise InvalidRequestError(
            "choose=gpu takes the visible GPUs, and gpus names some; give one of them"
        )
    if not environ:
        return request
    task = read_task(environ, request.task, request.options, names)
    order = environ.get(GPU_ORDER)
    task = replace(task, opened=request.task.granted)
    if order:
        task = replace(task, gpu_order=_read_entries(order))
    if request.choose:
        masks, why = read_masks(environ)
        bound = None if masks else task.slice
        task = replace(task, masks=masks, masks_unknown=why, slice=bound)
    options = request.options
    if task.has_own_block and options.share == "auto":
        options = replace(options, share="node")
    return request._replace(task=task, options=options)


def _environment(assignments: Iterable[str]) -> dict[str, str]:
    environ: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidRequestError(f"env: {quote(text)} is not NAME=VALUE")
        if name not in READ:
            names = ", ".join(sorted(READ))
            raise InvalidRequestError(f"env: {quote(name)} is not read; known are {names}")
        if name in environ:
            raise InvalidRequestError(f"env: {name} is given twice; give it once")
        try:
            environ[name] = plain(value if name in LONG_LISTS else read_listed(value))
            if name == CHOOSE_GPU and value:
                _read_boolean(value)
            if name == GPU_ORDER and value:
                _read_entries(value)
        except ValueError as error:
            raise InvalidRequestError(f"env: {name}: {error}") from None
    return environ
