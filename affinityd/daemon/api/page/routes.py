"""The paths of the page, and the picture by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from affinityd.daemon.api.page.document import page
from affinityd.daemon.state.plan_service import PlanService
from affinityd.picture import stylesheet
from affinityd.topology.model import Node

SCRIPTS = ("page.js", "picture.js", "audit.js")
#: The page loads nothing from elsewhere, runs and styles nothing that is inside a document, sends
#: nothing elsewhere, and is in no frame: CSP Level 3; Trusted Types.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "accept",
}
#: A picture has its style inside, and nothing else that could act.
PICTURE_HEADERS = {
    **HEADERS,
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
}
SVG = "image/svg+xml"


def add_page(
    app: FastAPI,
    service: PlanService,
    *,
    refresh: Callable[[], Awaitable[None]],
    listed: Callable[[], str],
    socket: str,
) -> None:
    """Answer / with the page for browsers, and with the list `listed` for other clients.

    `socket`: the daemon's, which the page names.
    """
    made: tuple[Node, str] | None = None

    @app.get("/", summary="This list, and the page for browsers", response_class=PlainTextResponse)
    async def root(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(listed(), headers={"vary": "accept"})
        await refresh()
        nonlocal made
        if made is None or made[0] is not service.node:  # else plans would wait for each page
            made = service.node, page(service.node, socket)
        return Response(made[1], media_type="text/html", headers=HEADERS)

    for name in SCRIPTS:
        _add_file(app, name, (files(__package__) / name).read_text(encoding="utf-8"))
    _add_file(app, "page.css", (files(__package__) / "page.css").read_text(encoding="utf-8"))
    _add_file(app, "picture.css", stylesheet())


def _add_file(app: FastAPI, name: str, text: str) -> None:
    kind = "text/css" if name.endswith(".css") else "text/javascript"

    @app.get(f"/{name}", include_in_schema=False)
    async def file() -> Response:
        return Response(text, media_type=kind, headers=HEADERS)
