"""The descriptions of an app: a list for people, OpenAPI for programs."""

from __future__ import annotations

from functools import cache

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.responses import Response

from affinityd import __version__
from affinityd.daemon.state.background import SingleFlight
from affinityd.json_codec import dumps

PATH = "/openapi.json"


def add_description(app: FastAPI) -> None:
    """Answer with the app's OpenAPI document.

    It is made once, in the background: no plan waits for the import of its models.
    """
    description = SingleFlight(cache(described))

    @app.get(PATH, include_in_schema=False)
    async def openapi() -> Response:
        return Response(await description(app), media_type="application/json")


def described(app: FastAPI) -> str:
    """Return an app's OpenAPI document, for programs."""
    from affinityd.daemon.api import openapi  # noqa: PLC0415 - takes as long as the app

    return dumps(openapi.described(app))


def listed(app: FastAPI) -> str:
    """Return a list of its paths, for people."""
    routes = (it for it in app.routes if isinstance(it, APIRoute) and it.include_in_schema)
    rows = {
        **{it.path: it.summary for it in routes},
        PATH: "This API, with parameters and schemas, for programs",
    }
    width = max(map(len, rows))
    lines = (f"GET {path:<{width}}  {summary}" for path, summary in rows.items())
    return "\n".join((f"affinityd {__version__} answers", "", *lines, ""))
