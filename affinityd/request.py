"""The parameters of a plan: one table for the API, its OpenAPI document and the command line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import InvalidRequestError, quote
from affinityd.modes import MODES
from affinityd.plans import Options

MAX_ENTRIES = 256
MAX_NUMBER = 2**31
MAX_LENGTH = 32768  #: of a value, in characters; every second one of 8192 CPUs takes 20,000
FORMATS = ("json", "cpulist", "mask", "numactl", "shell")

_BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


@dataclass(frozen=True)
class Request:
    """A request as understood; equal requests have equal answers."""

    gpus: tuple[str, ...] | None = None  #: None: all visible
    rank: tuple[int, ...] | None = None  #: None: all
    cpuset: CpuSet | None = None
    visible: str | None = None
    granted: str | None = None
    format: str | None = None  #: None: the client's Accept header decides
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Parameter:
    """One parameter: how its text is read, and what people are told about it."""

    name: str
    read: Callable[[str], Any]
    schema: dict[str, Any]  #: of OpenAPI
    help: str
    may_be_empty: bool = False


def parse_request(pairs: Iterable[tuple[str, str]]) -> Request:
    """Read (name, value) pairs. Raises InvalidRequestError, which names the first that is wrong."""
    values: dict[str, Any] = {}
    for name, text in pairs:
        parameter = PARAMETERS.get(name)
        if parameter is None:
            raise InvalidRequestError(f"unknown parameter {quote(name)}; {_suggestion(name)}")
        if name in values:
            raise InvalidRequestError(f"{name} is given twice; give it once")
        if not text.strip() and not parameter.may_be_empty:
            raise InvalidRequestError(f"{name} is empty; give it a value or leave it out")
        try:
            values[name] = parameter.read(_plain(text))
        except ValueError as error:
            raise InvalidRequestError(f"{name}: {error}") from None
    options = Options(**{name: values.pop(name) for name in _OPTION_NAMES & values.keys()})
    most = options.max_physical_cores
    if most is not None and options.min_physical_cores > most:
        raise InvalidRequestError(
            f"min_physical_cores={options.min_physical_cores} is more than "
            f"max_physical_cores={most}; make it no more than that"
        )
    return Request(**values, options=options)


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name[:64], PARAMETERS, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(PARAMETERS)}"


def _plain(text: str) -> str:
    """Return a value that can be read in no time and answered as JSON."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{len(text)} characters are too many; the most is {MAX_LENGTH}")
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"{quote(text)} is not text: it has a NUL or what is no UTF-8")
    return text


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{quote(text)} is not one of {', '.join(choices)}")
        return text

    return read


def _mode(text: str) -> str:
    name = text.replace("-", "_")
    return name if name in MODES else _one_of(*MODES)(text)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(f"{quote(text)} is neither true nor false")
    return _BOOLEANS[text.lower()]


def _positive(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER))
    if not is_number or not 1 <= int(text) <= MAX_NUMBER:
        raise ValueError(f"{quote(text)} is not a whole number from 1 to {MAX_NUMBER}")
    return int(text)


def _entries(text: str) -> tuple[str, ...]:
    entries = tuple(entry.strip() for entry in text.split(","))
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"{len(entries)} entries are too many; the most is {MAX_ENTRIES}")
    if "" in entries:
        raise ValueError(f"{quote(text)} has an empty entry; write it like 0,1")
    return entries


def _gpus(text: str) -> tuple[str, ...] | None:
    entries = _entries(text)
    if entries == ("all",):
        return None
    if "all" in entries:
        raise ValueError(f"{quote(text)}: all stands alone, not in a list")
    return entries


def _ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted(parse_list(text)))
    except ValueError:
        raise ValueError(
            f"{quote(text)} is not a list of ranks; write it like 0,1 or 0-3"
        ) from None


def _visible(text: str) -> str:
    name, is_assignment, value = text.partition("=")
    if is_assignment and name in {"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"}:
        raise ValueError(f"{quote(text)} names its variable; give the value alone: {quote(value)}")
    return text


def _granted(text: str) -> str:
    return ",".join(_entries(text))


_INTEGER = {"type": "integer", "minimum": 1, "maximum": MAX_NUMBER}
_DEFAULTS = Options()

PARAMETERS = {
    parameter.name: parameter
    for parameter in (
        Parameter(
            "gpus",
            _gpus,
            {"type": "string", "default": "all"},
            "one entry a rank, in local-rank order: index, UUID, UUID prefix, PCI bus id, "
            "or all alone",
        ),
        Parameter("rank", _ranks, {"type": "string"}, "answer only for these ranks of the request"),
        Parameter(
            "mode",
            _mode,
            {"type": "string", "enum": list(MODES), "default": _DEFAULTS.mode},
            "how ranks divide the cores",
        ),
        Parameter(
            "scope",
            _one_of("node", "socket"),
            {"type": "string", "enum": ["node", "socket"], "default": _DEFAULTS.scope},
            "the cores of the NUMA node, or of its whole socket",
        ),
        Parameter(
            "multithreading",
            _one_of("all_logical", "single_logical"),
            {
                "type": "string",
                "enum": ["all_logical", "single_logical"],
                "default": _DEFAULTS.multithreading,
            },
            "all CPUs of a core, or only its lowest allowed one",
        ),
        Parameter(
            "balanced",
            _boolean,
            {"type": "boolean", "default": _DEFAULTS.balanced},
            "every rank gets the same number of near cores",
        ),
        Parameter(
            "min_physical_cores",
            _positive,
            {**_INTEGER, "default": _DEFAULTS.min_physical_cores},
            "fewer cores for any rank is an error",
        ),
        Parameter("max_physical_cores", _positive, _INTEGER, "each rank has at most so many cores"),
        Parameter(
            "cpuset", parse_list, {"type": "string"}, "the CPUs to plan on, as a list like 0-3,8"
        ),
        Parameter(
            "visible",
            _visible,
            {"type": "string"},
            "the caller's CUDA_VISIBLE_DEVICES (or ROCR/HIP, ASCEND_RT); empty: none",
            may_be_empty=True,
        ),
        Parameter(
            "granted",
            _granted,
            {"type": "string"},
            "the devices the caller was given, in node numbering: indices, UUIDs, minor:N, "
            "drm:N, or none",
        ),
        Parameter(
            "share",
            _one_of("auto", "requested", "node"),
            {"type": "string", "enum": ["auto", "requested", "node"], "default": "auto"},
            "divide the cores among the requested GPUs, or all of the node's",
        ),
        Parameter(
            "strict",
            _boolean,
            {"type": "boolean", "default": _DEFAULTS.strict},
            "a rank far from its GPU is an error",
        ),
        Parameter(
            "format",
            _one_of(*FORMATS),
            {"type": "string", "enum": list(FORMATS), "default": "json"},
            "how the answer is written",
        ),
    )
}

_OPTION_NAMES = frozenset(option.name for option in fields(Options))
