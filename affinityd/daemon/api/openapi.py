"""The API's description for programs: the app's routes, with the models of their answers.

pydantic takes as long for the models as for all else at the daemon's start: this module is imported
once the description is asked for.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from affinityd.audit.document import AuditDocument
from affinityd.enforce.document import EnforceDocument
from affinityd.request.document import PlanDocument, ProblemDocument
from affinityd.topology.document import TopologyAnswer

OK = 200
PROBLEM = "application/problem+json"
#: Path → its answer in JSON.
MODELS: dict[str, type] = {
    "/plan": PlanDocument,
    "/topology": TopologyAnswer,
    "/audit": AuditDocument,
    "/enforce": EnforceDocument,
}


def described(app: FastAPI) -> dict[str, Any]:
    """Return an app's OpenAPI document."""
    whole = FastAPI(title=app.title, version=app.version, description=app.description)
    problem = {PROBLEM: {"schema": TypeAdapter(ProblemDocument).json_schema()}}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            responses = {
                status: {**it, "content": {**problem, **it["content"]}} if status != OK else it
                for status, it in route.responses.items()
            }
            if route.path in MODELS:
                responses[OK] = {**responses.get(OK, {}), "model": MODELS[route.path]}
            whole.add_api_route(
                route.path,
                route.endpoint,
                name=route.name,
                summary=route.summary,
                responses=responses,
                response_class=route.response_class,
                openapi_extra=route.openapi_extra,
            )
    return whole.openapi()
