"""The descriptions of an app: a list for people, OpenAPI for programs."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from affinityd import __version__


def described(app: FastAPI) -> dict[str, Any]:
    """Return an app's OpenAPI document, for programs."""
    from affinityd.daemon.api import openapi  # noqa: PLC0415 - takes as long as the app

    return openapi.described(app)


def listed(app: FastAPI) -> str:
    """Return a list of its paths, for people."""
    routes = (it for it in app.routes if isinstance(it, APIRoute) and it.include_in_schema)
    rows = {
        **{it.path: it.summary for it in routes},
        "/openapi.json": "This API, with parameters and schemas, for programs",
    }
    width = max(map(len, rows))
    lines = (f"GET {path:<{width}}  {summary}" for path, summary in rows.items())
    return "\n".join((f"affinityd {__version__} answers", "", *lines, ""))
