"""The descriptions of the API: a list of its paths for people, OpenAPI for programs."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.responses import Response

from affinityd import __version__
from affinityd.daemon.state.background import SingleFlight
from affinityd.json_codec import dumps

PATH = "/openapi.json"
OK = 200
PROBLEM = "application/problem+json"


def add_description(app: FastAPI) -> None:
    """Answer with the app's OpenAPI document, which is made once, in the background."""
    description = SingleFlight(cache(lambda app: dumps(_described(app))))

    @app.get(PATH, include_in_schema=False)
    async def openapi() -> Response:
        return Response(await description(app), media_type="application/json")


def listed(app: FastAPI) -> str:
    """Return a list of an app's paths, a line each."""
    rows = {route.path: route.summary for route in _routes(app)}
    rows[PATH] = "This API, with parameters and schemas, for programs"
    width = max(map(len, rows))
    lines = (f"GET {path:<{width}}  {summary}" for path, summary in rows.items())
    return "\n".join((f"affinityd {__version__} answers", "", *lines, ""))


def _routes(app: FastAPI) -> list[APIRoute]:
    return [it for it in app.routes if isinstance(it, APIRoute) and it.include_in_schema]


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document: the app's routes, with the models of their answers.

    pydantic takes as long for the models as all else at the daemon's start: here they are imported
    once the description is asked for.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415

    from affinityd.audit.document import AuditDocument  # noqa: PLC0415
    from affinityd.enforce.document import EnforceDocument  # noqa: PLC0415
    from affinityd.request.document import PlanDocument, ProblemDocument  # noqa: PLC0415
    from affinityd.topology.document import TopologyAnswer  # noqa: PLC0415

    models: dict[str, type] = {
        "/plan": PlanDocument,
        "/topology": TopologyAnswer,
        "/audit": AuditDocument,
        "/enforce": EnforceDocument,
    }
    with_models = FastAPI(title=app.title, version=app.version, description=app.description)
    problem = {PROBLEM: {"schema": TypeAdapter(ProblemDocument).json_schema()}}
    for route in _routes(app):
        responses = {
            status: {**response, "content": {**problem, **response["content"]}}
            if status != OK
            else response
            for status, response in route.responses.items()
        }
        if model := models.get(route.path):
            responses[OK] = {**responses.get(OK, {}), "model": model}
        with_models.add_api_route(
            route.path,
            route.endpoint,
            name=route.name,
            summary=route.summary,
            responses=responses,
            response_class=route.response_class,
            openapi_extra=route.openapi_extra,
        )
    return with_models.openapi()
