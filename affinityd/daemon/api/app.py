"""The FastAPI app: its paths and their answers.

`GET /audit` and `GET /enforce` show processes, as each caller may see them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from affinityd import __version__
from affinityd.daemon.api import problems
from affinityd.daemon.api.description import add_description, listed
from affinityd.daemon.api.page import PICTURE_HEADERS, SVG, add_page
from affinityd.daemon.api.peers import Callers, Viewer, peer_of_request, viewer
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.state.background import SingleFlight
from affinityd.daemon.state.plan_service import JOBS_FORMAT, PlanService, mode_of, pairs_of
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.errors import AffinityError, InvalidRequestError, NotEnforcedError, NotReadyError
from affinityd.json_codec import dumps
from affinityd.picture import Marks, draw, marks_of
from affinityd.request.devices import names_unknown_mig
from affinityd.request.environment import ENV
from affinityd.request.parameters import PARAMETERS
from affinityd.request.query import VARIABLE, parse_query
from affinityd.request.resolve import answer
from affinityd.text import quote
from affinityd.topology.document import TopologyAnswer, to_document

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
_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": _TEXT,
    }
    for status, text in (
        (404, "No such GPU, or none visible; says which exist."),
        (409, "Cannot be satisfied; says what could be."),
        (422, "A parameter is unknown, repeated, empty or malformed."),
        (503, "The machine has not been read yet."),
    )
}

_NO_DOCUMENT: dict[int | str, dict[str, Any]] = {
    422: {**_ERRORS[422], "description": "It takes no parameters."},
    503: {
        **_ERRORS[503],
        "description": "There has been no scan yet, or the daemon does not scan.",
    },
}


#: Path → its answer, in a line.
_DOCUMENTS = {
    "/audit": "The processes that use GPUs, and where they may run",
    "/enforce": "Which processes of GPU jobs are pinned, which are left alone, and why",
}
#: A browser keeps them out of other sites' pages: Fetch, Cross-Origin-Resource-Policy.
_DOCUMENT_HEADERS = {
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
_NOT_ENFORCING = (
    "this daemon does not enforce: start it with --enforce observe or pin, and without "
    "AFFINITYD=off"
)


class Documents:
    """The documents of the last scan, one for each kind of viewer; one is written at a time."""

    def __init__(
        self, write: Callable[[Viewer], bytes], error: type[NotReadyError], why_none: str
    ) -> None:
        """Take the writer of a document, and the error to raise before the first scan."""
        self._write = SingleFlight[tuple[float, Viewer], bytes](lambda key: write(key[1]) + b"\n")
        self._why_none = why_none
        self._error = error
        self._scanned: float | None = None

    def update(self, scanned: float) -> None:
        """Describe the scan that began at this time from now on."""
        self._scanned = scanned

    async def document(self, reader: Viewer) -> bytes:
        """Return a viewer's document, as JSON. Raises NotReadyError if there is none yet."""
        if self._scanned is None:
            raise self._error(self._why_none)
        return await self._write((self._scanned, reader))


def create_app(
    service: PlanService,
    watcher: TopologyWatcher,
    metrics: Metrics,
    callers: Callers,
    documents: Mapping[str, Documents | None],
    *,
    admin_group: int | None = None,
    socket: str = "",
) -> FastAPI:
    """Return the ASGI app that answers on one node; `documents` are by their path.

    `socket` is the path of the daemon's, for people.
    """
    app = FastAPI(
        title="affinityd",
        version=__version__,
        description="The CPUs and the memory node for each GPU rank.",
        # Their pages would load scripts from elsewhere, which a compute node cannot reach.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # FastAPI's own would be made on the event loop
        redirect_slashes=False,  # a redirect would name the request's host, which may be any
    )
    problems.install(app)
    app.add_middleware(problems.HeadAsGet)
    add_page(app, service, refresh=watcher.refresh, listed=lambda: listed(app), socket=socket)
    _add_plan(app, service, watcher, metrics, callers)
    _add_node(app, service, watcher, metrics)
    _add_picture(app, service, watcher, callers)
    for path, source in documents.items():
        _add_document(app, path, source, admin_group)
    add_description(app)
    return app


