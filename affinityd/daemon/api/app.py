"""The apps of the HTTP API; their errors are problem details (RFC 9457), or a line of text."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from weakref import WeakValueDictionary

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from affinityd import __version__
from affinityd.daemon.api import PROBLEM, TEXT, ApiState, node, plan
from affinityd.daemon.api.page import page_routes
from affinityd.daemon.api.peers import is_foreign, peer_of_request
from affinityd.daemon.api.plan import wants_text
from affinityd.errors import AffinityError, NotReadyError
from affinityd.json_codec import dumps
from affinityd.request.document import ProblemDocument
from affinityd.text import quote

OPENAPI = "/openapi.json"
#: How many requests of a user one turn of the loop answers. With 1 a job's ranks would wait.
MOST_IN_TURN = 4


def whole_app(state: ApiState) -> FastAPI:
    """Return the app with all paths."""
    rows = {"/": "This list, and the page for browsers"}
    for route in (*plan.router.routes, *node.router.routes):
        if isinstance(route, APIRoute):
            rows[route.path] = route.summary or ""
    rows[OPENAPI] = "This API, with parameters and schemas, for programs"

    def listed() -> str:
        """Return a list of the paths, one on a line."""
        width = max(len(path) for path in rows)
        lines = [f"GET {path:<{width}}  {summary}" for path, summary in rows.items()]
        return "\n".join((f"affinityd {__version__} answers", "", *lines, ""))

    def openapi() -> Response:
        """Answer with OpenAPI's document, from a thread: it takes most of a second."""
        return JSONResponse(app.openapi())

    app = _app(state, f"see {OPENAPI}")
    app.add_api_route(OPENAPI, openapi, include_in_schema=False)
    app.include_router(plan.router)
    app.include_router(node.router)
    for page in page_routes(state.watcher, state.settings, listed):
        app.add_api_route(
            page.path,
            page.endpoint,
            summary=rows.get(page.path),
            response_class=PlainTextResponse,
            include_in_schema=page.path in rows,
        )
    return app


def plans_app(state: ApiState) -> FastAPI:
    """Return the app with /plan alone."""
    app = _app(state, "only GET /plan is")
    app.include_router(plan.router)
    return app


def _app(state: ApiState, remedy: str) -> FastAPI:
    """Return an app without paths; `remedy` ends the error for an unknown path."""
    app = FastAPI(
        title="affinityd",
        description="The CPUs and the memory node for each GPU rank.",
        version=__version__,
        # These pages would load scripts from other hosts, which a compute node cannot reach.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # FastAPI would generate it in the event loop
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,  # a redirect would contain the request's Host, which may be any
        exception_handlers={
            AffinityError: _refused,
            HTTPException: partial(_not_answered, remedy),
            Exception: _broken,
        },
    )
    app.state.api = state
    app.add_middleware(GZipMiddleware, compresslevel=1)
    app.add_middleware(OtherSites)
    app.add_middleware(Turns)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def problem(request: Request, status: int, title: str, detail: str) -> Response:
    """Return an error in a form that the client accepts."""
    asks_for_lines = request.query_params.get("format", "json") not in {"json", ""}
    if asks_for_lines or wants_text(request.headers.get("accept")):
        return Response(f"{title}: {detail}\n", status, media_type=TEXT)
    kind = title.lower().replace(" ", "-")
    document = ProblemDocument(f"urn:affinityd:{kind}", title, status, detail)
    body = dumps(document, ensure_ascii=False) + "\n"
    return Response(body.encode(errors="replace"), status, media_type=PROBLEM)


class Turns:
    """Answers some requests of a user, then looks at the connections of the other users.

    HEAD is answered like GET: uvicorn leaves out the body.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Take the app that answers."""
        self._app = app
        self._of_user = WeakValueDictionary[int | None, asyncio.Semaphore]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn."""
        peer = peer_of_request(scope)
        user = None if peer is None else peer.credentials.uid
        async with self._of_user.setdefault(user, asyncio.Semaphore(MOST_IN_TURN)):
            await asyncio.sleep(0)
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class OtherSites:
    """Refuses requests that a browser makes for a page of another site, on every path.

    The browser reports this by Sec-Fetch-Site (Fetch Metadata; it does not count if a person
    follows a link), or by a Host with that site's name, which may lead to the socket through a port
    forwarding. Over TCP Host may also be the name of a Service or a node.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Take the app that answers all other requests."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers = dict(scope["headers"])
        site = headers.get(b"sec-fetch-site", b"none")
        host = headers.get(b"host", b"").decode("latin-1")
        is_link = headers.get(b"sec-fetch-mode") == b"navigate"
        if (site not in {b"none", b"same-origin"} and not is_link) or (
            peer_of_request(scope) is not None and is_foreign(host)
        ):
            detail = "a page of another site may not ask here"
            refusal = problem(Request(scope), HTTPStatus.FORBIDDEN, "Forbidden", detail)
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, AffinityError)  # noqa: S101 - Starlette's handlers take any
    if request.scope["path"] == "/plan":
        plan.count_plan(request, "", str(error.status), "")
    reply = problem(request, error.status, error.title, str(error))
    if type(error) is NotReadyError:  # this error passes within a second; subclasses may last
        reply.headers["retry-after"] = "1"
    return reply


async def _not_answered(remedy: str, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    asked = f"{request.method} {quote(request.scope['path'])}"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        remedy = "only GET is"
    detail = f"{asked} is not answered at this address; {remedy}"
    title = HTTPStatus(error.status_code).phrase
    reply = problem(request, error.status_code, title, detail)
    reply.headers.update(error.headers or {})
    if "allow" in reply.headers:  # status 405; every path is served by GET alone
        reply.headers["allow"] = "GET, HEAD"
    return reply


async def _broken(request: Request, _error: Exception) -> Response:
    # The server logs the error, which is raised again after this answer.
    return problem(request, 500, "Internal error", "this is a bug; the daemon's log says more")
