"""The HTTP API: its paths and their answers; errors as problem details (RFC 9457), or as a line.

`GET /audit` shows processes to root and the admin group, and counts to all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from weakref import WeakValueDictionary

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from affinityd import __version__
from affinityd.config.settings import Settings
from affinityd.daemon.api.description import JSON, PATH, PROBLEM, SVG, listed, openapi
from affinityd.daemon.api.page import PICTURE_HEADERS, page_routes, takes_gzip
from affinityd.daemon.api.peers import Callers, is_foreign, peer_of_request, reader_of
from affinityd.daemon.api.plan import Plans, wants_text
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.state.background import in_background
from affinityd.daemon.state.scans import ALL, ScanResult
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.errors import (
    AffinityError,
    InvalidRequestError,
    NoSuchProcessError,
    NotReadyError,
    NotScannedError,
)
from affinityd.json_codec import dumps
from affinityd.picture import Marks, draw, marks_of
from affinityd.request.document import ProblemDocument
from affinityd.request.resolve import answer
from affinityd.text import quote, whole_number
from affinityd.topology.document import TopologyAnswer, to_document

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
RETRY_SECONDS = "1"  #: after which a machine that has not been read yet may have been

#: A browser keeps them out of other sites' pages: Fetch, Cross-Origin-Resource-Policy.
_DOCUMENT_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}
#: Requests of a user that go on in a turn of the loop. One would delay the ranks of a job.
MOST_IN_TURN = 4
PID = "pid="  #: a query's parameter
MAX_PID = 2**22  #: kernel include/linux/threads.h, PID_MAX_LIMIT


class Api:
    """The answers of a daemon."""

    def __init__(
        self,
        settings: Settings,
        watcher: TopologyWatcher,
        metrics: Metrics,
        last_scan: Callable[[], ScanResult | None],
    ) -> None:
        self._settings = settings
        self._watcher = watcher
        self._metrics = metrics
        self._last_scan = last_scan
        self._callers = Callers(replayed=settings.replays)
        self._plans = Plans(watcher, self._callers, metrics)
        self._turn = asyncio.Lock()  # of what takes long, so that plans wait for one at a time

    def whole(self) -> FastAPI:
        """Return the app that answers everything."""
        endpoints = {
            "/plan": self._plans.get,
            "/topology": self._topology,
            "/metrics": self._scrape,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/topology.svg": self._picture,
            "/audit": self._audit,
            PATH: self._openapi,
        }
        routes = [Route(path, endpoint) for path, endpoint in endpoints.items()]
        pages = page_routes(self._watcher, self._settings.socket, listed)
        return _app([*pages, *routes], f"see {PATH}")

    def only_plans(self) -> FastAPI:
        """Return the app that answers /plan alone."""
        return _app([Route("/plan", self._plans.get)], "only GET /plan is")

    async def _topology(self, _request: Request) -> Response:
        await self._watcher.refresh()
        node = self._watcher.node
        reply = TopologyAnswer(node.generation, to_document(node.topology))
        return Response(dumps(reply), media_type=JSON)

    async def _scrape(self, _request: Request) -> Response:
        async with self._turn:
            body = await in_background(self._metrics.exposition)
        return Response(body, headers={"content-type": PROMETHEUS})

    async def _healthz(self, _request: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def _readyz(self, _request: Request) -> Response:
        return Response(f"ready: {self._watcher.node.topology.name}\n", media_type="text/plain")

    async def _openapi(self, _request: Request) -> Response:
        async with self._turn:
            return Response(await in_background(openapi), media_type=JSON)

    async def _picture(self, request: Request) -> Response:
        await self._watcher.refresh()
        marks = Marks(self._watcher.node.reserved)
        if request.scope["query_string"]:
            asked = await self._plans.asked(request)
            if asked.format is not None:
                raise InvalidRequestError("format: this is always SVG; leave it out")
            caller = self._callers.of_peer(peer_of_request(request.scope))
            marks = marks_of(answer(self._watcher.node, asked, caller), marks.reserved)
        svg = draw(self._watcher.node.topology, marks)
        return Response(svg, media_type=SVG, headers=PICTURE_HEADERS)

    async def _audit(self, request: Request) -> Response:
        query = request.scope["query_string"].decode("ascii", errors="replace")
        pid = whole_number(query.removeprefix(PID), MAX_PID) if query.startswith(PID) else None
        if query and pid is None:
            raise InvalidRequestError(
                f"/audit takes no parameter but {PID}N, and was given {quote(query)}"
            )
        reader = reader_of(peer_of_request(request.scope), self._settings.admin_group)
        last = self._last_scan()
        if last is None:
            raise self._no_scan()
        if pid is not None:
            process = last.process(pid) if reader == ALL else None
            if process is None:
                raise NoSuchProcessError(
                    f"pid: {pid} uses no GPU, by the last scan, or this caller may not see it"
                )
            return Response(process, media_type=JSON, headers=_DOCUMENT_HEADERS)
        tag = f'W/"{last.boot}-{reader}"'  # weak: it is the same compressed and not
        headers = {**_DOCUMENT_HEADERS, "etag": tag}
        if request.headers.get("if-none-match") == tag:  # the page asks often
            return Response(status_code=304, headers=headers)
        if as_gzip := takes_gzip(request):
            headers["content-encoding"] = "gzip"
        form = partial(last.document, reader, as_gzip=as_gzip)
        async with self._turn:
            document = await in_background(form)
        return Response(document, media_type=JSON, headers=headers)

    def _no_scan(self) -> NotScannedError:
        if self._settings.replays:
            return NotScannedError("a replayed machine has no processes to scan")
        if self._settings.scan_interval is None:
            return NotScannedError("this daemon scans no processes: its scan interval is off")
        return NotScannedError("the processes have not been scanned yet; try again in a moment")


def problem(request: Request, status: int, title: str, detail: str) -> Response:
    """Return an error in the form that the client takes."""
    asks_for_lines = request.query_params.get("format", "json") not in {"json", ""}
    if asks_for_lines or wants_text(request.headers.get("accept")):
        return Response(f"{title}: {detail}\n", status, media_type="text/plain")
    kind = title.lower().replace(" ", "-")
    document = ProblemDocument(f"urn:affinityd:{kind}", title, status, detail)
    body = dumps(document, ensure_ascii=False) + "\n"
    return Response(body.encode(errors="replace"), status, media_type=PROBLEM)


def _app(routes: Sequence[Route], remedy: str) -> FastAPI:
    """Return an app with these paths; each error is a problem, of another path with a remedy."""
    app = FastAPI(
        title="affinityd",
        version=__version__,
        routes=[*routes],
        # Their pages would load scripts from elsewhere, which a compute node cannot reach.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # FastAPI's own would be made on the event loop
        redirect_slashes=False,  # a redirect would name the request's host, which may be any
        exception_handlers={
            AffinityError: _refused,
            HTTPException: partial(_not_answered, remedy),
            Exception: _broken,
        },
    )
    app.add_middleware(OtherSites)
    app.add_middleware(Turns)
    return app


class Turns:
    """Answers some requests of a user, then looks at the connections of the other users."""

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
        await self._app(scope, receive, send)


class OtherSites:
    """Refuses, on every path, what a browser asks for a page of another site.

    It says so by Sec-Fetch-Site (Fetch Metadata; a link that a person follows is no such request),
    or has that site's name in Host, which may lead to the socket through a port forwarding. Over
    TCP a name is also that of a Service or a node.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Take the app that answers all other requests."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers = dict(scope["headers"])
        site, host = (
            headers.get(b"sec-fetch-site", b"none"),
            headers.get(b"host", b"").decode("latin-1"),
        )
        is_link = headers.get(b"sec-fetch-mode") == b"navigate"
        if (site not in {b"none", b"same-origin"} and not is_link) or (
            peer_of_request(scope) is not None and is_foreign(host)
        ):
            detail = "a page of another site asks; no such page may"
            refusal = problem(Request(scope), HTTPStatus.FORBIDDEN, "Forbidden", detail)
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, AffinityError)  # noqa: S101 - Starlette's handlers take any
    reply = problem(request, error.status, error.title, str(error))
    if type(error) is NotReadyError:  # its kinds may last
        reply.headers["retry-after"] = RETRY_SECONDS
    return reply


async def _not_answered(remedy: str, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    asked = f"{request.method} {quote(request.scope['path'])}"
    how = "only GET is" if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else remedy
    detail = f"{asked} is not answered at this address; {how}"
    title = HTTPStatus(error.status_code).phrase
    reply = problem(request, error.status_code, title, detail)
    reply.headers.update(error.headers or {})
    if "allow" in reply.headers:  # every path with a GET
        reply.headers["allow"] = "GET, HEAD"
    return reply


async def _broken(request: Request, _error: Exception) -> Response:
    # The server logs the error, which goes on to it from here.
    return problem(request, 500, "Internal error", "this is a bug; the daemon's log says more")