def _add_plan(
    app: FastAPI,
    service: PlanService,
    watcher: TopologyWatcher,
    metrics: Metrics,
    callers: Callers,
) -> None:
    @app.get(
        "/plan",
        summary="The CPUs of each rank",
        responses={**_ERRORS, 200: {"content": _TEXT}},
        openapi_extra={"parameters": _PARAMETERS},
    )
    async def plan(request: Request) -> Response:
        await watcher.first_reading()
        began, query = perf_counter(), request.scope["query_string"]
        try:
            await _bring_up_to_date(service, watcher, query)
            caller = callers.of_peer(peer_of_request(request.scope))
            is_text = problems.wants_text(request.headers.get("accept"))
            answer = service.answer(query, caller, is_text=is_text)
        except AffinityError as error:
            is_of_job = f"format={JOBS_FORMAT}".encode() in query
            metrics.refused(mode_of(query), error.status, is_of_job=is_of_job)
            raise
        metrics.planned(answer, perf_counter() - began)
        return Response(answer.body, headers={"content-type": answer.media_type})


def _add_node(
    app: FastAPI, service: PlanService, watcher: TopologyWatcher, metrics: Metrics
) -> None:
    exposition = SingleFlight(metrics.exposition)

    @app.get("/topology", summary="The node as it was read", responses={503: _ERRORS[503]})
    async def topology() -> Response:
        await watcher.refresh()
        node = service.node
        answer = TopologyAnswer(node.generation, to_document(node.topology))
        return Response(dumps(answer), media_type="application/json")

    @app.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=PlainTextResponse,
        responses={200: {"content": {"application/openmetrics-text": _TEXT["text/plain"]}}},
    )
    async def scrape(request: Request) -> Response:
        body, media_type = await exposition(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    @app.get("/healthz", summary="The daemon runs", response_class=PlainTextResponse)
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get(
        "/readyz",
        summary="The daemon can plan",
        response_class=PlainTextResponse,
        responses={503: _ERRORS[503]},
    )
    async def readyz() -> Response:
        return Response(f"ready: {service.node.topology.name}\n", media_type="text/plain")


def _add_picture(
    app: FastAPI, service: PlanService, watcher: TopologyWatcher, callers: Callers
) -> None:
    @app.get(
        "/topology.svg",
        summary="The node as a picture, with the parameters of /plan also a plan",
        response_class=Response,
        responses={**_ERRORS, 200: {"content": {SVG: {"schema": {"type": "string"}}}}},
        openapi_extra={"parameters": [it for it in _PARAMETERS if it["name"] != "format"]},
    )
    async def picture(request: Request) -> Response:
        await watcher.refresh()
        marks = Marks(service.node.reserved)
        if query := request.scope["query_string"]:
            asked = parse_query(pairs_of(query))
            if asked.format is not None:
                raise InvalidRequestError("format: this is always SVG; leave it out")
            await _bring_up_to_date(service, watcher, query)
            reply = answer(service.node, asked, callers.of_peer(peer_of_request(request.scope)))
            marks = marks_of(reply, service.node.reserved)
        svg = draw(service.node.topology, marks)
        return Response(svg, media_type=SVG, headers=PICTURE_HEADERS)


def _add_document(
    app: FastAPI, path: str, documents: Documents | None, admin_group: int | None
) -> None:
    @app.get(path, name=path[1:], summary=_DOCUMENTS[path], responses=_NO_DOCUMENT)
    async def document(request: Request) -> Response:
        if query := request.scope["query_string"].decode("ascii", errors="replace"):
            raise InvalidRequestError(f"{path} takes no parameters, and was given {quote(query)}")
        if documents is None:  # of a daemon that does not enforce
            raise NotEnforcedError(_NOT_ENFORCING)
        host = request.headers.get("host", "")
        body = await documents.document(viewer(peer_of_request(request.scope), admin_group, host))
        return Response(body, media_type="application/json", headers=_DOCUMENT_HEADERS)


async def _bring_up_to_date(service: PlanService, watcher: TopologyWatcher, query: bytes) -> None:
    await watcher.refresh()
    names_mig = b"MIG-" in query  # maybe of an instance that was made since the last reading
    if names_mig and names_unknown_mig(service.node.topology, parse_query(pairs_of(query))):
        await watcher.seek_mig()
