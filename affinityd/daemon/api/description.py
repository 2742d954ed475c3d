"""The descriptions of the API: a list of its paths for people, OpenAPI for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from affinityd import __version__
from affinityd.json_codec import dumps
from affinityd.request.environment import ENV
from affinityd.request.parameters import PARAMETERS, VARIABLE

PATH = "/openapi.json"
JSON, TEXT, SVG = "application/json", "text/plain", "image/svg+xml"
PROBLEM = "application/problem+json"

Described = dict[str, Any]  #: a part of an OpenAPI document

_PARAMETERS = [
    {
        "name": name,
        "in": "query",
        "description": parameter.help,
        "schema": parameter.schema,
        "allowEmptyValue": parameter.may_be_empty,
    }
    for name, parameter in {**PARAMETERS, ENV: VARIABLE}.items()
]
_NOT_READ = {503: "The machine has not been read yet."}
_REFUSED = {
    404: "No such GPU, or none visible; says which exist.",
    409: "Cannot be satisfied; says what could be.",
    422: "A parameter is unknown, repeated, empty or malformed.",
    **_NOT_READ,
}
_PID = [
    {
        "name": "pid",
        "in": "query",
        "description": "one process with its threads (WholeProcessDocument), in place of all",
        "schema": {"type": "integer", "minimum": 0},
    }
]
_NO_DOCUMENT = {
    404: "No such process uses a GPU, or the caller may not see it.",
    422: "It does not take this parameter.",
    503: "There has been no scan yet, or the daemon does not scan.",
}


@dataclass(frozen=True)
class Path:
    """The answer at a path."""

    summary: str
    forms: tuple[str, ...]  #: media types
    refusals: Mapping[int, str]  #: HTTP status → its meaning
    parameters: Sequence[Described] = ()


PATHS = {
    "/": Path("This list, and the page for browsers", (TEXT,), {}),
    "/plan": Path("The CPUs of each rank", (JSON, TEXT), _REFUSED, _PARAMETERS),
    "/topology": Path("The node as it was read", (JSON,), _NOT_READ),
    "/metrics": Path("Prometheus metrics", (TEXT,), {}),
    "/healthz": Path("The daemon runs", (TEXT,), {}),
    "/readyz": Path("The daemon can plan", (TEXT,), _NOT_READ),
    "/topology.svg": Path(
        "The node as a picture, with the parameters of /plan also a plan",
        (SVG,),
        _REFUSED,
        [parameter for parameter in _PARAMETERS if parameter["name"] != "format"],
    ),
    "/audit": Path(
        "The processes that use GPUs, and where they may run", (JSON,), _NO_DOCUMENT, _PID
    ),
}


def listed() -> str:
    """Return a list of the paths, a line each."""
    rows = {path: described.summary for path, described in PATHS.items()}
    rows[PATH] = "This API, with parameters and schemas, for programs"
    width = max(map(len, rows))
    lines = (f"GET {path:<{width}}  {summary}" for path, summary in rows.items())
    return "\n".join((f"affinityd {__version__} answers", "", *lines, ""))


@cache
def openapi() -> str:
    """Return the OpenAPI document, with the models of the answers.

    pydantic takes as long for the models as all else at the daemon's start: here they are imported
    once the description is asked for.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415

    from affinityd.audit.document import AuditDocument, WholeProcessDocument  # noqa: PLC0415
    from affinityd.request.document import PlanDocument, ProblemDocument  # noqa: PLC0415
    from affinityd.topology.document import TopologyAnswer  # noqa: PLC0415

    models: dict[str, type] = {
        "/plan": PlanDocument,
        "/topology": TopologyAnswer,
        "/audit": AuditDocument,
        "/audit?pid": WholeProcessDocument,
        PROBLEM: ProblemDocument,
    }
    references, definitions = TypeAdapter.json_schemas(
        [(path, "serialization", TypeAdapter(model)) for path, model in models.items()],
        ref_template="#/components/schemas/{model}",
    )
    schemas = {path: schema for (path, _), schema in references.items()}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "affinityd",
            "description": "The CPUs and the memory node for each GPU rank.",
            "version": __version__,
        },
        "paths": {path: {"get": _described(path, schemas)} for path in PATHS},
        "components": {"schemas": definitions["$defs"]},
    }
    return dumps(document)


def _described(path: str, schemas: Mapping[str, Described]) -> Described:
    described = PATHS[path]
    content = {
        form: {"schema": schemas[path] if form == JSON else {"type": "string"}}
        for form in described.forms
    }
    responses: Described = {"200": {"description": "The answer", "content": content}}
    for status, meaning in described.refusals.items():
        refused = {PROBLEM: {"schema": schemas[PROBLEM]}, TEXT: {"schema": {"type": "string"}}}
        responses[str(status)] = {"description": meaning, "content": refused}
    return {
        "summary": described.summary,
        "operationId": path.strip("/").replace(".", "_") or "root",
        "parameters": described.parameters,
        "responses": responses,
    }
