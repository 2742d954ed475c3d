"""The query of a plan: its parameters, and what the caller's variables say about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from affinityd.config import PARAMETER_VARIABLES
from affinityd.errors import InvalidRequestError
from affinityd.request.environment import ENV, LONG_LISTS, READ
from affinityd.request.parameters import (
    Parameter,
    Request,
    parse_request,
    plain,
    read_listed,
)
from affinityd.request.task import read_task
from affinityd.text import quote

VARIABLE = Parameter(
    str,
    "a variable of the caller's environment, like LOCAL_RANK=3; given once for each variable",
    {"type": "array", "items": {"type": "string", "pattern": f"^({'|'.join(sorted(READ))})="}},
)


def parse_query(pairs: Iterable[tuple[str, str]]) -> Request:
    """Read (name, value) pairs, of which several may be variables; stated parameters override them.

    Raises InvalidRequestError, which names the first that is wrong.
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
    if not environ:
        return request
    task = read_task(environ, request.task, request.options, names)
    options = request.options
    if task.has_own_block and options.share == "auto":
        options = replace(options, share="node")
    return request._replace(task=task, options=options)


def _environment(assignments: Iterable[str]) -> dict[str, str]:
    """Read NAME=VALUE texts. Raises InvalidRequestError."""
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
        except ValueError as error:
            raise InvalidRequestError(f"env: {name}: {error}") from None
    return environ
