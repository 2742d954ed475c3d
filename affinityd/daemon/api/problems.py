"""Errors as clients get them: problem details (RFC 9457), or one line of text; HEAD as GET."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from affinityd.errors import AffinityError, NotReadyError
from affinityd.json_codec import dumps
from affinityd.request.document import ProblemDocument
from affinityd.text import quote

RETRY_SECONDS = "1"  #: after which a machine that has not been read yet may have been


def problem(request: Request, status: int, title: str, detail: str) -> Response:
    """Return an error in the form that the client takes."""
    if wants_text(request.headers.get("accept")) or _asks_for_lines(request):
        return Response(f"{title}: {detail}\n", status, media_type="text/plain")
    kind = title.lower().replace(" ", "-")
    document = ProblemDocument(f"urn:affinityd:{kind}", title, status, detail)
    body = dumps(document, ensure_ascii=False) + "\n"
    return Response(body.encode(errors="replace"), status, media_type="application/problem+json")


def wants_text(accept: str | None) -> bool:
    """Return whether an Accept header prefers plain text."""
    return accept is not None and accept.split(",")[0].split(";")[0].strip().lower() == "text/plain"


def install(app: FastAPI) -> None:
    """Make every error of an app such an answer."""

    @app.exception_handler(AffinityError)
    async def refused(request: Request, error: AffinityError) -> Response:
        answer = problem(request, error.status, error.title, str(error))
        if type(error) is NotReadyError:  # its kinds may last
            answer.headers["retry-after"] = RETRY_SECONDS
        return answer

    @app.exception_handler(HTTPException)
    async def not_answered(request: Request, error: HTTPException) -> Response:
        path = quote(request.scope["path"])
        detail = f"{request.method} {path} is not answered here; see /openapi.json"
        answer = problem(request, error.status_code, HTTPStatus(error.status_code).phrase, detail)
        answer.headers.update(error.headers or {})
        if "allow" in answer.headers:  # every path with a GET
            answer.headers["allow"] = "GET, HEAD"
        return answer

    @app.exception_handler(Exception)
    async def broken(request: Request, _error: Exception) -> Response:
        # The server logs the error, which goes on to it from here.
        return problem(request, 500, "Internal error", "this is a bug; the daemon's log says more")


def _asks_for_lines(request: Request) -> bool:
    return request.query_params.get("format", "json") not in {"json", ""}


class HeadAsGet:
    """Has an app answer HEAD like GET: uvicorn leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""
        asked = {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope
        await self._app(asked, receive, send)


LISTED = """\
affinityd answers only plans at this address.

GET /plan  The CPUs of each rank, as in /plan?gpus=0,1&mode=node
"""


class PlanOnly:
    """Passes only requests for /plan on to the app."""

    def __init__(self, app: ASGIApp) -> None:
        """Take the app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""
        if scope["path"] == "/plan":
            await self._app(scope, receive, send)
            return
        if scope["path"] == "/" and scope["method"] in {"GET", "HEAD"}:
            await PlainTextResponse(LISTED)(scope, receive, send)
            return
        asked = quote(scope["path"])
        detail = f"{scope['method']} {asked} is not answered at this address; only GET /plan is"
        answer = problem(Request(scope), 404, "Not Found", detail)
        await answer(scope, receive, send)
